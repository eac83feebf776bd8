"""--optimizer auto and --hyp auto: optimizer, hyper-parameters and batch size from the data and the
run's length.

docs/recipes.md gives the rules, and the measurements that each of them rests on.
"""

from dataclasses import dataclass, replace
from shlex import quote

from training.batch_size.global_batch import GlobalBatch
from training.schedule import Schedule
from training.settings.hyperparameters import Hyp
from utils.printable import counted

AUTO = "auto"
LONG_RUN = 640_000  # images over all epochs: 10,000 optimizer steps of 64 images
STEPS = 2_000  # wanted in a short run
FEW_STEPS, VERY_FEW_STEPS = 500, 50
MIN_PER_STEP, MAX_PER_STEP = 16, 64  # images
SMALLEST_BATCH = 8  # images to a step if 16 leave less than FEW_STEPS
LEARNING_RATES = {"Muon": 0.01, "AdamW": 0.004, "Adam": 0.004}  # in a short run
# change of the weights, as a share of their RMS, below which a run is said to change nothing
NOTICEABLE = 0.01
# hyper-parameters that are named in words
SHOWN = {"nominal_batch": "{:g} images per optimizer step"}
# steps x RMS from which the rate is not lowered
FULL_RATE_IF_NEW_CLASSES, FULL_RATE_IF_ALL_KNOWN = 25.0, 320.0


@dataclass(frozen=True)
class TrainedWeights:
    """Trained weights that a run starts from.

    rms: the median over the convolutions of their root mean square. all_classes: whether they know
    all classes.
    """

    rms: float
    all_classes: bool

    def describe(self) -> str:
        """What the weights know, as text."""
        return (
            "trained weights that know all classes"
            if self.all_classes
            else "trained weights, some classes new"
        )

    def rate_share(self, steps: float) -> float:
        """The share of the full learning rate in a run of so many optimizer steps, above 0, at most
        1.
        """
        return min(
            steps
            * self.rms
            / (FULL_RATE_IF_ALL_KNOWN if self.all_classes else FULL_RATE_IF_NEW_CLASSES),
            1,
        )


@dataclass(frozen=True)
class Recipe:
    """An optimizer, hyper-parameters, a batch size, and what they were chosen from, as text.

    batch_size: None to leave it as it is. images, epochs: of a short run, 0 of others. rms: of
    trained weights, else 0.
    """

    optimizer: str
    hyp: Hyp
    reason: str
    batch_size: int | None = None
    images: int = 0
    epochs: int = 0
    rms: float = 0.0

    def describe(self, hyp_file: str, batch_size: int) -> str:
        """One line with the flags that reproduce the choice. hyp_file: a YAML file that holds
        `hyp`.
        """
        published, own = Hyp().as_dict(), self.hyp.as_dict()
        changes = [
            SHOWN.get(name, f"{name} {{:g}}").format(own[name])
            for name in own
            if own[name] != published[name]
        ]
        values = "the values of hyp.scratch-low.yaml"
        if changes:
            values = f"hyp.scratch-low.yaml with {', '.join(changes)}"
        batch = f" --batch-size {batch_size}" if self.batch_size else ""
        return (
            f"recipe for {self.reason}: --optimizer {self.optimizer} --hyp "
            f"{quote(hyp_file)}{batch} ({values})"
        )

    def advice(self, batch_size: int) -> str:
        """A sentence if a short run has few optimizer steps because of its batch size, or very few;
        "" otherwise.
        """
        if not self.images:
            return ""
        steps = count_steps(self.images, self.epochs, batch_size, self.hyp.nominal_batch)
        reducible = batch_size > SMALLEST_BATCH
        if steps >= (FEW_STEPS if reducible else VERY_FEW_STEPS):
            return ""
        better = "more --epochs or a smaller --batch-size" if reducible else "more --epochs"
        few = f"only {counted(steps, 'optimizer step')}"
        # a step of AdamW changes each weight by about the rate
        if steps * self.hyp.lr0 < NOTICEABLE * self.rms:
            few += ", which leave the trained weights nearly as they are"
        return f"{few}: use {better}"


