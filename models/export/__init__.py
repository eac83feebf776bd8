"""Export a detector: the graph, its metadata, and the files of other runtimes.

FORMATS needs no torch; the other names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from models.export.base import ExportFormat
from models.export.registry import FORMATS, format_of

if TYPE_CHECKING:
    from models.export.exported import ExportedBackend
    from models.export.metadata import ExportedModel, Suppression
    from models.export.writer import Writer

__all__ = [
    "FORMATS",
    "ExportFormat",
    "ExportedBackend",
    "ExportedModel",
    "Suppression",
    "Writer",
    "format_of",
]

HOMES = {
    "ExportedBackend": "models.export.exported",
    "ExportedModel": "models.export.metadata",
    "Suppression": "models.export.metadata",
    "Writer": "models.export.writer",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)
