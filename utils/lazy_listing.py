"""Listings of packages: `from utils.distributed import World` imports only the module of World."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_listing(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], Any]]:
    """Return `__all__` and `__getattr__` for a package that lists the names of its modules.

    names: by module, without the package. A module is imported when one of its names is first asked
    for, so that a command line is parsed without the seconds that torch takes.

    >>> listed, get = lazy_listing("json", {"decoder": ["JSONDecoder"]})
    >>> listed, get("JSONDecoder").__module__
    (['JSONDecoder'], 'json.decoder')
    """
    homes = {name: module for module, listed in names.items() for name in listed}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{homes[name]}")
        return getattr(module, name)

    return sorted(homes), get
