"""Import packages that requirements.txt does not list, where they are used."""

import importlib
from collections.abc import Iterable
from types import ModuleType


def require(package: str, purpose: str) -> ModuleType:
    """Import and return an optional package, or a module of one.

    Raises ValueError with the pip command if it is not installed, or cannot be imported.

    >>> require("json", "reading JSON").__name__
    'json'
    """
    return require_all([package], purpose)[0]


def require_all(packages: Iterable[str], purpose: str) -> list[ModuleType]:
    """Import and return optional packages, or modules of them.

    Raises ValueError with one pip command for all that are not installed, or cannot be imported;
    then with the reason.

    >>> [module.__name__ for module in require_all(["json", "json.decoder"], "reading JSON")]
    ['json', 'json.decoder']
    """
    imported = []
    names: list[str] = []  # of the packages that fail
    reasons: list[str] = []  # of those that are installed
    for package in packages:
        name = package.partition(".")[0]
        try:
            importlib.import_module(name)
            imported.append(importlib.import_module(package))
        except ImportError as error:
            if name in names:
                continue
            names.append(name)
            if error.name != name:
                reasons.append(str(error))

    if names:
        listed = f"the package {names[0]}"
        if len(names) > 1:
            listed = f"the packages {', '.join(names[:-1])} and {names[-1]}"
        shown = f" ({'; '.join(reasons)})" if reasons else ""
        raise ValueError(f"{purpose} needs {listed}: pip install {' '.join(names)}{shown}")
    return imported
