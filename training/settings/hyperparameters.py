"""Hyper-parameters as a frozen dataclass, and their YAML files of `key: number` lines.

A file may name an optimizer too.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from training.settings.config import OPTIMIZER_CHOICES, among, require
from utils.files.writers import write_yaml
from utils.printable import did_you_mean, excerpt, one_line, printable

MAX_HYP_BYTES = 64 * 1024
OPTIMIZER = "optimizer"  # the only key whose value is not a number


@dataclass(frozen=True)
class Hyp:
    """Hyper-parameters, named as in YOLOv5's files.

    The defaults are its "low" set, for small models from scratch. Raises ValueError for a value
    that is not a number or is out of range.
    """

    lr0: float = 0.01
    lrf: float = 0.01
    momentum: float = 0.937
    weight_decay: float = 0.0005
    nominal_batch: float = 64.0  # images per optimizer step
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
    distillation: float = 1.0  # gain of the losses that --teacher adds
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
        """Return plain values, for YAML files and checkpoints."""
        return asdict(self)


_PROBABILITIES = (
    "flipud",
    "fliplr",
    "mosaic",
    "mixup",
    "copy_paste",
    "translate",
    "hsv_h",
    "hsv_s",
    "hsv_v",
)
_LIMITS = {
    **dict.fromkeys(_PROBABILITIES, (0.0, 1.0)),
    "scale": (0.0, 0.99),
    "momentum": (0.0, 0.999),
    "warmup_momentum": (0.0, 0.999),
    "degrees": (0.0, 180.0),
    "shear": (0.0, 89.0),
    "perspective": (0.0, 0.001),
    "anchor_t": (1.000001, 100.0),
    "nominal_batch": (1.0, 1e6),
}

_HIGHEST = 1e6  # limit of all values that are not in _LIMITS
_UNUSED = {"iou_t"}  # in YOLOv5's files, but without effect there and here


def _check_number(name: str, value: object) -> None:
    """Raise ValueError for a value that is not a number or is out of range."""
    if isinstance(value, str):
        raise ValueError(f"{name} is '{excerpt(value)}', expected a number")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is a {type(value).__name__}, expected a number")

    low, high = _LIMITS.get(name, (0.0, _HIGHEST))
    require(low <= value <= high, f"{name} is {value:g}, allowed are {low:g} to {high:g}")


def read_hyp(path: Path) -> tuple[str, Hyp]:
    """Return the optimizer and the hyper-parameters of a YAML file.

    It has lines `key: number`, and `optimizer: name`. The optimizer is "auto" if the file names
    none; missing numbers keep their defaults. Raises ValueError, with the file and the line, for an
    unknown or repeated key, and for a value that is not allowed.
    """
    known = {OPTIMIZER, *(field.name for field in fields(Hyp))}
    given: dict[str, Any] = {}
    for line, key, value in _flat_yaml(path):
        where = f"{printable(path)} line {line}"
        if key not in known | _UNUSED:
            keys = ", ".join(sorted(known)) + did_you_mean(key, known)
            raise ValueError(f"{where}: unknown key '{excerpt(key)}'; known keys are {keys}")
        require(key not in given, f"{where}: {key} is given twice")
        try:
            if key == OPTIMIZER:
                _check_optimizer(value)
            else:
                _check_number(key, value)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        given[key] = value

    optimizer = given.pop(OPTIMIZER, "auto")
    used = {key: value for key, value in given.items() if key not in _UNUSED}
    return optimizer, Hyp(**used)


def _check_optimizer(value: float | str) -> None:
    """Raise ValueError for a value that is not the name of an optimizer; "auto" is none."""
    names = OPTIMIZER_CHOICES[1:]
    name = value if isinstance(value, str) else f"{value:g}"
    if name not in names:
        expected = among(names) + did_you_mean(name, names)
        raise ValueError(f"{OPTIMIZER} is '{excerpt(name)}', expected {expected}")


def write_hyp(path: Path, optimizer: str, hyp: Hyp) -> None:
    """Write a file that `read_hyp` reads."""
    write_yaml(path, {OPTIMIZER: optimizer} | hyp.as_dict())


def _flat_yaml(path: Path) -> list[tuple[int, str, float | str]]:
    """Return line, key and value of each entry of a small YAML file.

    A value that is not a plain number stays text. Only YAML's events are read, one by one, and the
    first list, mapping or alias is refused, since aliases can expand without limit. Numbers are
    parsed by Python's float(), since YAML 1.1 reads 1e-3 as text.
    """
    events = _yaml_events(path)
    name = printable(path)

    # The first events start the stream, the document and its mapping.
    first_types = [type(event) for event in islice(events, 3)]
    is_mapping = first_types[2:] == [yaml.MappingStartEvent]
    require(is_mapping, f"{name}: expected `key: number` lines")

    scalars: list[Any] = []  # keys and values in turn
    for event in events:
        if isinstance(event, yaml.MappingEndEvent):
            break
        if not isinstance(event, yaml.ScalarEvent):
            line = event.start_mark.line + 1
            before = f"{excerpt(scalars[-1].value)} holds" if scalars else "found"
            raise ValueError(
                f"{name} line {line}: {before} a list, a mapping or an alias; "
                "expected `key: number` lines"
            )
        scalars.append(event)

    # The last events end the document and the stream.
    last_types = [type(event) for event in islice(events, 2)]
    is_last = last_types[1:] == [yaml.StreamEndEvent]
    require(is_last, f"{name}: holds more than one document")

    entries = []
    for key, value in zip(scalars[::2], scalars[1::2], strict=True):
        entries.append((key.start_mark.line + 1, key.value, _number(value)))
    return entries


def _yaml_events(path: Path) -> Iterator[Any]:
    """Yield YAML's events of a file. Raises ValueError if it is too large or is not YAML."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_HYP_BYTES + 1)
        if len(data) > MAX_HYP_BYTES:
            raise ValueError(
                f"{printable(path)}: larger than {MAX_HYP_BYTES:,} bytes, the limit for this file"
            )
        yield from yaml.parse(data.decode("utf-8-sig"), yaml.SafeLoader)
    except OSError as error:
        raise ValueError(f"{printable(path)}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{printable(path)}: is not YAML: {one_line(error)}") from error


def _number(event: yaml.ScalarEvent) -> float | str:
    """Return a scalar's value, as a number if it is one."""
    is_plain = event.implicit[0]  # not quoted, no tag
    try:
        return float(event.value) if is_plain else event.value
    except ValueError:
        return event.value
