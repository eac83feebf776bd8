"""Speed of the training loader: images per second and core, from files and from caches.

Goal: for 640 px mosaics with the default hyper-parameters, from cached images, 5 times the 76
images/s per core of YOLOv5's loader without a cache (measured separately on such a core); 15 times
with `--cache device`, where loader processes only plan the augmentation and the GPU draws it. The
measurements are in `benchmarks/results/loader_*`.

    python benchmarks/loader.py --data mydata.yaml --img 640 --workers 0 1
    python benchmarks/loader.py --data mydata.yaml --img 640 --workers 8 --device 0

Each row is `data.build_train_loader` with another cache. After one pass over the data for warm-up
it makes `--passes` passes, in turns with the other rows. images/s per core: images divided by the
CPU seconds of all processes, including the copying of batches in this one. images/s by wall time:
until the images are on the device. Batches of `--cache device` are drawn only on a GPU, eagerly and
compiled; on a CPU they are only planned.
"""

import argparse
import os
import sys
import time
from datetime import date
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cv2
import torch

from benchmarks.report import add_report_flags, file_report, table_row
from data import Augmentation, Loader, build_train_loader
from data.cache import CachedImages, DeviceImages, open_base_images
from data.labels import Labels
from data.layouts import open_data
from data.sampler import TrainSampler
from data.splits import read_split
from training.settings.hyperparameters import Hyp
from utils.distributed.devices import describe, pick_devices, wait_for
from utils.distributed.launch import RankInfo
from utils.distributed.world import World

YOLOV5_UNCACHED = 76.0  # images/s per core, 640 px mosaics
CPU = torch.device("cpu")
PLANNED = ", planned but not drawn"


def nothing(*_: object) -> torch.Tensor:
    return torch.zeros(0)


def loaders(
    labels: Labels, image_size: int, batch_size: int, workers: int, device: torch.device
) -> dict[str, Loader[TrainSampler]]:
    """A training loader for each cache, by its name in the report."""
    augmentation = Augmentation(**{name: getattr(Hyp(), name) for name in vars(Augmentation())})
    settings = {
        "batch_size": batch_size,
        "image_size": image_size,
        "stride": 32,
        "augmentation": augmentation,
        "seed": 0,
        "workers": workers,
        "device": device,
    }
    splits = {"train": labels}
    opened = open_base_images(splits, image_size, where="ram", folder=None, world=World(CPU))
    cached = opened["train"]
    if not isinstance(cached, CachedImages):
        raise SystemExit("the decoded images do not fit into memory")

    def built(images: CachedImages | DeviceImages | None) -> Loader[TrainSampler]:
        return build_train_loader(labels, images=images, **settings)

    found = {"from files": built(None), "--cache ram": built(cached)}
    device_images = DeviceImages(cached, device)
    if device.type == "cuda":
        found["--cache device"] = built(device_images)
        compiled = built(device_images)
        compiled.compile(print)
        found["--cache device, compiled"] = compiled
    else:
        planned = built(device_images)
        planned._draw = nothing
        found[f"--cache device{PLANNED}"] = planned
    return found


def cpu_seconds(loader: Loader[TrainSampler]) -> float:
    """CPU seconds used so far by this process and the loader's workers."""
    iterator = loader._loader._iterator
    total = time.process_time()
    for worker in getattr(iterator, "_workers", []):
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def one_pass(loader: Loader[TrainSampler], epoch: int, device: torch.device) -> tuple[float, float]:
    """(images per CPU second, images per second of wall time) of an epoch."""
    loader.sampler.set_epoch(epoch)
    # No batch of this epoch is in work yet.
    cpu_start = cpu_seconds(loader)
    start = time.perf_counter()

    images = sum(len(batch.indices) for batch in loader)
    wait_for(device)
    cpu_s = max(cpu_seconds(loader) - cpu_start, 1e-9)
    wall_s = time.perf_counter() - start
    return images / cpu_s, images / wall_s


def measure(
    labels: Labels,
    image_size: int,
    batch_size: int,
    workers: int,
    passes: int,
    device: torch.device,
) -> list[str]:
    """The rows of the report for one number of workers."""
    by_cache = loaders(labels, image_size, batch_size, workers, device)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in by_cache}
    for epoch in range(passes + 1):
        for name, loader in by_cache.items():
            found[name].append(one_pass(loader, epoch, device))

    lines = []
    for name, runs in found.items():
        timed = runs[1:]  # the first pass warms up
        per_core = [run[0] for run in timed]
        per_second = [run[1] for run in timed]

        spread = f"{median(per_core):.0f} ({min(per_core):.0f} to {max(per_core):.0f})"
        ratio = "-"
        if image_size == 640:
            ratio = f"{median(per_core) / YOLOV5_UNCACHED:.1f}"
        by_wall_time = f"{median(per_second):.0f}"
        if name.endswith(PLANNED):
            by_wall_time = "-"
        lines.append(table_row([name, workers, spread, ratio, by_wall_time]))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", default="shapes.yaml")
    add("--img", type=int, default=640)
    add("--batch", type=int, default=16)
    about_workers = "DataLoader workers; 0: load in this process"
    add("--workers", type=int, nargs="+", default=[0, 1], help=about_workers)
    add("--device", default="cpu", help="cpu, or a GPU's number")
    add("--passes", type=int, default=5)
    add_report_flags(parser)
    options = parser.parse_args()

    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    spec = open_data(options.data)
    labels, _ = read_split(spec, "train", cache_dir="", progress=False)
    (device,) = pick_devices(options.device, RankInfo())

    rows = []
    for workers in options.workers:
        rows += measure(labels, options.img, options.batch, workers, options.passes, device)

    where = f"{options.about}; {describe(device)}; OpenCV {cv2.__version__}"
    about = f"{options.img} px, batch {options.batch}, {len(labels)} images; {where}"
    lines = [
        f"# Loader: {about}, {date.today()}",
        "",
        f"Medians (minimum to maximum) of {options.passes} passes in turns. Ratio: to YOLOv5's "
        f"{YOLOV5_UNCACHED:.0f} images/s per core, 640 px mosaics, uncached. Load average at the "
        f"end {os.getloadavg()[0]:.1f}.",
        "",
        "| images | workers | images/s per core | ratio | images/s by wall time |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
    ]
    file_report(lines, options.out)


if __name__ == "__main__":
    main()
