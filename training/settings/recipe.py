"""--optimizer auto and --hyp auto: optimizer, hyper-parameters and batch size from the data.

docs/recipes.md gives the rules, and the file of measurements that they rest on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from shlex import quote

from training.global_batch import GlobalBatch
from training.schedule import Schedule
from training.settings.hyperparameters import Hyp
from utils.printable import counted

AUTO = "auto"
LONG_RUN = 640_000  # images over all epochs: 10,000 optimizer steps of 64 images
STEPS = 2_000  # wanted in a short run
FEW_STEPS, VERY_FEW_STEPS = 500, 50
MIN_PER_STEP, MAX_PER_STEP = 16, 64  # images
# Images to a step, and to a batch, if more of them leave less than FEW_STEPS. Weights that know all
# classes lose a little in batches of 4.
SMALL_BATCHES = (8, 4)
SMALL_BATCHES_IF_ALL_KNOWN = (8,)
LEARNING_RATES = {"Muon": 0.01, "AdamW": 0.004, "Adam": 0.004}  # in a short run
# Change of the weights, as a share of their RMS, below which a run is said to change nothing.
NOTICEABLE = 0.01
# Hyper-parameters that are named in words.
SHOWN = {"nominal_batch": "{:g} images per optimizer step"}
# Steps x RMS from which the rate is not lowered.
FULL_RATE_IF_NEW_CLASSES, FULL_RATE_IF_ALL_KNOWN = 25.0, 320.0


@dataclass(frozen=True)
class TrainedWeights:
    """Trained weights that a run starts from.

    rms: the median over the convolutions of their root mean square. all_classes: whether they know
    all classes. backbone_only: whether only the backbone is trained, to classify images.
    """

    rms: float
    all_classes: bool
    backbone_only: bool = False

    def describe(self) -> str:
        """Return what the weights know, as text."""
        if self.backbone_only:
            return "a trained backbone, all else random"
        if self.all_classes:
            return "trained weights that know all classes"
        return "trained weights, some classes new"

    def rate_share(self, steps: float) -> float:
        """Return the share of the full learning rate in a run, above 0 and at most 1.

        steps: optimizer steps of the run.
        """
        full_rate = FULL_RATE_IF_ALL_KNOWN if self.all_classes else FULL_RATE_IF_NEW_CLASSES
        return min(steps * self.rms / full_rate, 1)


@dataclass(frozen=True)
class Recipe:
    """An optimizer, hyper-parameters, a batch size, and what they were chosen from, as text.

    batch_size: None to leave it as it is. images, epochs: of a short run, 0 of others. rms: of
    trained weights, else 0. smallest_batch: the smallest that may be chosen for the run.
    """

    optimizer: str
    hyp: Hyp
    reason: str
    batch_size: int | None = None
    images: int = 0
    epochs: int = 0
    rms: float = 0.0
    smallest_batch: int = MIN_PER_STEP

    def describe(self, hyp_file: str, batch_size: int) -> str:
        """Return one line with the flags that reproduce the choice.

        hyp_file: a YAML file that holds `hyp`. batch_size: of the run.
        """
        published = Hyp().as_dict()
        changes = []
        for name, value in self.hyp.as_dict().items():
            if value != published[name]:
                words = SHOWN.get(name, f"{name} {{:g}}")
                changes.append(words.format(value))

        values = "the values of hyp.scratch-low.yaml"
        if changes:
            values = f"hyp.scratch-low.yaml with {', '.join(changes)}"

        flags = f"--optimizer {self.optimizer} --hyp {quote(hyp_file)}"
        if self.batch_size:
            flags += f" --batch-size {batch_size}"
        return f"recipe for {self.reason}: {flags} ({values})"

    def advice(self, batch_size: int) -> str:
        """Return a sentence if a short run has too few optimizer steps, otherwise "".

        Few steps are too few if a smaller batch would make more of them; very few always are.
        """
        if not self.images:
            return ""
        steps = count_steps(self.images, self.epochs, batch_size, self.hyp.nominal_batch)
        reducible = batch_size > self.smallest_batch
        enough = FEW_STEPS if reducible else VERY_FEW_STEPS
        if steps >= enough:
            return ""

        problem = f"only {counted(steps, 'optimizer step')}"
        # A step of AdamW changes each weight by about the rate.
        if steps * self.hyp.lr0 < NOTICEABLE * self.rms:
            problem += ", which leave the trained weights nearly as they are"

        better = "more --epochs or a smaller --batch-size" if reducible else "more --epochs"
        return f"{problem}: use {better}"


def choose_recipe(
    optimizer: str,
    *,
    images: int,
    epochs: int,
    classes: int,
    trained: TrainedWeights | None,
    sharded: bool,
    batch_size: int | None = None,
    processes: int = 1,
    unit: str = "image",
) -> Recipe:
    """Return the optimizer, hyper-parameters and batch size of --hyp auto.

    1. Optimizer, if it is "auto": SGD for long runs; for short ones Muon from random weights, AdamW
       from trained ones or if sharded.
    2. SGD, chosen or asked for, trains with YOLOv5's published recipe for COCO,
       hyp.scratch-low.yaml.
    3. Long runs with another optimizer differ from it in the learning rate only.
    4. Short runs: the fewer images there are over all epochs, the fewer to an optimizer step.
       Batches are of 8 if 16 leave less than 500 steps, and of 4 if 8 do, unless the weights know
       all classes.
    5. Short runs from trained weights: a learning rate in proportion to the steps and the weights'
       RMS, up to the full one; more would change most of each weight, which such a run has no time
       to learn again. If the weights know all classes, it also starts without the high rate of
       biases.

    Args:
        optimizer: a name, or "auto".
        images: of the run, or tiles.
        epochs: of the run.
        classes: of the run.
        trained: the trained weights that it starts from, None for random ones.
        sharded: whether weights are sharded, which Muon cannot step.
        batch_size: None if it may be chosen; -1, to be measured, counts as MAX_PER_STEP.
        processes: that share each batch, or devices of DataParallel.
        unit: what a sample is.

    >>> run = {"images": 200, "epochs": 100, "classes": 12, "trained": None, "sharded": False}
    >>> chosen = choose_recipe("auto", **run)
    >>> chosen.optimizer, chosen.hyp.lr0, chosen.hyp.nominal_batch
    ('Muon', 0.01, 16.0)
    """
    start = trained.describe() if trained else "random weights"
    run = f"{counted(images, unit)} x {counted(epochs, 'epoch')}"
    reason = f"{run}, {counted(classes, 'class')}, {start}"
    total_images = images * epochs
    is_long = total_images >= LONG_RUN

    # 1. The optimizer.
    if optimizer == AUTO and is_long:
        optimizer = "SGD"
    elif optimizer == AUTO:
        optimizer = "AdamW" if trained or sharded else "Muon"

    # 2. SGD: the published recipe.
    if optimizer == "SGD":
        return Recipe(optimizer, Hyp(), reason)

    # 3. Long runs: with the learning rate of another optimizer.
    full_rate = LEARNING_RATES[optimizer]
    if is_long:
        return Recipe(optimizer, replace(Hyp(), lr0=full_rate), reason)

    # 4. Short runs: fewer images per optimizer step, and smaller batches where few steps are left.
    all_known = trained is not None and trained.all_classes
    small_batches = SMALL_BATCHES_IF_ALL_KNOWN if all_known else SMALL_BATCHES
    # BatchNorm computes with the images of one process, of which there are two or more.
    shared = [size for size in small_batches if size % (2 * processes) == 0]
    allowed = shared
    if batch_size is not None:
        allowed = [size for size in small_batches if 0 < batch_size <= size]
    smallest_step = _smallest_step(total_images, allowed)
    per_step = min(max(total_images / STEPS, smallest_step), MAX_PER_STEP)
    short = {"lr0": full_rate, "lrf": 0.05, "nominal_batch": float(round(per_step))}

    # 5. Short runs from trained weights: a lower learning rate.
    if trained:
        expected_batch = MAX_PER_STEP if batch_size == -1 else batch_size or smallest_step
        steps = count_steps(images, epochs, expected_batch, short["nominal_batch"])
        short["lr0"] = float(f"{full_rate * trained.rate_share(steps):.2g}")
        if trained.all_classes:
            short["warmup_bias_lr"] = 0.0

    is_small = smallest_step < MIN_PER_STEP
    chosen_batch = smallest_step if is_small and batch_size is None else None
    rms = trained.rms if trained else 0.0
    return Recipe(
        optimizer,
        replace(Hyp(), **short),
        reason,
        batch_size=chosen_batch,
        images=images,
        epochs=epochs,
        rms=rms,
        smallest_batch=min(shared, default=MIN_PER_STEP),
    )


def _smallest_step(total_images: int, allowed: Sequence[int]) -> int:
    """Return how many images make an optimizer step at least, in a short run.

    allowed: what it may be in place of MIN_PER_STEP, if that leaves few steps, largest first.
    """
    smallest = MIN_PER_STEP
    for size in allowed:
        if total_images < FEW_STEPS * smallest:
            smallest = size
    return smallest


def count_steps(images: int, epochs: int, batch_size: int, nominal_batch: float) -> int:
    """Return a run's optimizer steps, without warm-up; at least 1.

    A batch that is larger than the number of images is reduced, as in the run.

    >>> count_steps(200, 100, 16, 16), count_steps(200, 100, 64, 16), count_steps(1, 60, 8, 8)
    (1250, 312, 60)
    """
    size = GlobalBatch(batch_size).limited_to(images).size
    steps = Schedule(images * epochs // size, epochs, size, nominal_batch).optimizer_steps
    return max(steps, 1)
