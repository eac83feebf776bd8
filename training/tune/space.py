"""The search space: a YAML file of hyper-parameters and flags with their ranges or choices."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from training.settings.config import LISTS, TrainConfig
from training.settings.hyperparameters import Hyp
from utils.files.yaml_tree import pairs, read_tree, where
from utils.printable import did_you_mean, excerpt, printable

MAX_BYTES = 64 * 1024
MAX_NUMBER = 1e9  # Optuna's samplers cannot draw from ranges of any size
WHAT = "search space"

HYP_DEFAULTS = Hyp().as_dict()
FLAG_DEFAULTS = TrainConfig().as_dict()
# Flags that change what a model learns. With others, trials could not be compared (--data, --seed,
# --fitness), or would not differ (--project, --workers).
FLAGS = (
    "weights",
    "cfg",
    "hyp",
    "epochs",
    "batch_size",
    "imgsz",
    "tile",
    "tile_overlap",
    "rect",
    "multi_scale",
    "optimizer",
    "image_weights",
    "repeat_factor",
    "noautoanchor",
    "sync_bn",
    "cos_lr",
    "label_smoothing",
    "patience",
    "freeze",
    "amp",
    "close_mosaic",
)
ALIASES = {"batch": "batch_size", "img": "imgsz", "img_size": "imgsz"}
KEYS = ("low", "high", "log", "step", "choices")

Value = float | int | bool | str


@dataclass(frozen=True)
class Parameter:
    """A hyper-parameter or a flag of train.py, with choices, or with a range.

    low, high: belong to the range. log: values are drawn uniformly in their logarithm. step:
    between values, 0 for none.
    """

    name: str
    choices: tuple[Value, ...] = ()
    low: float | int = 0
    high: float | int = 0
    log: bool = False
    step: float | int = 0

    def suggest(self, trial: Any) -> Value:
        """Return the value that an Optuna trial suggests."""
        value: Value
        if self.choices:
            value = trial.suggest_categorical(self.name, list(self.choices))
        elif isinstance(self.low, int):
            step = int(self.step) or 1
            value = trial.suggest_int(self.name, self.low, self.high, log=self.log, step=step)
        else:
            step_or_none = self.step or None
            value = trial.suggest_float(
                self.name, self.low, self.high, log=self.log, step=step_or_none
            )
        return value

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, to compare the spaces of two processes."""
        return {**vars(self), "choices": list(self.choices)}


def read_space(path: Path) -> tuple[Parameter, ...]:
    """Return the parameters in a YAML file.

    Its lines are `lr0: {low: 1e-5, high: 0.1, log: true}` or `optimizer: {choices: [SGD, AdamW]}`.
    Raises ValueError, with the file and the line, for an unknown key and a value that train.py does
    not allow.
    """
    name = printable(path)
    root = read_tree(path, path, WHAT, MAX_BYTES)
    if not isinstance(root, MappingNode) or not root.value:
        raise ValueError(
            f"{name}: expected lines such as `lr0: {{low: 1e-5, high: 0.1, log: true}}`"
        )

    parameters: dict[str, Parameter] = {}
    for key, node in pairs(root, path, f"a {WHAT}"):
        place = where(path, node)
        try:
            own = _parameter_name(key)
            if own in parameters:
                raise ValueError(f"{own} is given twice")
            parameters[own] = _parameter(own, node, path)
            _check(parameters[own])
        except ValueError as error:
            if str(error).startswith(f"{name} line "):
                raise
            raise ValueError(f"{place}: {error}") from None
    return tuple(parameters.values())


def _parameter_name(key: str) -> str:
    """Return the hyper-parameter or flag of a key. Raises ValueError if there is none."""
    name = key.lstrip("-").replace("-", "_")
    name = ALIASES.get(name, name)
    if name in HYP_DEFAULTS or name in FLAGS:
        return name
    if name in FLAG_DEFAULTS:
        raise ValueError(f"'{excerpt(key)}' is the same in all trials: give it on the command line")
    known = (*HYP_DEFAULTS, *FLAGS)
    near = did_you_mean(name, known)
    raise ValueError(f"unknown key '{excerpt(key)}'{near}; known keys are {', '.join(known)}")


