"""What a run is asked to do, checked once at the door. Both records are frozen, and stored as plain values."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from utils.printable import excerpt, one_line, shown

MOST_HYP_BYTES = 64 * 1024
# Flags that may differ from machine to machine of one run
PLACES = ("data", "weights", "cfg", "hyp", "resume", "project", "name", "exist_ok", "cache_dir", "workers", "download")


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
            _require(fits, f"--{name.replace('_', '-')} is a {found.__name__}, expected {kind.__name__}")
        whole = all(type(number) is int for number in self.freeze)
        _require(whole, "--freeze holds something else than whole numbers")
        _require(self.epochs >= 1, f"--epochs {self.epochs}: train for 1 epoch or more")
        batch = f"--batch-size {self.batch_size}: a batch holds 1 image or more, or -1: what memory holds"
        _require(self.batch_size >= 1 or self.batch_size == -1, batch)
        _require(32 <= self.imgsz <= 8192, f"--imgsz {self.imgsz}: choose 32 to 8192 pixels")
        _require(self.workers >= 0, f"--workers {self.workers}: choose 0 (load in the training process) or more")
        _require(self.patience >= 0, f"--patience {self.patience}: choose a number of epochs, or 0 for no early stop")
        _require(0 <= self.label_smoothing < 1, f"--label-smoothing {self.label_smoothing}: choose 0 to below 1")
        _require(all(n >= 0 for n in self.freeze), f"--freeze {list(self.freeze)}: layer numbers start at 0")
        minutes = f"--save-minutes {self.save_minutes}: choose a number of minutes, or 0 to save after epochs only"
        _require(0 <= self.save_minutes < float("inf"), minutes)
        _require(self.val_period >= 1, f"--val-period {self.val_period}: choose a number of epochs, 1 or more")
        _require(self.close_mosaic >= 0, f"--close-mosaic {self.close_mosaic}: choose a number of epochs, or 0")
        _require(0 <= self.seed < 2**63, f"--seed {self.seed}: choose 0 or more")
        _require(self.optimizer in ("SGD", "Adam", "AdamW"), f"--optimizer {self.optimizer}: choose SGD, Adam or AdamW")
        amps = ("auto", "fp64", "fp32", "bf16", "fp16")
        _require(self.amp in amps, f"--amp {self.amp}: choose one of {', '.join(amps)}")
        modes = ("off", "default", "reduce-overhead", "max-autotune")
        _require(self.compile in modes, f"--compile {self.compile}: choose one of {', '.join(modes)}")
        others = [name for name in ("rect", "multi_scale", "shard", "checkpoint_activations") if getattr(self, name)]
        alone = f"--compile and --{' --'.join(others).replace('_', '-')} exclude each other"
        _require(self.compile == "off" or not others, alone)
        caches = ("auto", "ram", "disk", "device", "off")
        _require(self.cache in caches, f"--cache {self.cache}: choose one of {', '.join(caches)}")
        _require(not (self.shard and self.amp == "fp16"), "--shard and --amp fp16 exclude each other: choose bf16")
        _require(not (self.rect and self.multi_scale), "--rect and --multi-scale exclude each other")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for YAML files and checkpoints."""
        values = {name: getattr(self, name) for name in _DEFAULTS}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def training(self) -> dict[str, Any]:
        """What the processes of a run must have alike."""
        return {name: value for name, value in self.as_dict().items() if name not in PLACES}


_DEFAULTS = {field.name: field.default for field in fields(TrainConfig) if field.name != "given"}


@dataclass(frozen=True)
class Hyp:
    """Hyper-parameters, named as in YOLOv5's files; the defaults are its "low" set, for small models from scratch.

    Raises ValueError with a sentence for a value that is not a number in its range.
    """

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

    def __post_init__(self) -> None:
        for name, value in self.as_dict().items():
            _check_number(name, value)

    def as_dict(self) -> dict[str, float]:
        """Plain values, for YAML files and checkpoints."""
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
_HIGHEST = 1e6  # of what has no limit of its own
_UNUSED = {"iou_t"}  # stands in YOLOv5's files and steers nothing, there or here


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        found = f"'{excerpt(value)}'" if isinstance(value, str) else f"a {type(value).__name__}"
        raise ValueError(f"{name} is {found}, expected a number")
    low, high = _LIMITS.get(name, (0.0, _HIGHEST))
    _require(low <= value <= high, f"{name} is {value:g}, allowed are {low:g} to {high:g}")


def read_hyp(path: Path) -> Hyp:
    """The hyper-parameters of a YAML file of `key: number` lines; keys it leaves out keep their defaults.

    Raises ValueError naming the file and the line for an unknown or repeated key, a value that is no number, or one
    out of its range.
    """
    known = {field.name for field in fields(Hyp)}
    given: dict[str, Any] = {}
    for line, key, value in _flat_yaml(path):
        where = f"{shown(path)} line {line}"
        _require(key in known | _UNUSED, f"{where}: unknown key '{excerpt(key)}'; known are {', '.join(sorted(known))}")
        _require(key not in given, f"{where}: {key} is given twice")
        try:
            _check_number(key, value)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        given[key] = value
    return Hyp(**{key: value for key, value in given.items() if key in known})


def _flat_yaml(path: Path) -> list[tuple[int, str, float | str]]:
    """Line, key and value of each entry of a small YAML file; a value that is no plain number stays text.

    Only YAML's events are looked at, one by one, and the first list, mapping or alias, which could unfold without end,
    is refused. Numbers are read as Python reads them, since YAML 1.1 takes 1e-3 for a text.
    """
    events = _yaml_events(path)
    opening = [type(event) for event in islice(events, 3)]  # of the stream, the document and its mapping
    _require(opening[2:] == [yaml.MappingStartEvent], f"{shown(path)}: expected `key: number` lines")
    inside: list[Any] = []
    for event in events:
        if isinstance(event, yaml.MappingEndEvent):
            break
        if not isinstance(event, yaml.ScalarEvent):
            after = f"{excerpt(inside[-1].value)} holds" if inside else "here is"
            found = f"{shown(path)} line {event.start_mark.line + 1}: {after} a list, a mapping or an alias"
            raise ValueError(f"{found}; expected `key: number` lines")
        inside.append(event)
    closing = [type(event) for event in islice(events, 2)]  # of the document and the stream
    _require(closing[1:] == [yaml.StreamEndEvent], f"{shown(path)}: holds more than one document")
    return [
        (key.start_mark.line + 1, key.value, _number(value))
        for key, value in zip(inside[::2], inside[1::2], strict=True)
    ]


def _yaml_events(path: Path) -> Iterator[Any]:
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_HYP_BYTES + 1)
        if len(data) > MOST_HYP_BYTES:
            raise ValueError(f"{shown(path)}: larger than {MOST_HYP_BYTES:,} bytes, the most such a file may have")
        yield from yaml.parse(data.decode("utf-8-sig"), yaml.SafeLoader)
    except OSError as error:
        raise ValueError(f"{shown(path)}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{shown(path)}: is not YAML: {one_line(error)}") from error


def _number(event: yaml.ScalarEvent) -> float | str:
    plain = event.implicit[0]  # neither quoted nor tagged
    try:
        return float(event.value) if plain else event.value
    except ValueError:
        return event.value
