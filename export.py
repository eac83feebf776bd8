# PYTHON_ARGCOMPLETE_OK - argcomplete may complete the flags in a shell
"""Export a detector for other runtimes: TorchScript, ONNX, OpenVINO.

    # best.onnx beside best.pt
    python export.py --weights runs/train/exp/weights/best.pt --include onnx

    # any batch size, any image size
    python export.py --weights m.pt --include onnx openvino --img 320 --dynamic

    # detections instead of predictions
    python export.py --weights m.pt --include onnx --nms --conf-thres 0.25

    # 8-bit integers; prints the loss of accuracy
    python export.py --weights m.pt --include openvino --int8 --data mydata.yaml

Every file is loaded again, run in its own runtime, and compared with torch.
docs/export.md describes the formats.
"""

if __name__ == "__main__":
    from utils.startup import prepare_script

    # from here on Ctrl-C prints "interrupted" and no traceback, even during imports
    prepare_script()

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.export import FORMATS
from utils.command_line.yolov5_flags import HINTS, NOT_IN_EXPORT
from utils.flags import FlagParser, check_command_line, check_image_size

# formats of YOLOv5 that other programs convert the ONNX file to
OTHER_FORMATS = ("engine", "coreml", "tflite", "saved_model", "pb", "edgetpu", "tfjs", "paddle")
COMPARED_IMAGES = 8  # on which a file is compared with torch
EVALUATION_BATCH = 8
MAX_LOSS = 0.01  # of mAP, above which 8-bit integers are reported to cost too much


