"""The base class of export formats: how a file is named, written, checked and opened.

This module and the modules `format` of the formats are imported without torch or a runtime, for
`export.py --help`; what a method needs is imported in it. registry.py lists the formats.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from utils.printable import printable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from models.export.exported import ExportedBackend
    from models.export.source import ExportSource


class ExportFormat(ABC):
    """Base class of the formats; its attributes say what `export.py` offers.

    title: the format's name in sentences. suffix: what its file's name has after the stem of the
    checkpoint's. is_folder: it is a folder of files. file_suffix: of the file that holds the graph,
    the same as `suffix` if that is the only one.

    packages: that requirements.txt does not list, to write a file and to run it for its check.
    int8_packages: those that 8-bit files need in addition; None if there are no 8-bit files.

    half_needs_gpu: 16-bit files run on GPUs only. precision_is_fixed: the precision is chosen at
    export, not when a file is opened. compared_on_device: a new file is compared with torch on the
    device of `--device`, not on the CPU.
    """

    title: ClassVar[str]
    suffix: ClassVar[str]
    file_suffix: ClassVar[str]
    is_folder: ClassVar[bool]
    packages: ClassVar[tuple[str, ...]]
    int8_packages: ClassVar[tuple[str, ...] | None]
    half_needs_gpu: ClassVar[bool]
    precision_is_fixed: ClassVar[bool]
    compared_on_device: ClassVar[bool]

    def accepts(self, path: Path) -> bool:
        """Return whether a path is, by its name, a file of this format."""
        if self.is_folder and path.is_dir():
            return True
        return path.suffix == self.file_suffix

    def require_replaceable(self, path: Path) -> None:
        """Raise ValueError if something that is no export is at the path of a file to write."""
        if path.is_dir():
            raise ValueError(f"{printable(path)}: is a folder; move it away")

    @abstractmethod
    def write(self, path: Path, source: "ExportSource", calibration: "Sequence[Tensor]") -> None:
        """Write a file at `path`, where nothing is, in the precision of the metadata.

        calibration: batches of one image, for 8-bit files.
        """

    @abstractmethod
    def load(
        self, path: Path, device: "torch.device", *, half: bool, threads: int
    ) -> "ExportedBackend":
        """Check a file as data and return its backend.

        half: compute in 16 bits, unless the precision is fixed. threads: as in `Backend`. Raises
        ValueError if the file is damaged, refused, or does not load.
        """
