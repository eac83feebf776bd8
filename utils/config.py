"""What a run is asked to do, checked once at the door. Both records are frozen, and stored as plain values."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml


def _require(condition: bool, sentence: str) -> None:
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
    noautoanchor: bool = False
    noplots: bool = False
    device: str = ""
    multi_scale: bool = False
    single_cls: bool = False
    optimizer: str = "SGD"
    workers: int = 8
    project: str = "runs/train"
    name: str = "exp"
    exist_ok: bool = False
    cos_lr: bool = False
    label_smoothing: float = 0.0
    patience: int = 100
    freeze: tuple[int, ...] = (0,)
    save_period: int = -1
    seed: int = 0
    amp: str = "auto"
    close_mosaic: int = 0
    cache_dir: str = ""

    def __post_init__(self) -> None:
        _require(self.epochs >= 1, f"--epochs {self.epochs}: train for 1 epoch or more")
        _require(self.batch_size >= 1, f"--batch-size {self.batch_size}: a batch holds 1 image or more")
        _require(32 <= self.imgsz <= 8192, f"--imgsz {self.imgsz}: choose 32 to 8192 pixels")
        _require(self.workers >= 0, f"--workers {self.workers}: choose 0 (load in the training process) or more")
        _require(self.patience >= 0, f"--patience {self.patience}: choose a number of epochs, or 0 for no early stop")
        _require(0 <= self.label_smoothing < 1, f"--label-smoothing {self.label_smoothing}: choose 0 to below 1")
        _require(all(n >= 0 for n in self.freeze), f"--freeze {list(self.freeze)}: layer numbers start at 0")
        _require(self.close_mosaic >= 0, f"--close-mosaic {self.close_mosaic}: choose a number of epochs, or 0")
        _require(0 <= self.seed < 2**63, f"--seed {self.seed}: choose 0 or more")
        _require(self.optimizer in ("SGD", "Adam", "AdamW"), f"--optimizer {self.optimizer}: choose SGD, Adam or AdamW")
        amps = ("auto", "fp32", "bf16", "fp16")
        _require(self.amp in amps, f"--amp {self.amp}: choose one of {', '.join(amps)}")
        _require(not (self.rect and self.multi_scale), "--rect and --multi-scale exclude each other")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for YAML files and checkpoints."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class Hyp:
    """Hyper-parameters, named as in YOLOv5's files; the defaults are its "low" set, for small models from scratch."""

    lr0: float = 0.01
    lrf: float = 0.01
    momentum: float = 0.937
    weight_decay: float = 0.0005
    warmup_epochs: float = 3.0
    warmup_momentum: float = 0.8
    warmup_bias_lr: float = 0.1
    box: float = 0.05
    cls: float = 0.5
    cls_pw: float = 1.0
    obj: float = 1.0
    obj_pw: float = 1.0
    anchor_t: float = 4.0
    anchors: float = 0.0  # per level; 0 keeps the model's
    fl_gamma: float = 0.0
    hsv_h: float = 0.015
    hsv_s: float = 0.7
    hsv_v: float = 0.4
    degrees: float = 0.0
    translate: float = 0.1
    scale: float = 0.5
    shear: float = 0.0
    perspective: float = 0.0
    flipud: float = 0.0
    fliplr: float = 0.5
    mosaic: float = 1.0
    mixup: float = 0.0
    copy_paste: float = 0.0

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


_PROBABILITIES = ("flipud", "fliplr", "mosaic", "mixup", "copy_paste", "translate", "hsv_h", "hsv_s", "hsv_v")
_LIMITS = {
    **dict.fromkeys(_PROBABILITIES, (0.0, 1.0)),
    "scale": (0.0, 0.99),
    "momentum": (0.0, 0.999),
    "warmup_momentum": (0.0, 0.999),
    "degrees": (0.0, 180.0),
    "shear": (0.0, 89.0),
    "perspective": (0.0, 0.001),
    "anchor_t": (1.000001, 100.0),
}
_UNUSED = {"iou_t"}  # stands in YOLOv5's files and steers nothing, there or here


def read_hyp(path: Path) -> Hyp:
    """The hyper-parameters of a YAML file; keys it leaves out keep their defaults.

    Raises ValueError naming the file and the key for an unknown key, a value that is no number, or one out of range.
    """
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from error
    _require(isinstance(given, dict), f"{path}: expected `key: number` lines, found {type(given).__name__}")
    known = {field.name for field in fields(Hyp)}
    for key, value in given.items():
        _require(key in known | _UNUSED, f"{path}: unknown key {key!r}; known are {', '.join(sorted(known))}")
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        _require(number, f"{path}: {key} is {value!r}, expected a number")
        low, high = _LIMITS.get(key, (0.0, 1e6))
        _require(low <= value <= high, f"{path}: {key} is {value}, allowed are {low:g} to {high:g}")
    return Hyp(**{key: float(value) for key, value in given.items() if key in known})
