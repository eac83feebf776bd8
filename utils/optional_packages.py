"""Import packages that requirements.txt does not list, where they are used."""

import importlib
from types import ModuleType


def require(package: str, purpose: str) -> ModuleType:
    """Import and return an optional package.

    Raises ValueError with the pip command if it is not installed, or cannot be imported.

    >>> require("json", "reading JSON").__name__
    'json'
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        command = f"pip install {package.partition('.')[0]}"
        raise ValueError(f"{purpose} needs the package {package.partition('.')[0]}: {command} ({error})") from None