def _parameter(name: str, node: Node, path: Path) -> Parameter:
    """Return the parameter that a value of the file describes."""
    if not isinstance(node, MappingNode):
        raise ValueError(f"{name}: expected {{low: ..., high: ...}} or {{choices: [...]}}")
    given = dict(pairs(node, path, name))
    for key in given:
        if key not in KEYS:
            near = did_you_mean(key, KEYS)
            raise ValueError(
                f"{name}: unknown key '{excerpt(key)}'{near}; expected {', '.join(KEYS)}"
            )

    if "choices" in given:
        if len(given) > 1:
            raise ValueError(f"{name}: choices and a range cannot be given together")
        return Parameter(name, choices=_choices(name, given["choices"]))
    return _range(name, given)


def _choices(name: str, node: Node) -> tuple[Value, ...]:
    if not isinstance(node, SequenceNode) or not node.value:
        raise ValueError(f"{name}: expected choices: [one, another]")
    choices = tuple(_value(name, entry) for entry in node.value)
    if len(set(choices)) < len(choices):
        raise ValueError(f"{name}: a choice is given twice")
    return choices


def _range(name: str, given: Mapping[str, Node]) -> Parameter:
    if isinstance(_default(name), (bool, str)):
        raise ValueError(f"{name}: has no range; give it choices: [...]")
    missing = [key for key in ("low", "high") if key not in given]
    if missing:
        raise ValueError(f"{name}: {' and '.join(missing)} missing")

    low = _value(name, given["low"])
    high = _value(name, given["high"])
    step = _value(name, given["step"]) if "step" in given else 0
    log = "log" in given and _truth(f"{name}: log", given["log"])
    if isinstance(low, str) or isinstance(high, str) or isinstance(step, str):
        raise ValueError(f"{name}: expected numbers")
    if not low < high:
        raise ValueError(f"{name}: low is {low:g} and high is {high:g}; low must be less")
    if log and low <= 0:
        raise ValueError(f"{name}: low is {low:g}; with log: true it must be above 0")
    if log and "step" in given:
        raise ValueError(f"{name}: log and step cannot be given together")
    if "step" in given and not 0 < step <= high - low:
        raise ValueError(f"{name}: step is {step:g}, expected more than 0, up to {high - low:g}")
    return Parameter(name, low=low, high=high, log=log, step=step)


def _default(name: str) -> Value:
    """Return the default of a parameter, whose type its values have."""
    if name in HYP_DEFAULTS:
        return HYP_DEFAULTS[name]
    default = FLAG_DEFAULTS[name]
    return default[0] if name in LISTS else default


def _value(name: str, node: Node) -> Value:
    """Return a value in the file, of the type of the parameter."""
    if not isinstance(node, ScalarNode):
        raise ValueError(f"{name}: a value is a list or a mapping, expected a number or a name")
    default = _default(name)
    text = str(node.value)
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        return _truth(name, node)
    try:
        number = type(default)(text)
    except ValueError:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise ValueError(f"{name} is '{excerpt(text)}', expected {kind}") from None
    if abs(number) > MAX_NUMBER:
        raise ValueError(f"{name} is '{excerpt(text)}', expected up to {MAX_NUMBER:g}")
    return number


def _truth(name: str, node: Node) -> bool:
    text = str(node.value).lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name} is '{excerpt(text)}', expected true or false")
    return text == "true"


def _check(parameter: Parameter) -> None:
    """Raise ValueError if a choice, or an end of the range, is not allowed in train.py."""
    for value in parameter.choices or (parameter.low, parameter.high):
        settings_with(TrainConfig(), {parameter.name: value})


def settings_with(
    flags: TrainConfig, values: Mapping[str, Value]
) -> tuple[TrainConfig, dict[str, float]]:
    """Return flags with values of some parameters, and the values of hyper-parameters.

    Raises ValueError for a value that is not allowed, or does not go with the others.
    """
    of_flags: dict[str, Any] = {}
    of_hyp: dict[str, float] = {}
    for name, value in values.items():
        if name in HYP_DEFAULTS:
            of_hyp[name] = float(value)
        else:
            of_flags[name] = (value,) if name in LISTS else value
    Hyp(**of_hyp)
    given = flags.given | of_flags.keys()
    return replace(flags, **of_flags, given=given), of_hyp
