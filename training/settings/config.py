"""The flags of train.py as a frozen dataclass, checked once, stored as plain values."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from utils.flags import check_image_size
from utils.loggers.registry import check_loggers
from utils.metrics.fitness import parse_fitness
from utils.printable import did_you_mean

# fields that may differ between the machines of a run
PER_MACHINE = (
    "data",
    "weights",
    "cfg",
    "hyp",
    "augmentations",
    "teacher",
    "resume",
    "project",
    "name",
    "exist_ok",
    "cache_dir",
    "workers",
    "download",
)

OPTIMIZER_CHOICES = ("auto", "SGD", "Adam", "AdamW", "Muon")
CHOICES = {
    "amp": ("auto", "fp64", "fp32", "bf16", "fp16"),
    "compile": ("off", "default", "reduce-overhead", "max-autotune"),
    "cache": ("auto", "ram", "disk", "device", "off"),
}
# fields with several values
LISTS = (
    "data",
    "data_weights",
    "names",
    "merge",
    "classes",
    "class_weights",
    "freeze",
    "augmentations",
    "teacher",
    "loggers",
)
# flags that make no sense with --add-classes, and why
NOT_WITH_ADD_CLASSES = {
    "cfg": "the model is the checkpoint's",
    "freeze": "all layers of the old model are frozen",
    "single_cls": "new classes are added to those of the checkpoint",
    "image_weights": "it draws images by the AP of all classes, and old ones need no labels",
    "teacher": "the maps that the new classes are read from are frozen",
    "checkpoint_activations": "frozen layers keep no activations",
}
NOT_WITH_COMPILE = ("rect", "multi_scale", "shard", "checkpoint_activations")


def among(names: Sequence[str]) -> str:
    """Return the names as the text of a choice.

    >>> among(["a", "b", "c"])
    'a, b or c'
    """
    return f"{', '.join(names[:-1])} or {names[-1]}"


def flag(name: str) -> str:
    """Return the flag of a field.

    >>> flag("batch_size")
    '--batch-size'
    """
    return f"--{name.replace('_', '-')}"


def require(condition: bool, sentence: str) -> None:
    """Raise ValueError with this sentence unless `condition` is true."""
    if not condition:
        raise ValueError(sentence)


@dataclass(frozen=True)
class TrainConfig:
    """The flags of train.py. Raises ValueError for a value that is not allowed."""

    weights: str = ""
    cfg: str = ""
    add_classes: bool = False
    ignore_old: float = 1.0
    data: tuple[str, ...] = ("shapes.yaml",)
    val_split: float = 0.2
    group: str = ""
    names: tuple[str, ...] = ()
    merge: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    data_weights: tuple[float, ...] = ()
    strict: bool = False
    hyp: str = "auto"
    augmentations: tuple[str, ...] = ()  # a file; in a run also its text
    teacher: tuple[str, ...] = ()  # a file; in a run also its digest
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
    repeat_factor: float = 0.0
    class_weights: tuple[str, ...] = ()
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
    loggers: tuple[str, ...] = ()
    entity: str = ""
    fitness: str = ""
    evolve: int = 0
    resume_evolve: str = ""
    # not a flag: the names of the given flags
    given: frozenset[str] = field(default=frozenset(), compare=False)

    def __post_init__(self) -> None:
        self._check_types()
        self._check_ranges()
        self._check_choices()
        self._check_combinations()

    def _check_types(self) -> None:
        """Raise ValueError for a wrong type: argparse has not checked a checkpoint's values."""
        for name, default in _DEFAULTS.items():
            expected = type(default)
            actual = type(getattr(self, name))
            fits = actual is expected or (actual is int and expected is float)
            require(fits, f"{flag(name)} is a {actual.__name__}, expected {expected.__name__}")
        integers = all(type(number) is int for number in self.freeze)
        require(integers, "--freeze: layer numbers must be whole numbers")
        paths = all(type(path) is str for path in self.data)
        require(paths and bool(self.data), "--data: give one path or more")
        numbers = all(type(weight) in (int, float) for weight in self.data_weights)
        require(numbers, "--data-weights: give numbers")
        texts_of = ("names", "merge", "classes", "class_weights", "augmentations", "teacher")
        for name in (*texts_of, "loggers"):
            texts = all(type(text) is str and text for text in getattr(self, name))
            require(texts, f"{flag(name)}: give texts that are not empty")

    def _check_ranges(self) -> None:
        self._require("epochs", self.epochs >= 1, "train for 1 epoch or more")
        self._require(
            "batch_size",
            self.batch_size >= 1 or self.batch_size == -1,
            "choose 1 or more, or -1 for the largest that fits in memory",
        )
        self._require("val_split", 0 <= self.val_split < 1, "choose 0 (none) to less than 1")

        check_image_size([self.imgsz])
        self._require(
            "tile",
            self.tile == 0 or self.tile >= 32,
            "choose the side of a tile in pixels, 32 or more, or 0 to train on whole images",
        )
        self._require(
            "tile_overlap",
            0 <= self.tile_overlap <= 0.9,
            "choose a fraction of the tile's side from 0 to 0.9",
        )

        self._require(
            "workers",
            self.workers >= 0,
            "choose 0 (load in the training process) or more",
        )
        self._require(
            "patience",
            self.patience >= 0,
            "choose a number of epochs, or 0: no early stopping",
        )

        self._require(
            "label_smoothing",
            0 <= self.label_smoothing < 1,
            "choose a number from 0 to below 1",
        )
        self._require(
            "repeat_factor",
            0 <= self.repeat_factor <= 1,
            "choose the share of images below which a class is rare, up to 1; 0: repeat none",
        )

        self._require(
            "ignore_old",
            0 < self.ignore_old <= 1,
            "choose a score above 0, or 1: nothing is ignored",
        )

        starts_at_0 = all(number >= 0 for number in self.freeze)
        require(starts_at_0, f"--freeze {list(self.freeze)}: layer numbers start at 0")

        self._require(
            "save_minutes",
            0 <= self.save_minutes < float("inf"),
            "choose a number of minutes, or 0 to save after epochs only",
        )
        self._require("val_period", self.val_period >= 1, "choose a number of epochs, 1 or more")

        self._require("close_mosaic", self.close_mosaic >= 0, "choose a number of epochs, or 0")
        self._require("evolve", self.evolve >= 0, "choose a number of trainings, 1 or more")
        self._require("seed", 0 <= self.seed < 2**63, f"choose 0 to {2**63 - 1}")

    def _check_choices(self) -> None:
        if self.optimizer not in OPTIMIZER_CHOICES:
            near = did_you_mean(self.optimizer, OPTIMIZER_CHOICES)
            raise ValueError(
                f"--optimizer {self.optimizer}: choose {among(OPTIMIZER_CHOICES)}{near}"
            )
        check_loggers(self.loggers)
        for name, choices in CHOICES.items():
            allowed = getattr(self, name) in choices
            self._require(name, allowed, f"choose one of {', '.join(choices)}")
        parse_fitness(self.fitness)  # raises ValueError

    def _check_combinations(self) -> None:
        if self.compile != "off":
            contradicting = [flag(name) for name in NOT_WITH_COMPILE if getattr(self, name)]
            named = " ".join(contradicting)
            require(not contradicting, f"--compile and {named} cannot be used together")

        if self.shard:
            fp16 = "--shard and --amp fp16 cannot be used together: choose --amp bf16"
            require(self.amp != "fp16", fp16)
            muon = "--shard and --optimizer Muon cannot be used together: choose AdamW"
            require(self.optimizer != "Muon", muon)

        searches = self.evolve or self.resume_evolve
        require(
            not (self.resume and searches),
            "--resume and --evolve cannot be used together: --resume-evolve continues a search",
        )

        require(
            not self.entity or "wandb" in self.loggers or bool(self.resume or self.resume_evolve),
            f"--entity {self.entity}: is an account of Weights & Biases; give --wandb, too",
        )

        self._check_add_classes()

        require(
            not (self.image_weights and self.repeat_factor),
            "--image-weights and --repeat-factor cannot be used together: both choose how often "
            "images are drawn",
        )
        require(
            not (self.class_weights and self.single_cls),
            "--class-weights and --single-cls cannot be used together: there is one class",
        )
        require(
            not (self.rect and self.multi_scale), "--rect and --multi-scale cannot be used together"
        )

    def _check_add_classes(self) -> None:
        if not self.add_classes:
            given = "ignore_old" in self.given and not self.resume
            require(not given, f"--ignore-old {self.ignore_old:g}: give --add-classes, too")
            return
        require(
            bool(self.weights or self.resume or self.resume_evolve),
            "--add-classes adds classes to a trained model: give its checkpoint with --weights",
        )
        for name, reason in NOT_WITH_ADD_CLASSES.items():
            is_set = getattr(self, name) != _DEFAULTS[name]
            message = f"--add-classes and {flag(name)} cannot be used together: {reason}"
            require(not is_set, message)

    def _require(self, name: str, condition: bool, allowed: str) -> None:
        """Raise ValueError with a flag's value and what is allowed, unless `condition` is true."""
        require(condition, f"{flag(name)} {getattr(self, name)}: {allowed}")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for YAML files and checkpoints."""
        values = {name: getattr(self, name) for name in _DEFAULTS}
        return values | {name: list(values[name]) for name in LISTS}

    def training(self) -> dict[str, Any]:
        """Return the settings that must be the same on all processes of a run."""
        return {name: value for name, value in self.as_dict().items() if name not in PER_MACHINE}

    # ---- settings that follow from several flags

    def has_loggers_beyond(self, given: Collection[str]) -> bool:
        """Return whether loggers, or their account, are not those of the command line.

        given: the flags of the command line.
        """
        from_file = [name for name in ("loggers", "entity") if name not in given]
        return bool(self.loggers) and any(getattr(self, name) for name in from_file)

    @property
    def mosaic_until(self) -> int:
        """The first epoch, counted from 0, without mosaic, mixup and copy-paste."""
        return self.epochs - self.close_mosaic

    @property
    def stopping_patience(self) -> int:
        """Epochs without improvement until early stopping, which needs validations; 0: never."""
        return 0 if self.noval else self.patience

    @property
    def minutes_between_saves(self) -> float:
        """Minutes between saves within an epoch; 0: none."""
        return 0 if self.nosave else self.save_minutes

    @property
    def may_recompute(self) -> bool:
        """Whether --checkpoint-activations would save memory, and can be given."""
        return not self.checkpoint_activations and not self.add_classes and self.compile == "off"

    @property
    def one_shape(self) -> bool:
        """Whether all training batches have images of one shape."""
        return not (self.rect or self.multi_scale)

    @property
    def validate_every(self) -> int:
        """Validate every so many epochs; 0: only the last one."""
        return 0 if self.noval else self.val_period


_DEFAULTS = {field.name: field.default for field in fields(TrainConfig) if field.name != "given"}
