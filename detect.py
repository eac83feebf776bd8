# PYTHON_ARGCOMPLETE_OK - argcomplete may complete the flags in a shell
"""Detect objects in images, videos and streams with a trained model.

    # the newest best.pt on a folder of images and videos
    python detect.py --source photos/

    # a checkpoint on a video
    python detect.py --weights best.pt --source street.mp4 --conf 0.4

    # label files, COCO results
    python detect.py --source "photos/*.jpg" --save-txt --save-conf --save-json

    # a camera, shown in a window; a stream
    python detect.py --source 0 --view-img
    python detect.py --source rtsp://camera.local/stream

    # paths from standard input
    find photos -name "*.png" | python detect.py --source -

The boxes are those that val.py finds for the same settings. Pictures go to the
run folder, label files to its labels/.
"""

if __name__ == "__main__":
    from utils.startup import prepare_script

    # from here on Ctrl-C prints "interrupted" and no traceback, even during imports
    prepare_script()

import gc
import os
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

from utils.command_line.class_choice import ambiguous_classes_note
from utils.command_line.yolov5_flags import HINTS, NOT_IN_DETECT
from utils.flags import (
    FlagParser,
    add_tile_flags,
    check_command_line,
    check_image_size,
    check_lowest,
    check_threshold,
)


