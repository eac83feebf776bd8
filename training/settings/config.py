"""The flags of train.py as a frozen dataclass, checked once, stored as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from utils.files.folders import cache_folder
from utils.printable import did_you_mean

PER_MACHINE = (
    "data",
    "weights",
    "cfg",
    "hyp",
    "resume",
    "project",
    "name",
    "exist_ok",
    "cache_dir",
    "workers",
    "download",
)

OPTIMIZER_CHOICES = ("auto", "SGD", "Adam", "AdamW", "Muon")


def among(names: Sequence[str]) -> str:
    """Return the names as a choice.

    >>> among(["a", "b", "c"])
    'a, b or c'
    """
    return f"{', '.join(names[:-1])} or {names[-1]}"


def require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)


@dataclass(frozen=True)
class TrainConfig:
    """The flags of train.py. Raises ValueError for a value that is not allowed."""

    weights: str = ""
    cfg: str = ""
    data: str = "shapes.yaml"
    hyp: str = "auto"
    epochs: int = 100
    batch_size: int = 16
    imgsz: int = 640
    tile: int = 0
    tile_overlap: float = 0.2
    rect: bool = False
    resume: str = ""
    nosave: bool = False
    noval: bool = False
    val_period: int = 1
    noautoanchor: bool = False
    noplots: bool = False
    multi_scale: bool = False
    single_cls: bool = False
    optimizer: str = "auto"
    workers: int = 8
    image_weights: bool = False
    sync_bn: bool = False
    shard: bool = False
    checkpoint_activations: bool = False
    project: str = "runs/train"
    name: str = "exp"
    exist_ok: bool = False
    cos_lr: bool = False
    label_smoothing: float = 0.0
    patience: int = 100
    freeze: tuple[int, ...] = (0,)
    save_period: int = -1
    save_minutes: float = 10.0
    seed: int = 0
    amp: str = "auto"
    compile: str = "off"
    close_mosaic: int = 0
    cache: str = "auto"
    cache_dir: str = ""
    download: bool = False
    # not a flag: the names of the given flags
    given: frozenset[str] = field(default=frozenset(), compare=False)

    def __post_init__(self) -> None:
        # values of a checkpoint were not checked by argparse
        for name, default in _DEFAULTS.items():
            kind, found = type(default), type(getattr(self, name))
            fits = found is kind or (found is int and kind is float)
            require(
                fits, f"--{name.replace('_', '-')} is a {found.__name__}, expected {kind.__name__}"
            )
        integers = all(type(number) is int for number in self.freeze)
        require(integers, "--freeze: layer numbers must be whole numbers")
        require(self.epochs >= 1, f"--epochs {self.epochs}: train for 1 epoch or more")
        batch = (
            f"--batch-size {self.batch_size}: choose 1 or more, or -1 for the largest that "
            "fits in memory"
        )
        require(self.batch_size >= 1 or self.batch_size == -1, batch)
        require(32 <= self.imgsz <= 8192, f"--imgsz {self.imgsz}: choose 32 to 8192 pixels")
        tile = (
            f"--tile {self.tile}: choose the side of a tile in pixels, 32 or more, or 0 to "
            "train on whole images"
        )
        require(self.tile == 0 or self.tile >= 32, tile)
        overlap = (
            f"--tile-overlap {self.tile_overlap}: choose a fraction of the tile's side "
            "from 0 to 0.9"
        )
        require(0 <= self.tile_overlap <= 0.9, overlap)
        require(
            self.workers >= 0,
            f"--workers {self.workers}: choose 0 (load in the training process) or more",
        )
        require(
            self.patience >= 0,
            f"--patience {self.patience}: choose a number of epochs, or 0: no early stopping",
        )
        smoothing = f"--label-smoothing {self.label_smoothing}: choose a number from 0 to below 1"
        require(0 <= self.label_smoothing < 1, smoothing)
        require(
            all(n >= 0 for n in self.freeze),
            f"--freeze {list(self.freeze)}: layer numbers start at 0",
        )
        minutes = (
            f"--save-minutes {self.save_minutes}: choose a number of minutes, or 0 to "
            "save after epochs only"
        )
        require(0 <= self.save_minutes < float("inf"), minutes)
        require(
            self.val_period >= 1,
            f"--val-period {self.val_period}: choose a number of epochs, 1 or more",
        )
        require(
            self.close_mosaic >= 0,
            f"--close-mosaic {self.close_mosaic}: choose a number of epochs, or 0",
        )
        require(0 <= self.seed < 2**63, f"--seed {self.seed}: choose 0 to {2**63 - 1}")
        if self.optimizer not in OPTIMIZER_CHOICES:
            near = did_you_mean(self.optimizer, OPTIMIZER_CHOICES)
            raise ValueError(
                f"--optimizer {self.optimizer}: choose {among(OPTIMIZER_CHOICES)}{near}"
            )
        amps = ("auto", "fp64", "fp32", "bf16", "fp16")
        require(self.amp in amps, f"--amp {self.amp}: choose one of {', '.join(amps)}")
        modes = ("off", "default", "reduce-overhead", "max-autotune")
        require(
            self.compile in modes, f"--compile {self.compile}: choose one of {', '.join(modes)}"
        )
        others = [
            name
            for name in ("rect", "multi_scale", "shard", "checkpoint_activations")
            if getattr(self, name)
        ]
        conflict = f"--compile and --{' --'.join(others).replace('_', '-')} cannot be used together"
        require(self.compile == "off" or not others, conflict)
        caches = ("auto", "ram", "disk", "device", "off")
        require(self.cache in caches, f"--cache {self.cache}: choose one of {', '.join(caches)}")
        fp16 = "--shard and --amp fp16 cannot be used together: choose --amp bf16"
        require(not (self.shard and self.amp == "fp16"), fp16)
        muon = "--shard and --optimizer Muon cannot be used together: choose AdamW"
        require(not (self.shard and self.optimizer == "Muon"), muon)
        require(
            not (self.rect and self.multi_scale), "--rect and --multi-scale cannot be used together"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for YAML files and checkpoints."""
        values = {name: getattr(self, name) for name in _DEFAULTS}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    def training(self) -> dict[str, Any]:
        """The settings that must be the same on all processes of a run."""
        return {name: value for name, value in self.as_dict().items() if name not in PER_MACHINE}

    # ---- groups of flags, as keyword arguments of the functions that they configure

    def reading(self) -> dict[str, Any]:
        """Keyword arguments of `data.open_dataset`."""
        values = {
            "download": self.download,
            "single_class": self.single_cls,
            "cache_dir": self.cache_dir,
        }
        return values | {"tile": self.tile, "tile_overlap": self.tile_overlap}

    def starting(self) -> dict[str, Any]:
        """Keyword arguments of `start_model`."""
        return {"fit": not self.noautoanchor, "seed": self.seed, "download": self.download}

    def caching(self) -> dict[str, Any]:
        """Keyword arguments of `data.cache.open_images`."""
        return {
            "where": self.cache,
            "folder": cache_folder(self.cache_dir),
            "spills": bool(self.cache_dir),
        }

    def loading(self) -> dict[str, Any]:
        """Keyword arguments of `data.build_loaders`."""
        values = {"seed": self.seed, "rect": self.rect, "workers": self.workers}
        return values | {"mosaic_until": self.epochs - self.close_mosaic}

    def learning(self) -> dict[str, Any]:
        """Keyword arguments of `build_train_state`."""
        values = {"epochs": self.epochs, "cosine": self.cos_lr, "optimizer": self.optimizer}
        patience = 0 if self.noval else self.patience  # early stopping needs validations
        return values | {"sync_bn": self.sync_bn, "shard": self.shard, "patience": patience}

    def saving(self) -> dict[str, Any]:
        """Keyword arguments of `CheckpointManager`."""
        minutes = 0 if self.nosave else self.save_minutes
        return {"final_only": self.nosave, "period": self.save_period, "minutes": minutes}

    def validating(self) -> dict[str, Any]:
        """Keyword arguments of `EpochValidation`."""
        return {"epochs": self.epochs, "every": 0 if self.noval else self.val_period}


_DEFAULTS = {field.name: field.default for field in fields(TrainConfig) if field.name != "given"}
