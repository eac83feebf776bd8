"""Write the table of docs/models.md: what each small model costs, in torch and exported.

Claim: the milliseconds of an image on two CPU cores grow with the GFLOPs, but not in proportion,
and which runtime is the fastest depends on the model; so they are measured, not derived
(benchmarks/results/).

    python benchmarks/detection/which_model.py --out which_model.md  # all, about 10 minutes
    python benchmarks/detection/which_model.py --models yolov5n.yaml --runtimes torch --sizes 320

Random weights of 80 classes: the time of the forward pass does not depend on their values, and
suppression has nothing to do. An auxiliary branch, which only training computes, is left out. An
image of noise, square, so that each runtime computes the same. Each model and runtime is a process
of its own, which detects in one image at a time with all threads; a round of all sizes warms up.
Exported files take images of any size. Times are from the decoded image to the boxes. Needs onnx,
onnxscript, onnxruntime and openvino; a runtime whose packages are missing is left out.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

import export
from benchmarks.report import add_report_flags, file_report, processor, table, versions
from models import build_model, count_parameters, load
from models.build import count_gflops
from models.detector import Detector
from models.export import FORMATS
from models.tables.rows import without_auxiliary
from utils.files import checkpoint_file

MODELS = (
    "yolox_nano",
    "yolox_tiny",
    "yolox_s",
    "yolov5n",
    "yolov5s",
    "yolov5nu",
    "yolov8n",
    "yolo11n",
    "yolo26n",
    "yolov9t",
    "rtmdet_tiny",
    "rtmdet_s",
)
# COCO AP, as their authors state it, of weights under a free license or an unstated one: README.md.
FREE_AP = {
    "yolox_nano": "25.8 (416 px)",
    "yolox_tiny": "32.8 (416 px)",
    "yolox_s": "40.5",
    "rtmdet_tiny": "41.1 (license not stated)",
    "rtmdet_s": "44.6 (license not stated)",
}
RUNTIMES = {"torch": ".pt", "onnx": ".onnx", "openvino": "_openvino_model"}
TITLES = {"torch": "torch", "onnx": "ONNX", "openvino": "OpenVINO"}
SIZES = (640, 320)
CLASSES = 80
PLACE = ("<!-- the table of which_model.py: begin -->", "<!-- the table of which_model.py: end -->")


class Times(NamedTuple):
    """Milliseconds per image: the median, and the lower and the upper quartile."""

    median: float
    lower: float
    upper: float

    @property
    def spread(self) -> float:
        """How far a quartile is from the median, as a share of it."""
        return max(self.median - self.lower, self.upper - self.median) / self.median


def name_of(model: str) -> str:
    """Return the name of a model without folders and suffix.

    >>> name_of("tables/micro.yaml")
    'micro'
    """
    return Path(model).stem


def file_of(model: str) -> str:
    """Return the table of a model that is given by its name, or by its table.

    >>> file_of("yolov5n"), file_of("tables/micro.yaml")
    ('yolov5n.yaml', 'tables/micro.yaml')
    """
    return model if model.endswith(".yaml") else f"{model}.yaml"


def write_model(model: str, folder: Path, runtimes: Sequence[str]) -> None:
    """Write the checkpoint of a model, and its exported files."""
    torch.manual_seed(0)
    detector = build_model(file_of(model), CLASSES)
    state = {"model": detector.state_dict(), "table": detector.table}
    names = [f"class {number}" for number in range(CLASSES)]
    file = folder / f"{name_of(model)}.pt"
    checkpoint_file.save(file, state | {"names": names, "config": {}, "data": ""})

    exported = [runtime for runtime in runtimes if runtime != "torch"]
    if exported:
        with redirect_stdout(sys.stderr):
            flags = ["--include", *exported, "--dynamic", "--device", "cpu"]
            export.run_script(["--weights", str(file), *flags])


def measure(file: str, sizes: Sequence[int], images: int) -> dict[int, Times]:
    """Return the times of a model's file at each size."""
    random = np.random.default_rng(0)
    times = {}
    for size in sizes:
        detector = load(file, device="cpu", image_size=size)
        image = random.integers(0, 256, (size, size, 3)).astype(np.uint8)
        seconds = []
        for _ in range(5 + images):  # the first ones warm up
            started = time.perf_counter()
            detector.detect_arrays([image], channel_order="bgr")
            seconds.append(time.perf_counter() - started)
        lower, middle, upper = quantiles([1000 * each for each in seconds[5:]], n=4)
        times[size] = Times(middle, lower, upper)
    return times