def parse_args(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the flags. Raises ValueError, in one sentence, for a command line that is wrong."""
    parser = FlagParser(__doc__)
    add = parser.add_argument_group("model").add_argument
    add(
        "--weights",
        nargs="+",
        default=[],
        help="checkpoints or exported models, several make an ensemble",
    )
    add(
        "--head",
        default="",
        help="o2o or o2m, of a model with two heads (default: o2o, which needs no NMS)",
    )
    add("--half", action="store_true", help="16-bit forward pass, if the device supports it")
    add("--augment", action="store_true", help="test-time augmentation: three scales, one mirrored")
    add("--device", default="", help="cpu, mps or a GPU number")

    add = parser.add_argument_group("images").add_argument
    add(
        "--source",
        default="",
        help="image, video, folder, glob, .txt list, camera number, URL or - (stdin)",
    )
    add(
        "--data",
        default="",
        help="data set (as for train.py) whose class names, and their order, are used",
    )
    add("--batch-size", "--batch", type=int, default=1, help="images in one forward pass")
    add(
        "--imgsz",
        "--img",
        "--img-size",
        type=int,
        nargs="+",
        metavar="PX",
        default=[],
        help="long side, or height width, in pixels (default: the long side as trained)",
    )
    add_tile_flags(add)
    add("--vid-stride", type=int, default=1, help="use every Nth frame of videos and streams")

    add = parser.add_argument_group("detections").add_argument
    add("--conf-thres", "--conf", type=float, default=0.25, help="confidence threshold")
    add("--iou-thres", "--iou", type=float, default=0.45, help="NMS IoU threshold")
    add("--max-det", type=int, default=1000, help="max detections per image")
    add("--classes", nargs="+", help="keep only detections of these classes, by name or number")
    add(
        "--agnostic-nms",
        action="store_true",
        help="boxes of different classes suppress each other too",
    )
    add(
        "--multi-label",
        action="store_true",
        help="a box may have several classes, as in val.py (on with --save-json)",
    )

    add = parser.add_argument_group("files").add_argument
    add("--save-txt", action="store_true", help="save detections as YOLO label files")
    add(
        "--save-format",
        type=int,
        default=0,
        help="label files: 0 YOLO (cx cy w h, 0-1), 1 VOC (x1 y1 x2 y2, pixels)",
    )
    add("--save-conf", action="store_true", help="add scores to the label files")
    add("--save-csv", action="store_true", help="save detections as predictions.csv")
    add(
        "--save-json",
        action="store_true",
        help="save detections as predictions.json, in the format of COCO results",
    )
    add(
        "--save-labels",
        metavar="FORMAT",
        default="",
        help="save detections, with their images, as a data set to correct in an annotation tool: "
        "yolo, coco, voc, labelme, cvat or label-studio",
    )
    add("--save-crop", action="store_true", help="save each detected object as an image")
    add("--nosave", action="store_true", help="save no pictures and videos")
    add("--project", default="runs/detect", help="folder for run folders")
    add("--name", default="exp", help="the run folder's name")
    add("--exist-ok", action="store_true", help="use an existing run folder")

    add = parser.add_argument_group("pictures").add_argument
    add(
        "--view-img",
        action="store_true",
        help="show the detections in a window; q ends the program",
    )
    add(
        "--line-thickness",
        type=int,
        default=0,
        help="width of the boxes' lines in pixels (default: fits the image)",
    )
    add("--hide-labels", action="store_true", help="draw boxes without class names")
    add("--hide-conf", action="store_true", help="draw class names without scores")

    add = parser.add_argument_group("output").add_argument
    add("--quiet", action="store_true", help="print errors only")

    parser.refuse(NOT_IN_DETECT)
    parser.hint(HINTS)
    parser.stray_file_hint = "--source takes one path; put a pattern into quotes: 'photos/*.jpg'"
    return parser.read(arguments)


def check_flags(args: Namespace) -> None:
    """Raise ValueError for a flag that is out of range; `load` checks the others."""
    check_image_size(args.imgsz)
    check_lowest("--vid-stride", args.vid_stride, 1)
    check_lowest("--line-thickness", args.line_thickness, 0)
    check_lowest("--max-det", args.max_det, 1)
    check_lowest("--batch-size", args.batch_size, 1)
    check_threshold("--conf-thres", args.conf_thres)
    check_threshold("--iou-thres", args.iou_thres)

    if args.save_conf and not args.save_txt:
        raise ValueError("--save-conf adds the confidences to the files of --save-txt: give both")

    if args.save_format not in (0, 1):
        raise ValueError(f"--save-format {args.save_format}: choose 0 (YOLO) or 1 (VOC)")

    saves_data = any(
        (args.save_txt, args.save_csv, args.save_json, args.save_crop, args.save_labels)
    )
    if args.nosave and not saves_data and not args.view_img:
        raise ValueError(
            "--nosave leaves nothing to do: add --save-txt, --save-csv, --save-json, --save-crop, "
            "--save-labels or --view-img"
        )


if __name__ == "__main__":
    check_command_line(parse_args)  # before the slow imports below
    gc.disable()  # garbage collection would take a fifth of the import time

import torch

from data import Choices, open_data
from data.formats.writers import WRITERS
from data.formats.writers.detections import DetectionLabels
from data.layouts import images_to_detect_in
from data.sources import VIDEO_SUFFIXES, is_live, open_source
from models import HighestScore, LoadedDetector, ReachedLimits, count_text, load
from utils.distributed.devices import describe
from utils.distributed.launch import read_rank_info
from utils.files import checkpoint_file
from utils.files.folders import new_run_folder, require_writable
from utils.images.detections import Frame, ImageDetections
from utils.log import RunLog
from utils.loggers.terminal_lines import TerminalSink
from utils.outputs import Outputs, open_outputs
from utils.outputs.interrupts import end_on_signals
from utils.outputs.window import WindowClosed, require_display
from utils.printable import counted, did_you_mean
from utils.progress_bar import ProgressBar
from utils.stopwatch import Stopwatch
from utils.terminal import quiet_output, run_and_exit
from utils.threads import map_ahead, prefetch

AHEAD = 2  # batches of frames that are decoded while the model runs
# in which all threads detect at the same time; about as many wait for them or for the outputs
MAX_FRAMES = 32
MAX_BYTES = 2 * 2**30  # of the frames that they detect in, or that wait to be written


def main(args: Namespace) -> Counter[int]:
    """Detect with the flags in args; return the number of detections of each class.

    What the flags ask for is written to the run folder.

    Raises ValueError for invalid input, as `load` and `open_source` do.
    """
    check_flags(args)
    check_label_format(args.save_labels)
    require_writable(Path(args.project), "--project")
    if read_rank_info(os.environ).size > 1:
        raise ValueError(
            "detect.py runs in one process: start one for each part of the images, with its own "
            "--device"
        )
    log = RunLog(active=True, sinks=[TerminalSink()])

    # The model, and what it is to detect in.
    weights = args.weights or [str(checkpoint_file.newest(Path("runs"), "**/weights/best.pt"))]
    cores = torch.get_num_threads()
    threads = detecting_threads(args.source, args.batch_size, cores)
    detector = open_detector(args, weights, threads)
    images = args.source or validation_images(args.data or detector.data)

    if note := ambiguous_classes_note(args.classes or (), detector.names):
        log.say(note)
    log.say(*detector.fixed_settings_notes())
    if args.exist_ok:
        refuse_overwriting(images, Path(args.project) / args.name)
    device = describe(detector.device)
    log.say(f"{', '.join(weights)} on {images}, {detector.size_text}, {device}")

    # Nothing is written before the source is open.
    if args.view_img:
        require_display()
    source = open_source(images, frame_step=args.vid_stride, say=log.say)
    folder = new_run_folder(Path(args.project), args.name, args.exist_ok)
    outputs = open_detection_outputs(args, folder, detector.names, source.inputs)

    # Frames are decoded in one thread, detected in others, and written in this one. Of a live
    # source one frame at a time waits, so that none is old when it is shown.
    watch = Stopwatch()
    decoded_ahead = 1 if is_live(args.source) else AHEAD * args.batch_size
    decoded = prefetch(source, decoded_ahead)
    highest = detector.highest_score()
    results = detect_frames(detector, decoded, args.batch_size, cores, watch, highest)
    detected = prefetch(results, args.batch_size, stop=source.close)
    bar = ProgressBar(detected, total=source.total, title="detect", active=True)

    frames = 0
    counts = Counter[int]()
    limits = ReachedLimits(args.max_det, detector.model_limit)
    with closing(detected), source, closing(outputs), suppress(WindowClosed):
        for frame, detections in bar:
            frames += 1
            counts.update(detections.class_ids.tolist())
            if counts:
                highest.stop()
            limits.add(detections, frame.name)
            outputs.write(frame, detections)

    # What was found, and how fast.
    skipped = f" ({source.skipped} skipped)" if source.skipped else ""
    log.say(f"{counted(frames, 'image')}{skipped}, {count_text(counts, detector.names)}")
    log.say(*limits.sentences())
    if frames and not counts:
        log.say(highest.sentence(frames))
    speed = f"{frames / bar.seconds:.1f} images/s; for each image {watch.describe(frames)}"
    log.say(f"{speed}; threads: {detector.threads}")
    log.say(f"results written to {folder}")
    return counts


def open_detector(args: Namespace, weights: Sequence[str], threads: int) -> LoadedDetector:
    """Return the models in `weights`, with the settings in args, for this many threads."""
    names = None
    if args.data:
        names = open_data(args.data, choices=Choices(val_split=0)).names

    return load(
        weights,
        device=args.device,
        half=args.half,
        head=args.head,
        image_size=args.imgsz,
        confidence=args.conf_thres,
        iou=args.iou_thres,
        max_detections=args.max_det,
        classes=args.classes,
        names=names,
        agnostic=args.agnostic_nms,
        multi_label=args.multi_label or args.save_json,
        augment=args.augment,
        batch_size=args.batch_size,
        threads=threads,
        tile=args.tile,
        tile_overlap=args.tile_overlap,
        tile_whole=args.tile_whole,
    )


def detecting_threads(source: str, batch_size: int, cores: int) -> int:
    """Return the number of threads in which images are detected at the same time on a CPU.

    One for each core, with a batch each: threads that share a batch wait for one another. Fewer for
    large batches, to bound the memory. One with all cores for a single image, and for frames that
    arrive one by one, none of which should wait for the next.
    """
    suffix = os.path.splitext(source)[1].lower()
    is_single_image = os.path.isfile(source) and suffix not in {*VIDEO_SUFFIXES, ".txt"}
    if is_single_image or source == "-" or is_live(source):
        return 1
    return max(1, min(cores, MAX_FRAMES // max(1, batch_size)))


def validation_images(data: str) -> str:
    """Return the validation images of the data set that the model was trained on.

    They are used if no --source is given. Raises ValueError if they cannot be found.
    """
    hint = "give --source: an image, a video, a folder, a camera number or a URL"
    if not data:
        raise ValueError(hint)
    try:
        return str(images_to_detect_in(open_data(data, splits=("val",)), "val"))
    except ValueError as error:
        raise ValueError(
            f"{hint}; there are no validation images to use instead, because {error}"
        ) from None


def refuse_overwriting(source: str, folder: Path) -> None:
    """Raise ValueError if an existing run folder holds the source: outputs would overwrite it."""
    if not os.path.exists(source):
        return
    inside = Path(source).resolve()
    if folder.resolve() in (inside, *inside.parents):
        raise ValueError(
            f"--source {source} is in the run folder {folder}: choose another --project or --name"
        )


def check_label_format(name: str) -> None:
    """Raise ValueError if no format of --save-labels has this name."""
    if name and name not in WRITERS:
        near = did_you_mean(name, WRITERS)
        raise ValueError(f"--save-labels {name}: choose {', '.join(WRITERS)}{near}")


def open_detection_outputs(
    args: Namespace, folder: Path, names: Sequence[str], inputs: Sequence[tuple[str, bool]] | None
) -> Outputs:
    """Return the outputs that the flags in args ask for. inputs: as for `open_outputs`.

    Raises ValueError if the folder has labels of --save-labels already: a person may have corrected
    them.
    """
    further = []
    if args.save_labels:
        labels = folder / "annotations"
        if os.path.lexists(labels):
            raise ValueError(
                f"{labels} exists, and labels are not overwritten: give another --name"
            )
        writer = WRITERS[args.save_labels](labels, names)  # which may refuse the names
        labels.mkdir()
        further.append(DetectionLabels(writer, inputs))

    return open_outputs(
        folder,
        names,
        pictures=not args.nosave,
        text=args.save_txt,
        text_format=args.save_format,
        scores=args.save_conf,
        csv=args.save_csv,
        json=args.save_json,
        crops=args.save_crop,
        window=args.view_img,
        line_width=args.line_thickness or None,
        show_labels=not args.hide_labels,
        show_scores=not args.hide_conf,
        inputs=inputs,
        further=further,
    )


def detect_frames(
    detector: LoadedDetector,
    frames: Iterator[Frame],
    batch_size: int,
    cores: int,
    watch: Stopwatch,
    highest: HighestScore,
) -> Iterator[tuple[Frame, ImageDetections]]:
    """Iterate over the frames with their detections, in order.

    Args:
        detector: as many threads as it is for use it at the same time, each with a batch.
        frames: from which the batches are taken.
        batch_size: frames in a batch.
        cores: of the CPU, which the threads share.
        watch: measures the stages of each thread.
        highest: takes in the scores, until something is found.
    """

    def detect(batch: list[Frame]) -> list[tuple[Frame, ImageDetections]]:
        pixels = [frame.image for frame in batch]
        detections = detector.detect_arrays(
            pixels, channel_order="bgr", watch=watch, highest=highest
        )
        return list(zip(batch, detections, strict=True))

    def take_share_of_cores() -> None:
        torch.set_num_threads(max(1, cores // detector.threads))

    def size_of(batch: list[Frame]) -> int:
        return sum(frame.image.nbytes for frame in batch)

    batches = iter(lambda: list(islice(frames, batch_size)), [])
    detected = map_ahead(
        detect,
        batches,
        detector.threads,
        start=take_share_of_cores,
        size=size_of,
        most=MAX_BYTES,
    )
    for batch in detected:
        yield from batch


def run_script(arguments: Sequence[str] | None = None) -> None:
    """Detect as the command line says, until a signal ends it."""
    args = parse_args(arguments)
    with end_on_signals(), quiet_output(args.quiet):
        main(args)


if __name__ == "__main__":
    gc.enable()
    run_and_exit(run_script)
