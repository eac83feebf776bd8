"""Annotated images, as files."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from utils.files.writers import write_bytes
from utils.images.detections import Frame, ImageDetections
from utils.images.encode import MAX_JPEG_SIDE, encode_bgr
from utils.outputs.annotated import Annotator
from utils.outputs.names import OutputNames, prepare_file
from utils.outputs.sources_file import SourcesFile
from utils.printable import printable

KEPT_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".png")


class PictureFiles:
    """Writes each image with its detections to a run folder, under its own name.

    JPEG and PNG keep their suffix. All other images (.bmp, .tif, .webp, ...) become .jpg files,
    which every viewer opens: `a.tif` becomes `a.jpg`, or `a.tif.jpg` if there is or may be another
    `a`.

    known: as for OutputNames. sources: gets a row for each file.
    """

    def __init__(
        self,
        folder: Path,
        annotator: Annotator,
        *,
        known: Sequence[tuple[str, bool]] | None = None,
        sources: SourcesFile | None = None,
    ) -> None:
        self.folder = folder
        self.annotator = annotator
        self._names = OutputNames(known)
        self._sources = sources

    def write(self, frame: Frame, detections: ImageDetections) -> None:
        if frame.number is not None:
            return
        image = self.annotator.draw(frame, detections)
        suffix = picture_suffix(frame.name, image)
        output = self._names.picture(frame, suffix)
        file = prepare_file(self.folder, output)
        if file.exists() and os.path.exists(frame.path) and file.samefile(frame.path):
            raise ValueError(
                f"{printable(frame.path)} would be overwritten by its own picture: choose another "
                "--project"
            )
        write_bytes(file, encode_bgr(image, suffix))
        if self._sources:
            self._sources.add(output, frame.path, frame.number)

    def close(self) -> None:
        """Nothing is open between two images."""


def picture_suffix(name: str, image: NDArray[np.uint8]) -> str:
    """Return the suffix of the picture of an image with this name: its own, or .jpg."""
    if max(image.shape) > MAX_JPEG_SIDE:
        return ".png"
    suffix = os.path.splitext(name)[1]
    return suffix if suffix.lower() in KEPT_SUFFIXES else ".jpg"
