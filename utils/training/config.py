"""The flags of train.py as a frozen record, checked once, stored as plain values."""

from dataclasses import dataclass, field, fields
from typing import Any

from utils.files.folders import cache_folder

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


def require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)


@dataclass(frozen=True)
class TrainConfig:
    """The flags of train.py. Raises ValueError with a sentence for a value that is not allowed."""

    weights: str = ""
    cfg: str = ""
    data: str = "shapes.yaml"
    hyp: str = "hyp.scratch-low.yaml"
    epochs: int = 100
    batch_size: int = 16
    imgsz: int = 640
    rect: bool = False
    resume: str = ""
    nosave: bool = False
    noval: bool = False
    val_period: int = 1
    noautoanchor: bool = False
    noplots: bool = False
    multi_scale: bool = False
    single_cls: bool = False
    optimizer: str = "SGD"
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
    given: frozenset[str] = field(default=frozenset(), compare=False)  # no flag: names of those on the command line

    def __post_init__(self) -> None:
        for name, default in _DEFAULTS.items():  # a checkpoint's values have not passed the command line
            kind, found = type(default), type(getattr(self, name))
            fits = found is kind or (found is int and kind is float)
            require(fits, f"--{name.replace('_', '-')} is a {found.__name__}, expected {kind.__name__}")
        whole = all(type(number) is int for number in self.freeze)
        require(whole, "--freeze holds something else than whole numbers")
        require(self.epochs >= 1, f"--epochs {self.epochs}: train for 1 epoch or more")
        batch = f"--batch-size {self.batch_size}: a batch holds 1 image or more, or -1: what memory holds"
        require(self.batch_size >= 1 or self.batch_size == -1, batch)
        require(32 <= self.imgsz <= 8192, f"--imgsz {self.imgsz}: choose 32 to 8192 pixels")
        require(self.workers >= 0, f"--workers {self.workers}: choose 0 (load in the training process) or more")
        require(self.patience >= 0, f"--patience {self.patience}: choose a number of epochs, or 0 for no early stop")
        require(0 <= self.label_smoothing < 1, f"--label-smoothing {self.label_smoothing}: choose 0 to below 1")
        require(all(n >= 0 for n in self.freeze), f"--freeze {list(self.freeze)}: layer numbers start at 0")
        minutes = f"--save-minutes {self.save_minutes}: choose a number of minutes, or 0 to save after epochs only"
        require(0 <= self.save_minutes < float("inf"), minutes)
        require(self.val_period >= 1, f"--val-period {self.val_period}: choose a number of epochs, 1 or more")
        require(self.close_mosaic >= 0, f"--close-mosaic {self.close_mosaic}: choose a number of epochs, or 0")
        require(0 <= self.seed < 2**63, f"--seed {self.seed}: choose 0 or more")
        require(self.optimizer in ("SGD", "Adam", "AdamW"), f"--optimizer {self.optimizer}: choose SGD, Adam or AdamW")
        amps = ("auto", "fp64", "fp32", "bf16", "fp16")
        require(self.amp in amps, f"--amp {self.amp}: choose one of {', '.join(amps)}")
        modes = ("off", "default", "reduce-overhead", "max-autotune")
        require(self.compile in modes, f"--compile {self.compile}: choose one of {', '.join(modes)}")
        others = [name for name in ("rect", "multi_scale", "shard", "checkpoint_activations") if getattr(self, name)]
        alone = f"--compile and --{' --'.join(others).replace('_', '-')} exclude each other"
        require(self.compile == "off" or not others, alone)
        caches = ("auto", "ram", "disk", "device", "off")
        require(self.cache in caches, f"--cache {self.cache}: choose one of {', '.join(caches)}")
        require(not (self.shard and self.amp == "fp16"), "--shard and --amp fp16 exclude each other: choose bf16")
        require(not (self.rect and self.multi_scale), "--rect and --multi-scale exclude each other")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for YAML files and checkpoints."""
        values = {name: getattr(self, name) for name in _DEFAULTS}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def training(self) -> dict[str, Any]:
        """What the processes of a run must have alike."""
        return {name: value for name, value in self.as_dict().items() if name not in PER_MACHINE}

    # ---- groups of flags, by the names that their builders give them

    def reading(self) -> dict[str, Any]:
        """What `data.open_dataset` takes."""
        return {"download": self.download, "single_class": self.single_cls, "cache_dir": self.cache_dir}

    def caching(self) -> dict[str, Any]:
        """What `data.cache.open_images` takes."""
        return {"where": self.cache, "folder": cache_folder(self.cache_dir), "spills": bool(self.cache_dir)}

    def loading(self) -> dict[str, Any]:
        """What `data.build_loaders` takes."""
        own = {"seed": self.seed, "rect": self.rect, "workers": self.workers}
        return own | {"mosaic_until": self.epochs - self.close_mosaic}

    def learning(self) -> dict[str, Any]:
        """What `build_train_state` takes."""
        own = {"epochs": self.epochs, "cosine": self.cos_lr, "optimizer": self.optimizer}
        patience = 0 if self.noval else self.patience  # nothing is validated that could be better
        return own | {"sync_bn": self.sync_bn, "shard": self.shard, "patience": patience}

    def saving(self) -> dict[str, Any]:
        """What the CheckpointManager takes."""
        minutes = 0 if self.nosave else self.save_minutes
        return {"final_only": self.nosave, "period": self.save_period, "minutes": minutes}

    def validating(self) -> dict[str, Any]:
        """What `val.EpochValidation` takes."""
        return {"epochs": self.epochs, "every": 0 if self.noval else self.val_period}


_DEFAULTS = {field.name: field.default for field in fields(TrainConfig) if field.name != "given"}
