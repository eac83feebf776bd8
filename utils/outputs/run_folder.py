"""What detect.py writes: annotated pictures and videos, label files, CSV, COCO JSON, crops; and the
window it shows.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from utils.images.detections import Frame, ImageDetections
from utils.outputs.annotated import Annotator
from utils.outputs.crops import Crops
from utils.outputs.csv_file import CsvFile
from utils.outputs.interrupts import delay_interrupt
from utils.outputs.json_file import JsonFile
from utils.outputs.label_files import LabelFiles
from utils.outputs.pictures import PictureFiles
from utils.outputs.sources_file import SourcesFile
from utils.outputs.video import VideoFiles
from utils.outputs.window import Window


class Output(Protocol):
    """Something that takes each frame and its detections, from one thread at a time, in order."""

    def write(self, frame: Frame, detections: ImageDetections) -> None: ...

    def close(self) -> None:
        """Finish what is open. May be called again, and after an error of `write`."""


class Outputs:
    """Several outputs as one."""

    def __init__(self, outputs: Iterable[Output]) -> None:
        self.outputs = list(outputs)

    def write(self, frame: Frame, detections: ImageDetections) -> None:
        """Write the frame to all outputs; Ctrl-C waits for the last of them, so that none lacks the
        frame.
        """
        with delay_interrupt():
            for output in self.outputs:
                output.write(frame, detections)

    def close(self) -> None:
        """Close each output, even if others raise, and raise one of these errors; Ctrl-C waits for
        the last of them.
        """
        with delay_interrupt(), ExitStack() as stack:
            for output in self.outputs:
                stack.callback(output.close)


def open_outputs(
    folder: Path,
    names: Sequence[str],
    *,
    pictures: bool = True,
    text: bool = False,
    text_format: int = 0,
    scores: bool = False,
    csv: bool = False,
    json: bool = False,
    crops: bool = False,
    window: bool = False,
    line_width: int | None = None,
    show_labels: bool = True,
    show_scores: bool = True,
    inputs: Sequence[tuple[str, bool]] | None = None,
) -> Outputs:
    """The outputs that are asked for, in an existing run folder.

    pictures: annotated images and videos. text: label files, in text_format 0 (YOLO) or 1 (VOC),
    with `scores` in each row. line_width, show_labels and show_scores are those of
    `draw_detections`. inputs: the name of each image and video, and whether it is a video, if they
    are known before the first frame; the names of files then do not depend on the order.
    sources.csv lists pictures, videos, label files and crops with their sources.

    Raises ValueError if a window is asked for and cannot be shown, and OSError if a file cannot be
    created.
    """
    annotator = Annotator(
        names, line_width=line_width, show_labels=show_labels, show_scores=show_scores
    )
    # first, because it can fail before files are made
    outputs: list[Output] = [Window(annotator)] if window else []
    try:
        naming: dict[str, Any] = {"known": inputs, "sources": None}
        if text or crops or pictures:
            naming["sources"] = SourcesFile(folder / "sources.csv")
            outputs.append(naming["sources"])  # before the others, so that it is closed after them
        if text:
            outputs.append(LabelFiles(folder, text_format=text_format, scores=scores, **naming))
        if csv:
            outputs.append(CsvFile(folder / "predictions.csv", names))
        if json:
            outputs.append(JsonFile(folder / "predictions.json"))
        if crops:
            outputs.append(Crops(folder, names, **naming))
        if pictures:
            outputs += [
                PictureFiles(folder, annotator, **naming),
                VideoFiles(folder, annotator, **naming),
            ]
    except BaseException:
        Outputs(outputs).close()
        raise
    # The window comes last, so that the frame at which the user closes it is written too.
    return Outputs(outputs[1:] + outputs[:1] if window else outputs)
