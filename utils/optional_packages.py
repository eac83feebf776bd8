"""Import packages that requirements.txt does not list, where they are used."""

import importlib
import os
import sys
from collections.abc import Iterable
from types import ModuleType

from utils.printable import one_line


def import_optional(package: str, purpose: str, how: str = "") -> ModuleType:
    """Import an optional package, or a module of one, and return it.

    Raises ValueError with the pip command, or `how` to install it in place of that, if it is not
    installed, or cannot be imported.

    >>> import_optional("json", "reading JSON").__name__
    'json'
    """
    return import_all_optional([package], purpose, how)[0]


def import_all_optional(packages: Iterable[str], purpose: str, how: str = "") -> list[ModuleType]:
    """Import optional packages, or modules of them, and return them.

    Raises ValueError with one pip command, or `how`, for all that are not installed, or cannot be
    imported; then with the reason.

    >>> modules = import_all_optional(["json", "json.decoder"], "reading JSON")
    >>> [module.__name__ for module in modules]
    ['json', 'json.decoder']
    """
    _turn_off_telemetry()
    imported = []
    names: list[str] = []  # of the packages that fail
    reasons: list[str] = []  # of those that are installed
    for package in packages:
        name = package.partition(".")[0]
        try:
            importlib.import_module(name)
            imported.append(importlib.import_module(package))
        except Exception as error:  # of a broken package, for example one for another numpy
            if name in names:
                continue
            names.append(name)
            if getattr(error, "name", None) != name:
                reasons.append(one_line(error))

    if names:
        listed = f"the package {names[0]}"
        if len(names) > 1:
            listed = f"the packages {', '.join(names[:-1])} and {names[-1]}"
        shown = f" ({'; '.join(reasons)})" if reasons else ""
        how = how or f"pip install {' '.join(names)}"
        raise ValueError(f"{purpose} needs {listed}: {how}{shown}")
    return imported


def _turn_off_telemetry() -> None:
    """Keep packages from using the network when they are imported.

    onnxruntime, openvino and nncf send usage data: onnxruntime from 1.32 on has a variable for it,
    openvino and nncf send by a package of their own, without which they work as well.
    Albumentations asks the package index for a newer version.
    """
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # not to be found
