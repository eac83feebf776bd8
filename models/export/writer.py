"""Write the files of an export beside its checkpoint, each atomically, and only if it passes a
check.
"""

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from torch import Tensor

from models.detector import Detector
from models.export import Export
from models.export.graph import halve
from models.export.int8 import quantized_onnx, quantized_openvino
from models.export.metadata import ExportedModel
from models.export.onnx.write import onnx_bytes
from models.export.openvino.write import SUFFIX, openvino_model, require_replaceable, write_openvino
from models.export.quiet import quiet
from models.export.torchscript.write import torchscript_bytes
from utils.files.atomic import name_os_errors, replace_folder, temporary_folder
from utils.optional_packages import import_all_optional
from utils.printable import printable

SUFFIXES = {"torchscript": ".torchscript", "onnx": ".onnx", "openvino": SUFFIX}
# Packages that requirements.txt does not list: to write a format, and to run the file for its
# check.
PACKAGES = {
    "torchscript": (),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("openvino", "onnx", "onnxscript"),
}
QUANTIZERS = {"openvino": ("nncf",)}  # in addition for 8 bits


def require_packages(formats: Sequence[str], *, int8: bool) -> None:
    """Raise ValueError with one pip command for all packages that these formats (keys of SUFFIXES)
    need and lack.
    """
    needed: list[str] = []
    for name in formats:
        needed += PACKAGES[name]
        if int8:
            needed += QUANTIZERS.get(name, ())
    with quiet():
        import_all_optional(dict.fromkeys(needed), f"--include {' '.join(formats)}")


class Writer:
    """Writes the files of one detector.

    model: the metadata; its precision decides what is written. variant: is added to the names of
    the files, to tell those of several heads apart.
    """

    def __init__(self, detector: Detector, model: ExportedModel, variant: str = "") -> None:
        self.model, self.variant = model, variant
        self.reference = Export(detector, replace(model, precision="fp32"))

    def path(self, name: str, weights: Path) -> Path:
        """Return the path of the format `name` (a key of SUFFIXES) beside the checkpoint
        `weights`.
        """
        precision = "_int8" if self.model.precision == "int8" else ""
        return weights.with_name(weights.stem + self.variant + precision + SUFFIXES[name])

    def write(
        self,
        name: str,
        weights: Path,
        calibration: Sequence[Tensor] = (),
        check: Callable[[Path], None] = lambda _: None,
    ) -> Path:
        """Write the format `name` beside the checkpoint `weights`; return the path.

        calibration: batches of one image, for int8. check: called with the file in a temporary
        folder; it gets its place only if this raises nothing. Raises ValueError if a package is
        missing, or if something else is at the path, and OSError.
        """
        path = self.path(name, weights)
        if name == "openvino":
            require_replaceable(path)
        elif path.is_dir():
            raise ValueError(f"{printable(path)}: is a folder; move it away")
        with temporary_folder(path) as folder:
            with name_os_errors(path):
                self._write(name, folder / path.name, calibration)
            check(folder / path.name)
            (replace_folder if name == "openvino" else os.replace)(folder / path.name, path)
        return path

    def _write(self, name: str, path: Path, calibration: Sequence[Tensor]) -> None:
        if name == "openvino":
            graph = openvino_model(self._float_onnx)
            if self.model.precision == "int8":
                graph = quantized_openvino(graph, calibration)
            write_openvino(path, path.name.removesuffix(SUFFIX), graph, self.model)
        else:
            path.write_bytes(
                torchscript_bytes(self._export)
                if name == "torchscript"
                else self._onnx(calibration)
            )

    @cached_property
    def _export(self) -> Export:
        """The detector in the precision of the file's weights; 8-bit files are made from a float
        file.
        """
        half = self.model.precision == "fp16"
        detector = self.reference.detector
        return (
            Export(halve(deepcopy(detector)), self.model)
            if half
            else replace(self.reference, model=self.model)
        )

    @cached_property
    def _float_onnx(self) -> bytes:
        return onnx_bytes(self.reference)

    def _onnx(self, calibration: Sequence[Tensor]) -> bytes:
        if self.model.precision == "fp16":
            return onnx_bytes(self._export)
        return (
            quantized_onnx(self._float_onnx, calibration)
            if self.model.precision == "int8"
            else self._float_onnx
        )
