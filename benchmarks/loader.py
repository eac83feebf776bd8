"""What a training batch costs before the model sees it: images a second and core, from files and from caches.

Goal: mosaics of 640 px with the default hyper-parameters, from cached images: five times the 76 images a second and
core that YOLOv5's loader gives uncached (facts of another measurement on such a core); with `--cache device`, where
loader processes plan and the GPU draws, fifteen times. `benchmarks/results/loader_*` says what was measured.

    python benchmarks/loader.py --data mydata.yaml --img 640 --workers 0 1
    python benchmarks/loader.py --data mydata.yaml --img 640 --workers 8 --device 0

Each row is `data.build_train_loader` with the images kept in another place, `--passes` times over the data after one to
warm up, in turns with the others. *A core*: images by the CPU seconds of all processes together, this one's part
included, in which batches are copied. *The clock*: images by the time that passed, until they are on the device. On the
CPU nobody draws the batches of `--cache device`; a GPU does, as torch runs it and compiled.
"""

import argparse
import os
import platform
import sys
import time
from datetime import date
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.pop(1)  # this folder, whose profile.py would hide Python's

import cv2
import torch

from benchmarks.report import file_report
from data import Augmentation, Loader, build_train_loader
from data.cache import CachedImages, DeviceImages, open_images
from data.labels import Labels
from data.sampler import TrainSampler
from data.splits import open_data, read_split
from utils.distributed.devices import describe, pick_devices, wait_for
from utils.distributed.launch import RankInfo
from utils.distributed.world import World
from utils.training.hyperparameters import Hyp

YOLOV5_UNCACHED = 76.0  # images a second and core, mosaics of 640 px
CPU = torch.device("cpu")
PLANNED = ", planned but not drawn"


def nothing(*_: object) -> torch.Tensor:
    return torch.zeros(0)


def loaders(
    labels: Labels, image_size: int, batch_size: int, workers: int, device: torch.device
) -> dict[str, Loader[TrainSampler]]:
    augmentation = Augmentation(**{name: getattr(Hyp(), name) for name in vars(Augmentation())})
    setting = {
        "batch_size": batch_size,
        "image_size": image_size,
        "stride": 32,
        "augmentation": augmentation,
        "seed": 0,
        "workers": workers,
        "device": device,
    }
    cached = open_images({"train": labels}, image_size, where="ram", folder=None, world=World(CPU))["train"]
    if not isinstance(cached, CachedImages):
        raise SystemExit("the images do not fit into the memory")
    there, on_gpu = DeviceImages(cached, device), device.type == "cuda"
    drawn = ["--cache device", "--cache device, compiled"] if on_gpu else [f"--cache device{PLANNED}"]
    places = {"from files": None, "--cache ram": cached, **dict.fromkeys(drawn, there)}
    made = {name: build_train_loader(labels, images=images, **setting) for name, images in places.items()}
    if on_gpu:
        made[drawn[-1]].compile(print)
    else:
        made[drawn[-1]]._draw = nothing
    return made


def cpu_seconds(loader: Loader[TrainSampler]) -> float:
    """Of this process and the loader's."""
    iterator = loader._loader._iterator
    total = time.process_time()
    for worker in getattr(iterator, "_workers", []):
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def one_pass(loader: Loader[TrainSampler], epoch: int, device: torch.device) -> tuple[float, float]:
    """(images by CPU second, images by second) of an epoch."""
    loader.sampler.set_epoch(epoch)
    seconds, clock = cpu_seconds(loader), time.perf_counter()  # no batch is drawn yet, and none is left over
    images = sum(len(batch.indices) for batch in loader)
    wait_for(device)
    return images / max(cpu_seconds(loader) - seconds, 1e-9), images / (time.perf_counter() - clock)


def measure(
    labels: Labels, image_size: int, batch_size: int, workers: int, passes: int, device: torch.device
) -> list[str]:
    made = loaders(labels, image_size, batch_size, workers, device)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
    for epoch in range(passes + 1):
        for name, loader in made.items():
            found[name].append(one_pass(loader, epoch, device))
    lines = []
    for name, each in found.items():
        core, clock = ([run[i] for run in each[1:]] for i in (0, 1))
        drawn = not name.endswith(PLANNED)
        ratio = f"{median(core) / YOLOV5_UNCACHED:.1f}" if image_size == 640 else "-"
        spread = f"{median(core):.0f} ({min(core):.0f} to {max(core):.0f})"
        lines.append(f"| {name} | {workers} | {spread} | {ratio} | {f'{median(clock):.0f}' if drawn else '-'} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", default="shapes.yaml")
    add("--img", type=int, default=640)
    add("--batch", type=int, default=16)
    add("--workers", type=int, nargs="+", default=[0, 1], help="loader processes, 0: this one")
    add("--device", default="cpu", help="cpu, or a GPU's number")
    add("--passes", type=int, default=5)
    add("--about", default=f"{os.cpu_count()} cores {platform.machine()}", help="the hardware, in words")
    add("--out", type=Path, help="file for the report")
    options = parser.parse_args()

    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    spec = open_data(options.data)
    labels, _ = read_split(spec, "train", single=False, cache_dir="", progress=False)
    (device,) = pick_devices(options.device, RankInfo())
    rows = [
        row for n in options.workers for row in measure(labels, options.img, options.batch, n, options.passes, device)
    ]
    where = f"{options.about}; {describe(device)}; OpenCV {cv2.__version__}"
    about = f"{options.img} px, batch {options.batch}, {len(labels)} images; {where}"
    lines = [
        f"# Loader: {about}, {date.today()}",
        "",
        f"Medians (least to most) of {options.passes} passes in turns. Ratio: to YOLOv5's {YOLOV5_UNCACHED:.0f} images "
        f"a second and core, mosaics of 640 px, uncached. Load average at the end {os.getloadavg()[0]:.1f}.",
        "",
        "| images | loader processes | images/s and core | ratio | images/s by the clock |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
    ]
    file_report(lines, options.out)


if __name__ == "__main__":
    main()
