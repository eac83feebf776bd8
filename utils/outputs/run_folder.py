"""Open the outputs of detect.py in its run folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from utils.outputs.annotated import Annotator
from utils.outputs.base import Output, Outputs
from utils.outputs.crops import Crops
from utils.outputs.csv_file import CsvFile
from utils.outputs.json_file import JsonFile
from utils.outputs.label_files import LabelFiles
from utils.outputs.pictures import PictureFiles
from utils.outputs.sources_file import SourcesFile
from utils.outputs.video import VideoFiles
from utils.outputs.window import Window


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
    further: Sequence[Output] = (),
) -> Outputs:
    """Return the outputs that are asked for, in an existing run folder.

    sources.csv lists pictures, videos, label files and crops with their sources.

    Args:
        folder: the run folder.
        names: of the classes.
        pictures: annotated images and videos.
        text: label files.
        text_format: 0 (YOLO) or 1 (VOC).
        scores: add the score to each row of a label file.
        csv: predictions.csv.
        json: predictions.json.
        crops: a picture of each object.
        window: show the frames.
        line_width, show_labels, show_scores: those of `draw_detections`.
        inputs: the name of each image and video, and whether it is a video, if they are known
            before the first frame; the names of files then do not depend on the order.
        further: outputs of other packages, such as the labels for an annotation tool.

    Raises ValueError if a window is asked for and cannot be shown, and OSError if a file cannot be
    created.
    """
    annotator = Annotator(
        names, line_width=line_width, show_labels=show_labels, show_scores=show_scores
    )

    # First, because it can fail before files are made.
    shown = [Window(annotator)] if window else []

    written: list[Output] = [*further]
    try:
        naming: dict[str, Any] = {"known": inputs, "sources": None}
        if text or crops or pictures:
            sources = SourcesFile(folder / "sources.csv")
            naming["sources"] = sources
            written.append(sources)  # before the others, so that it is closed after them

        if text:
            written.append(LabelFiles(folder, text_format=text_format, scores=scores, **naming))
        if csv:
            written.append(CsvFile(folder / "predictions.csv", names))
        if json:
            written.append(JsonFile(folder / "predictions.json"))
        if crops:
            written.append(Crops(folder, names, **naming))

        if pictures:
            written.append(PictureFiles(folder, annotator, **naming))
            written.append(VideoFiles(folder, annotator, **naming))
    except BaseException:
        Outputs([*shown, *written]).close()
        raise

    # The window comes last, so that the frame at which the user closes it is written too.
    return Outputs([*written, *shown])
