# ruff: noqa: F401 - the imports are for type checkers
"""Export a detector: the graph, its metadata, and the files of other runtimes.

FORMATS needs no torch; the other names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from utils.lazy_listing import lazy_listing

if TYPE_CHECKING:
    from models.export.base import ExportFormat
    from models.export.exported import ExportedBackend
    from models.export.metadata import ExportedModel, Suppression
    from models.export.registry import FORMATS, export_format_of
    from models.export.writer import Writer

__all__, __getattr__ = lazy_listing(
    __name__,
    {
        "base": ["ExportFormat"],
        "exported": ["ExportedBackend"],
        "metadata": ["ExportedModel", "Suppression"],
        "registry": ["FORMATS", "export_format_of"],
        "writer": ["Writer"],
    },
)