def measure_in_process(file: Path, options: argparse.Namespace) -> dict[int, Times]:
    """Return the times of a file, measured by another process with `--threads` threads."""
    counts = {"--images": options.images, "--threads": options.threads}
    flags = [str(word) for pair in counts.items() for word in pair]
    sizes = [str(size) for size in options.sizes]
    command = [sys.executable, __file__, "--only", str(file), "--sizes", *sizes, *flags]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{file} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    read = json.loads(done.stdout.splitlines()[-1])
    return {int(size): Times(*values) for size, values in read.items()}


def rows_of(
    models: Sequence[str],
    runtimes: Sequence[str],
    sizes: Sequence[int],
    measured: Mapping[tuple[str, str], Mapping[int, Times]],
) -> list[list[str]]:
    """Return the rows of the table; `-` where nothing was measured.

    Args:
        models: names.
        runtimes, sizes: of the columns.
        measured: the times of a model's name and a runtime, by the size.
    """
    rows = []
    for model in models:
        with torch.device("meta"):  # no weights are needed
            trained = build_model(file_of(model), CLASSES)
            detecting = Detector(without_auxiliary(trained.table))
        parameters = count_parameters(detecting) / 1e6
        gflops = count_gflops(detecting.table, 640)
        name = name_of(model)
        row = [f"`{name}`", f"{parameters:.1f}", f"{gflops:.1f}", FREE_AP.get(name, "none")]
        for size in sizes:
            for runtime in runtimes:
                times = measured.get((name, runtime), {}).get(size)
                row.append(f"{times.median:.1f}" if times else "-")
        rows.append(row)
    return rows


def table_lines(
    models: Sequence[str],
    runtimes: Sequence[str],
    sizes: Sequence[int],
    measured: Mapping[tuple[str, str], Mapping[int, Times]],
    about: str,
) -> list[str]:
    """Return what docs/models.md has between the two comments: the table, and where it is from.

    Args:
        models, runtimes, sizes, measured: as for `rows_of`.
        about: the machine, as text.
    """
    columns = ["`--cfg NAME.yaml`", "million parameters", "GFLOPs, 640 px", "COCO AP, free weights"]
    columns += [f"{TITLES[runtime]}, {size} px" for size in sizes for runtime in runtimes]
    rows = rows_of(models, runtimes, sizes, measured)

    spreads = [times.spread for by_size in measured.values() for times in by_size.values()]
    source = "Milliseconds per image are not measured yet."
    if spreads:
        source = (
            f"Milliseconds per image, medians; {about}. A quartile is at most "
            f"{max(spreads):.0%} from its median."
        )
    return [PLACE[0], "", table(columns, rows), "", source, "", PLACE[1]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the table."""
    options = read_options(arguments)
    if options.only:
        torch.set_num_threads(options.threads)
        times = measure(options.only, options.sizes, options.images)
        print(json.dumps(times))
        return

    runtimes = [name for name in options.runtimes if is_installed(name)]
    end = time.monotonic() + 60 * options.minutes
    measured: dict[tuple[str, str], dict[int, Times]] = {}
    with TemporaryDirectory() as folder:
        for model in options.models:
            if time.monotonic() > end:
                print(f"{model}: left out, after {options.minutes:g} minutes", file=sys.stderr)
                continue
            write_model(model, Path(folder), runtimes)
            for runtime in runtimes:
                file = Path(folder, f"{name_of(model)}{RUNTIMES[runtime]}")
                times = measure_in_process(file, options)
                measured[name_of(model), runtime] = times
                print(f"{model}, {runtime}: {times}", file=sys.stderr, flush=True)

    about = f"{options.about}, {options.threads} threads, {versions()}, {date.today()}"
    lines = table_lines(options.models, runtimes, options.sizes, measured, about)
    file_report(lines, options.out)


def is_installed(runtime: str) -> bool:
    """Whether the packages of a runtime are installed."""
    return runtime == "torch" or all(map(find_spec, FORMATS[runtime].packages))


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    add = parser.add_argument
    add("--models", nargs="+", default=list(MODELS), help="names of tables, or their files")
    add("--runtimes", nargs="+", default=list(RUNTIMES), choices=list(RUNTIMES))
    add("--sizes", type=int, nargs="+", default=list(SIZES), help="sides of the images in pixels")
    add("--images", type=int, default=40, help="images to time, of each size")
    add("--threads", type=int, default=2)
    add("--minutes", type=float, default=10, help="after which no further model is begun")
    add("--only", help=argparse.SUPPRESS)
    add_report_flags(parser)
    parser.set_defaults(about=processor())
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
