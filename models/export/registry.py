"""The export formats by their name for `--include`.

To add a format, write a subclass of `ExportFormat` in a module here and add a line to FORMATS.
"""

from collections.abc import Sequence
from pathlib import Path

from models.export.base import ExportFormat
from models.export.onnx.format import Onnx
from models.export.openvino.format import OpenVino
from models.export.quiet import quiet
from models.export.torchscript.format import TorchScript
from utils.optional_packages import import_all_optional

FORMATS: dict[str, ExportFormat] = {
    "torchscript": TorchScript(),
    "onnx": Onnx(),
    "openvino": OpenVino(),
}


def export_format_of(path: Path) -> ExportFormat | None:
    """Return the format of a file or folder, by its name; None if it is not an exported file."""
    for export_format in FORMATS.values():
        if export_format.accepts(path):
            return export_format
    return None


def require_packages(names: Sequence[str], *, int8: bool) -> None:
    """Raise ValueError with one pip command for all packages that these formats need and lack."""
    needed: list[str] = []
    for name in names:
        needed += FORMATS[name].packages
        if int8:
            needed += FORMATS[name].int8_packages or ()

    with quiet():
        import_all_optional(dict.fromkeys(needed), f"--include {' '.join(names)}")
