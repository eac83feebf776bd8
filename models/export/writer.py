"""Write the files of an export beside its checkpoint, each atomically, if it passes a check."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from models.detector import Detector
from models.export.metadata import ExportedModel
from models.export.registry import FORMATS
from models.export.source import ExportSource
from utils.files.atomic import name_os_errors, replace_folder, temporary_folder


class Writer:
    """Writes the files of one detector; `reference` is what they are compared with.

    model: the metadata; its precision decides what is written. variant: is added to the names of
    the files, to tell those of several heads apart.
    """

    def __init__(self, detector: Detector, model: ExportedModel, variant: str = "") -> None:
        self.model = model
        self.variant = variant
        self._source = ExportSource(detector, model)
        self.reference = self._source.reference

    def path(self, name: str, weights: Path) -> Path:
        """Return the path of the format `name` (of FORMATS) beside the checkpoint `weights`."""
        precision = "_int8" if self.model.precision == "int8" else ""
        suffix = FORMATS[name].suffix
        return weights.with_name(f"{weights.stem}{self.variant}{precision}{suffix}")

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
        FORMATS[name].require_replaceable(path)

        # A file of a fixed batch size takes no other: each image fills a batch.
        batch_size = self.model.batch_size or 1
        calibration = [image.expand(batch_size, -1, -1, -1) for image in calibration]

        with temporary_folder(path) as folder:
            new = folder / path.name
            with name_os_errors(path):
                FORMATS[name].write(new, self._source, calibration)
            check(new)
            if FORMATS[name].is_folder:
                replace_folder(new, path)
            else:
                os.replace(new, path)
        return path