def choose_recipe(
    optimizer: str,
    *,
    images: int,
    epochs: int,
    classes: int,
    trained: TrainedWeights | None,
    sharded: bool,
    batch_size: int | None = None,
    unit: str = "image",
) -> Recipe:
    """Return the optimizer, hyper-parameters and batch size of --hyp auto.

    optimizer: a name, or "auto". images (or tiles), epochs, classes: of the run. trained: the
    trained weights that it starts from, None for random ones. sharded: whether weights are sharded,
    which Muon cannot step. batch_size: None if it may be chosen; -1, to be measured, counts as
    MAX_PER_STEP. unit: what a sample is.

    - long runs, or SGD asked for: YOLOv5's published recipe for COCO, SGD and hyp.scratch-low.yaml;
      with another optimizer only the learning rate differs
    - short runs from trained weights: a learning rate in proportion to the steps and the weights'
      RMS, up to the full one; more would change most of each weight, which such a run has no time
      to learn again. If the weights know all classes, it also starts without the high rate of
      biases
    - short runs: Muon from random weights, AdamW from trained ones or if sharded; and the fewer
      images there are over all epochs, the fewer to an optimizer step; batches are smaller than 16
      if those leave less than 500 steps

    >>> run = {"images": 200, "epochs": 100, "classes": 12, "trained": None, "sharded": False}
    >>> chosen = choose_recipe("auto", **run)
    >>> chosen.optimizer, chosen.hyp.lr0, chosen.hyp.nominal_batch
    ('Muon', 0.01, 16.0)
    """
    start = trained.describe() if trained else "random weights"
    run = f"{counted(images, unit)} x {counted(epochs, 'epoch')}"
    reason = f"{run}, {counted(classes, 'class')}, {start}"
    seen = images * epochs
    is_long = seen >= LONG_RUN
    if optimizer == AUTO:
        optimizer = "SGD" if is_long else "AdamW" if trained or sharded else "Muon"
    if optimizer == "SGD":
        return Recipe(optimizer, Hyp(), reason)
    rate = LEARNING_RATES[optimizer]
    if is_long:
        return Recipe(optimizer, replace(Hyp(), lr0=rate), reason)
    small = seen < FEW_STEPS * MIN_PER_STEP and (
        batch_size is None or 0 < batch_size <= SMALLEST_BATCH
    )
    per_step = min(max(seen / STEPS, SMALLEST_BATCH if small else MIN_PER_STEP), MAX_PER_STEP)
    short = {"lr0": rate, "lrf": 0.05, "nominal_batch": float(round(per_step))}
    if trained:
        size = (
            MAX_PER_STEP
            if batch_size == -1
            else batch_size or (SMALLEST_BATCH if small else MIN_PER_STEP)
        )
        steps = count_steps(images, epochs, size, short["nominal_batch"])
        short["lr0"] = float(f"{rate * trained.rate_share(steps):.2g}")
        if trained.all_classes:
            short["warmup_bias_lr"] = 0.0
    chosen_size = SMALLEST_BATCH if small and batch_size is None else None
    rms = trained.rms if trained else 0.0
    return Recipe(
        optimizer,
        replace(Hyp(), **short),
        reason,
        chosen_size,
        images=images,
        epochs=epochs,
        rms=rms,
    )


def count_steps(images: int, epochs: int, batch_size: int, nominal_batch: float) -> int:
    """Optimizer steps, without warm-up, of batches that are no larger than the number of images. At
    least 1.

    >>> count_steps(200, 100, 16, 16), count_steps(200, 100, 64, 16), count_steps(1, 60, 8, 8)
    (1250, 312, 60)
    """
    size = GlobalBatch(batch_size).limited_to(images).size
    steps = Schedule(images * epochs // size, epochs, size, nominal_batch).optimizer_steps
    return max(steps, 1)
