"""Each detection cut out of its image."""

import itertools
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from utils.files.writers import write_bytes
from utils.images.detections import Frame, ImageDetections
from utils.images.encode import encode_bgr
from utils.outputs.names import OutputNames, prepare_file, shorten, with_number
from utils.outputs.sources_file import SourcesFile

FORBIDDEN = '<>:"/\\|?*'  # in file names on some systems
RESERVED = frozenset(
    (
        "con",
        "prn",
        "aux",
        "nul",
        *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)),
    )
)


class Crops:
    """Writes `crops/<class>/<name>.jpg`, with _2, _3, ... at the end if there is such a file.

    No file is overwritten. The pixels are those of the image, without drawings. Boxes without a
    whole pixel are left out.

    known: as for OutputNames. sources: gets a row for each file.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        *,
        known: Sequence[tuple[str, bool]] | None = None,
        sources: SourcesFile | None = None,
    ) -> None:
        self.folder = folder
        self.folders = class_folders(names)
        self._names = OutputNames(known)
        self._sources = sources

    def write(self, frame: Frame, detections: ImageDetections) -> None:
        stem = with_number(self._names.stem(frame), frame)
        next_number: dict[int, int] = {}  # so that many objects of one class take no quadratic time
        for class_id, box in zip(detections.class_ids.tolist(), detections.boxes_xyxy, strict=True):
            crop = cut_out(frame.image, box)
            if not crop.size:
                continue

            # The first number whose file does not exist.
            is_known = 0 <= class_id < len(self.folders)
            class_folder = self.folders[class_id] if is_known else f"class_{class_id}"
            base = f"crops/{class_folder}/{stem}"
            for number in itertools.count(next_number.get(class_id, 1)):
                output = f"{base}.jpg" if number == 1 else f"{base}_{number}.jpg"
                file = prepare_file(self.folder, output)
                if not file.exists():
                    break
            next_number[class_id] = number + 1

            write_bytes(file, encode_bgr(crop, ".jpg"))
            if self._sources:
                self._sources.add(output, frame.path, frame.number)

    def close(self) -> None:
        """Nothing is open between two frames."""


def cut_out(image: NDArray[np.uint8], box_xyxy: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return the pixels that a box touches.

    No pixels if the box is empty, outside the image or not finite.

    >>> cut_out(np.zeros((10, 10, 3), np.uint8), np.array([1.5, 2, 3.5, 99])).shape
    (8, 3, 3)
    """
    height, width = image.shape[:2]
    low = box_xyxy[:2]
    high = box_xyxy[2:]
    if not np.isfinite(box_xyxy).all() or not (high > low).all():
        return image[:0, :0]

    left, top = np.floor(low).clip(0).astype(int).tolist()
    right, bottom = np.ceil(high).clip(0, [width, height]).astype(int).tolist()
    return image[top:bottom, left:right]


def class_folders(names: Sequence[str]) -> list[str]:
    """Return a folder name for each class, close to its name.

    They differ even where upper and lower case are the same.

    >>> class_folders(["cat", "Cat", "../x", "", "a/b"])
    ['cat', 'Cat_1', '_x', 'class_3', 'a_b']
    """
    folders: list[str] = []
    used: set[str] = set()
    for class_id, name in enumerate(names):
        safe = _safe_folder(str(name)) or f"class_{class_id}"
        numbered = (f"{safe}_{class_id}" + "_" * count for count in itertools.count())
        folder = next(
            each for each in itertools.chain((safe,), numbered) if _same_file(each) not in used
        )
        used.add(_same_file(folder))
        folders.append(folder)
    return folders


def _same_file(name: str) -> str:
    """Equal for names that are one file on a file system that ignores case and Unicode forms."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _safe_folder(name: str) -> str:
    """Return a name that is valid on all systems; "" if nothing is left of it."""
    letters = "".join(
        letter if letter.isprintable() and letter not in FORBIDDEN else "_" for letter in name
    )
    part = shorten(letters.strip(" .")).strip(" .")
    return f"{part}_" if part.split(".")[0].lower() in RESERVED else part