def parse_args(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the flags of a command line, not checked yet."""
    parser = FlagParser(__doc__)
    formats = ", ".join(FORMATS)
    need_gpu = " and ".join(each.title for each in FORMATS.values() if each.half_needs_gpu)

    add = parser.add_argument_group("model and files").add_argument
    add("--weights", nargs="+", default=[], help="checkpoints (default: the newest best.pt)")
    add("--include", nargs="+", default=["torchscript"], help=f"formats: {formats}")
    add(
        "--imgsz",
        "--img",
        "--img-size",
        nargs="+",
        type=int,
        default=[],
        metavar="PX",
        help="height width, or a side",
    )
    add("--batch-size", "--batch", type=int, default=1, help="images per batch, if not --dynamic")
    add(
        "--dynamic",
        action="store_true",
        help="take any batch size, and any height and width that fit the stride",
    )
    add(
        "--head",
        default="",
        help="o2o or o2m, of a model with two heads (default: o2o, which needs no NMS)",
    )
    add(
        "--device",
        default="cpu",
        help='"cpu" or a GPU number, to trace TorchScript and compare with torch',
    )
    add("--opset", type=int, default=17, help="ONNX operator set")
    add(
        "--simplify",
        action="store_true",
        help="accepted for YOLOv5's sake: torch's exporter always simplifies",
    )

    add = parser.add_argument_group("precision").add_argument
    add("--half", action="store_true", help=f"16-bit weights; {need_gpu} needs a GPU")
    add(
        "--int8",
        action="store_true",
        help="8-bit integers, calibrated on the train split of --data",
    )
    add(
        "--data",
        nargs="+",
        default=[],
        help="data set (as for train.py) of the images to compare with torch, and to calibrate "
        "--int8",
    )
    add("--calibration-images", type=int, default=300, help="images of the train split for --int8")
    add("--workers", type=int, default=4, help="max DataLoader workers")
    add(
        "--cache-dir",
        default="",
        help="folder for cached labels (default: the user's cache folder)",
    )

    add = parser.add_argument_group("suppression inside the file").add_argument
    add("--nms", action="store_true", help="put non-maximum suppression into the file")
    add("--conf-thres", "--conf", type=float, default=0.25, help="with --nms: confidence threshold")
    add("--iou-thres", "--iou", type=float, default=0.45, help="with --nms: IoU threshold")
    add(
        "--topk-all",
        "--max-det",
        type=int,
        default=100,
        help="with --nms: max detections per image",
    )
    add(
        "--agnostic-nms",
        action="store_true",
        help="with --nms: boxes of different classes suppress each other",
    )

    add = parser.add_argument_group("output").add_argument
    add("--quiet", action="store_true", help="print errors only")

    parser.refuse(NOT_IN_EXPORT)
    parser.hint(HINTS | {"format": "did you mean --include?"})
    return parser.read(arguments)


def check_flags(args: Namespace) -> None:
    """Raise ValueError for a flag that is out of range or contradicts another."""
    for name in args.include:
        if name in FORMATS:
            continue
        if name in OTHER_FORMATS:
            raise ValueError(
                f"--include {name}: not written by export.py; docs/export.md says how to convert "
                "the ONNX file"
            )
        known = ", ".join(FORMATS)
        raise ValueError(f"--include {name}: choose from {known}; write spaces between several")

    check_image_size(args.imgsz)
    limits = (
        ("--batch-size", args.batch_size, 1, 65536),
        ("--topk-all", args.topk_all, 1, 65536),
        ("--calibration-images", args.calibration_images, 1, 10**6),
        ("--opset", args.opset, LOWEST_OPSET, HIGHEST_OPSET),
        ("--workers", args.workers, 0, 1024),
        ("--iou-thres", args.iou_thres, 0, 1),
        ("--conf-thres", args.conf_thres, 0, 1),
    )
    for flag, value, low, high in limits:
        if not low <= value <= high:
            raise ValueError(f"{flag} {value}: choose {low} to {high}")

    check_precision(args)
    if args.agnostic_nms and not args.nms:
        raise ValueError("--agnostic-nms changes the suppression of --nms: give both")


def check_precision(args: Namespace) -> None:
    """Raise ValueError for a precision that one of the formats of --include does not have."""
    if args.half and args.int8:
        raise ValueError("--half and --int8 exclude each other: choose one")
    with_int8 = []
    half_on_cpu = []
    for name, export_format in FORMATS.items():
        if export_format.int8_packages is not None:
            with_int8.append(name)
        if not export_format.half_needs_gpu:
            half_on_cpu.append(name)

    for name in args.include:
        title = FORMATS[name].title
        if args.int8 and name not in with_int8:
            raise ValueError(
                f"--int8: {title} is not quantized; use --include {' or '.join(with_int8)}"
            )
        if args.half and args.device == "cpu" and name not in half_on_cpu:
            raise ValueError(
                f"--half: 16-bit {title} runs on GPUs only; give --device 0, or --include "
                f"{' '.join(half_on_cpu)}"
            )


if __name__ == "__main__":
    check_command_line(parse_args)  # before the slow imports below

import numpy as np
import torch
from torch import Tensor

from data import Loader, build_evaluation_loader, open_dataset
from data.labels import Labels
from data.splits import Dataset
from models.backends.combined import MergedClasses
from models.export import ExportedBackend, ExportedModel, Suppression, Writer, export_format_of
from models.export.compare import ReferenceBackend, compare, drawn_images
from models.export.onnx.write import HIGHEST_OPSET, LOWEST_OPSET
from models.export.registry import require_packages
from models.loading import description, loaded_from_metadata
from models.weights.kestrel import digest, load_detector
from training.check.evaluated_classes import choose_evaluated_classes
from training.evaluation import evaluate_split
from utils import __version__
from utils.distributed.devices import loader_workers, pick_devices
from utils.distributed.host_copies import to_device
from utils.distributed.launch import RankInfo
from utils.distributed.world import World
from utils.files import checkpoint_file
from utils.files.folders import require_writable
from utils.images.letterbox import fit_to_stride
from utils.log import RunLog, Say
from utils.terminal import FaultError, quiet_output, run_and_exit

CPU = torch.device("cpu")


def main(args: Namespace) -> None:
    """Export.

    Raises ValueError for wrong flags, files or packages, and FaultError if a file differs from
    torch.
    """
    check_flags(args)
    require_packages(args.include, int8=args.int8)
    device = pick_devices(args.device, RankInfo())[0]
    say = RunLog(active=True).say
    if args.simplify:
        say(
            "--simplify: nothing to do, torch's exporter folds constants and removes what is unused"
        )

    for path in args.weights or [checkpoint_file.newest(Path("runs"), "**/weights/best.pt")]:
        export(Path(path), args, device, say)


def export(path: Path, args: Namespace, device: torch.device, say: Say) -> None:
    """Write and check the files of one checkpoint, beside it."""
    require_writable(path.parent, "exported files are written beside the checkpoint:")
    writer = open_writer(path, args, device, say)
    images = open_dataset_images(args, path, writer.model, say)
    if images:
        compared_images = images.spread("val", COMPARED_IMAGES, say)
    else:
        compared_images = drawn_images(writer.model, COMPARED_IMAGES)

    # An 8-bit file is calibrated: images show the range of each map's values. What it loses is
    # measured as mAP.
    calibration: list[Tensor] = []
    map_before = 0.0
    if images and args.int8:
        calibration = images.spread("train", args.calibration_images, say)
        map_before = images.mean_ap(ReferenceBackend(writer.reference))

    def check(file: Path) -> None:
        check_file(file, writer, compared_images, device, say)

    for name in dict.fromkeys(args.include):  # each once
        written = writer.write(name, path, calibration, check)
        say(f"written to {written}")
        if images and args.int8:
            report_loss(written, images, map_before, open_exported(written, device), say)


def open_writer(path: Path, args: Namespace, device: torch.device, say: Say) -> Writer:
    """Return the writer of a checkpoint's files. Raises ValueError as load_detector does."""
    detector, saved = load_detector(path, args.head)
    known = description(path, saved)

    # The size of images: a side, or height and width, of --imgsz or as trained.
    stride = max(detector.strides)
    trained_size = known["image_size"]
    wanted_sides = args.imgsz or [trained_size]
    sides = [fit_to_stride(side, stride, say) for side in wanted_sides]
    known["image_size"] = max(sides)
    canvas = None if args.dynamic else (sides[0], sides[-1])

    # A head that finds each object once has nothing to suppress.
    nms = Suppression(
        confidence=args.conf_thres,
        iou=args.iou_thres if detector.needs_nms else 1.0,
        max_detections=args.topk_all,
        agnostic=args.agnostic_nms,
    )

    precision = "fp32"
    if args.half:
        precision = "fp16"
    if args.int8:
        precision = "int8"

    model = ExportedModel(
        **known,
        stride=stride,
        canvas=canvas,
        batch_size=None if args.dynamic else args.batch_size,
        nms=nms if args.nms else None,
        needs_nms=detector.needs_nms,
        letterbox=detector.letterbox,
        precision=precision,
        digest=digest(detector),
        opset=args.opset,
        torch_version=str(torch.__version__),
        kestrel_version=__version__,
    )

    if note := canvas_note(path, model, trained_size):
        say(note)

    # Only the files of the first head have the checkpoint's own name.
    heads = detector.head.outputs
    if heads:
        say(
            f"{path}: exports the head {args.head or heads[0]}; choose with --head "
            f"({' or '.join(heads)})"
        )
    first_head = heads[0] if heads else ""
    variant = "" if args.head in ("", first_head) else f"_{args.head}"
    fused = detector.to(device).fuse().requires_grad_(False)
    return Writer(fused, model, variant)


def canvas_note(path: Path, model: ExportedModel, trained_size: int) -> str:
    """Return a sentence if the files take images of another size than the checkpoint; else "".

    path: the checkpoint. model: what its files say. trained_size: long side in pixels.
    """
    if model.canvas:
        height, width = model.canvas
        return (
            f"{path}: its files take images of {width} x {height} only, the checkpoint uses "
            "rectangles that fit the images: to compare the two, give the checkpoint "
            f"--img {height} {width} in val.py and detect.py, or export with --dynamic"
        )
    if model.image_size != trained_size:
        return (
            f"{path}: its files use images of {model.image_size} px by default, the checkpoint "
            f"{trained_size} px: to compare the two, give both the same --img"
        )
    return ""


@dataclass(frozen=True)
class DatasetImages:
    """The images of a data set for one model, letterboxed as it takes them."""

    dataset: Dataset
    model: ExportedModel
    workers: int

    def loader(self, labels: Labels, batch_size: int) -> Loader:
        return build_evaluation_loader(
            labels,
            batch_size=batch_size,
            workers=self.workers,
            image_size=self.model.image_size,
            stride=self.model.stride,
            letterbox=self.model.letterbox,
            canvas=self.model.canvas,
        )

    def spread(self, split: str, count: int, say: Say) -> list[Tensor]:
        """Return `count` images, or tiles, evenly spread over the split, in batches of one.

        All of them, if the split has fewer.
        """
        labels = self.dataset.read(split, say)
        positions = np.linspace(0, len(labels) - 1, min(count, len(labels)))
        chosen = np.unique(positions.round().astype(int))
        loader = self.loader(labels.subset(chosen), 1)
        return [to_device(batch.images, CPU) for batch in loader]

    def mean_ap(self, backend: ExportedBackend) -> float:
        """Return COCO's AP on the val split, on the device of `backend`.

        Non-maximum suppression is that of val.py, or of the file.
        """
        # The model with the classes of the data set.
        model = loaded_from_metadata(backend)
        names, class_ids = self.dataset.required_classes(model.names, merged=model.single_class)
        if names is not None:
            model = model.with_classes(names, self.dataset.spec.names)
        evaluated = model.backend
        if self.dataset.single_class:
            evaluated = MergedClasses(evaluated)

        nms = self.model.nms
        limits = {"confidence": nms.confidence, "iou": nms.iou} if nms else {}
        loader = self.loader(self.dataset.labels["val"], EVALUATION_BATCH)
        world = World(evaluated.device)
        result = evaluate_split(evaluated, loader, world, class_ids=class_ids, **limits)
        return result.coco.stats["AP"]


def open_dataset_images(
    args: Namespace, path: Path, model: ExportedModel, say: Say
) -> DatasetImages | None:
    """Return the images of --data, or with --int8 of the checkpoint's own data; None without both.

    Raises ValueError if there is no data for --int8, or as open_dataset does.
    """
    names = args.data
    if args.int8 and not names:
        names = [model.data]
        if not model.data:
            raise ValueError(
                f"{path}: does not name the data set that it was trained on; give --data"
            )
    if not names:
        return None

    dataset = open_dataset(
        names,
        ("train", "val") if args.int8 else ("val",),
        World(CPU),
        say,
        download=False,
        single_class=model.single_class,
        cache_dir=args.cache_dir,
        tile=model.tile,
        tile_overlap=model.tile_overlap,
    )
    choose_evaluated_classes(dataset, str(path), model, known_only=True)
    workers = loader_workers(args.workers, EVALUATION_BATCH, CPU)
    return DatasetImages(dataset, model, workers)


def open_exported(path: Path, device: torch.device) -> ExportedBackend:
    """Return the backend of an exported file, on the device on which it is compared with torch."""
    export_format = export_format_of(path)
    if export_format is None:
        raise TypeError(f"{path} is not an exported file")
    if not export_format.compared_on_device:
        device = CPU
    return export_format.load(path, device, half=False, threads=1)


def check_file(
    path: Path, writer: Writer, images: list[Tensor], device: torch.device, say: Say
) -> None:
    """Compare a file with torch; an 8-bit file only has to load.

    Args:
        path: the file.
        writer: what has written it.
        images: batches to compare on.
        device: as given with --device.
        say: prints the differences.

    Raises FaultError if they differ too much.
    """
    backend = open_exported(path, device)
    if writer.model.precision == "int8":
        return

    differences = compare(backend, ReferenceBackend(writer.reference), images)
    if not differences.acceptable:
        raise FaultError(f"{path.name}: {differences}, which is too much: the file is not kept")
    say(f"{path.name}: {differences}")


def report_loss(
    path: Path, images: DatasetImages, before: float, backend: ExportedBackend, say: Say
) -> None:
    """Print the mAP of the checkpoint and of an 8-bit file.

    Args:
        path: the file.
        images: of the val split.
        before: mAP of the checkpoint.
        backend: of the file.
        say: prints a line.
    """
    after = images.mean_ap(backend)
    loss = before - after
    say(f"{path}: mAP {after:.4f} on the val split, {before:.4f} before: a loss of {loss:.4f}")
    if loss > MAX_LOSS:
        say(
            f"{path}: a loss above {MAX_LOSS} is too much; try the other format, more "
            "--calibration-images, or --half"
        )


def run_script(arguments: Sequence[str] | None = None) -> None:
    args = parse_args(arguments)
    with quiet_output(args.quiet):
        main(args)


if __name__ == "__main__":
    run_and_exit(run_script)
