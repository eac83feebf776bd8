"""What a stage of benchmarks/gpu.py is, what it is given, and what it reports."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils.distributed.devices import pick_devices
from utils.distributed.launch import RankInfo
from utils.distributed.world import World


@dataclass(frozen=True)
class Sizes:
    """How much the stages do. The defaults are for one H100 or H200 with 16 cores."""

    # Data and trainings
    img: int = 640  # pixels of a side
    train_images: int = 768
    val_images: int = 128
    model: str = "yolov5n.yaml"  # trained, exported, validated
    batch: int = 64
    epochs: int = 8
    workers: int = 15
    autobatch_model: str = "yolov5s.yaml"

    # Checks of correctness
    check_models: tuple[str, ...] = (
        "yolov5n.yaml",
        "yolox_nano.yaml",
        "yolo11n.yaml",
        "yolo26n.yaml",
    )  # of each head
    check_img: int = 320
    check_batch: int = 8
    long_check_batch: int = 32  # of the checks that train on the data
    graph_model: str = "yolov5n.yaml"  # compiled with CUDA graphs
    resume_epochs: int = 3
    save_minutes: float = 0.01  # between checkpoints of the run that is killed

    # Speed: the most telling batch size first, in case that time runs out
    models: tuple[str, ...] = (
        "yolov5n.yaml",
        "yolov5s.yaml",
        "yolov5m.yaml",
        "yolo11n.yaml",
        "yolo26n.yaml",
        "yolox_nano.yaml",
    )
    batches: tuple[int, int, int] = (64, 16, 128)
    steps: int = 15
    loader_passes: int = 2
    copy_bytes: int = 2 * 2**30  # of the copy that measures the memory's bandwidth
    matrix: int = 8192  # rows of the matrix product


SMALL = Sizes(
    img=64,
    train_images=32,
    val_images=8,
    batch=8,
    epochs=2,
    workers=1,
    autobatch_model="yolov5n.yaml",
    check_models=("yolov5n.yaml", "yolox_nano.yaml", "yolo26n.yaml"),
    check_img=64,
    check_batch=4,
    long_check_batch=4,
    resume_epochs=2,
    save_minutes=1e-9,
    models=("yolov5n.yaml", "yolo26n.yaml"),
    batches=(4, 2, 8),
    steps=3,
    loader_passes=1,
    copy_bytes=64 * 2**20,
    matrix=256,
)


@dataclass(frozen=True)
class Scope:
    """What the stages of a run share: the device, the data, and a folder for their files."""

    device: str  # as in --device: "cpu" or a GPU's number
    folder: Path
    sizes: Sizes
    given_data: str = ""  # of --data; "" for generated shapes

    @property
    def world(self) -> World:
        """This process alone, on the device. A stage that starts other processes first must not use
        it before.
        """
        return World(pick_devices(self.device, RankInfo())[0])

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def data(self) -> str:
        """The data YAML."""
        return self.given_data or str(self.folder / "shapes.yaml")

    @property
    def cache(self) -> Path:
        """The folder for cached labels and images."""
        return self.folder / "cache"

    @property
    def best(self) -> Path:
        """The checkpoint of the first real training."""
        return self.folder / "runs" / "ram" / "weights" / "best.pt"


@dataclass(frozen=True)
class Finding:
    """A line of a stage's result.

    good: whether what was checked holds; None for a measurement. values: the numbers in the text,
    for the JSON file.
    """

    text: str
    good: bool | None = None
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """A check or measurement that runs in a process of its own.

    A stage that yields its findings one by one keeps those that it had when it is stopped.
    """

    name: str
    about: str
    run: Callable[[Scope], Iterator[Finding]]
    limit_s: float  # it is stopped after this time
    least_s: float = 10.0  # it is left out if less time remains for all stages together
    needs_cuda: bool = False
    packages: tuple[str, ...] = ()  # that must be installed
    after: tuple[str, ...] = ()  # stages whose files it reads: it is skipped unless they passed
    alone: bool = False  # it measures time: nothing else runs meanwhile
