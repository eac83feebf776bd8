"""What --teacher adds to a run: projections of the model, terms of the loss; nothing without it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from pathlib import Path

import torch
from torch import nn

from models.detector import Detector, count_parameters
from models.losses import Loss
from models.losses.distillation import DistillationLoss, Shared
from models.weights.kestrel import load_detector
from training.distillation.matching import Common, match
from training.distillation.teacher import Teacher
from utils.distributed.world import World
from utils.log import Say
from utils.printable import counted, printable


@dataclass(frozen=True)
class Distillation:
    """The teacher of a run, None without one, and what the model shares with it.

    stride: image sides must be multiples of it, for the model and for its teacher.
    """

    model: Detector
    stride: int
    teacher: Teacher | None = None
    shared: Shared | None = None

    @property
    def enlarges_stride(self) -> bool:
        """Whether the teacher needs image sides that the model alone does not."""
        return self.teacher is not None and self.stride != max(self.model.strides)

    def add_to(self, criterion: Loss, gain: float) -> Loss:
        """Return the loss with the terms of distillation, or as it is without a teacher.

        gain: of these terms. Raises ValueError for 0, with which a teacher would only cost time.
        """
        if self.teacher is None or self.shared is None:
            return criterion
        if gain == 0:
            raise ValueError("--teacher: the hyper-parameter `distillation` is 0: leave it out")
        return DistillationLoss(criterion, self.model.head, self.teacher, self.shared, gain)


def open_distillation(
    file: str,
    model: Detector,
    names: Sequence[str],
    dtype: torch.dtype,
    world: World,
    say: Say,
) -> Distillation:
    """Return what a teacher adds to a run; give the model the projections to the teacher's maps.

    Args:
        file: the teacher's checkpoint; "" for a run without a teacher.
        model: of the run, before it is moved to its device.
        names: of its classes.
        dtype: of its weights.
        say: logs what the teacher is, and what it teaches.

    Raises ValueError if the file cannot be read, or the two have too little in common.
    """
    if not file:
        if model.projections is not None:
            source = printable(model.table["source"])
            raise ValueError(f"{source}: the table has `distillation`, which needs --teacher")
        return Distillation(model, max(model.strides))

    detector, checkpoint = load_detector(Path(file))
    try:
        common = match(model, names, detector, checkpoint["names"])
    except ValueError as error:
        raise ValueError(f"--teacher {printable(file)}: {error}") from None

    channels = [0] * len(model.strides)
    for level, teacher_level in common.levels:
        channels[level] = detector.head_channels[teacher_level]
    projections = model.projections  # a resumed model has them
    if projections is None or model.table.get("distillation") != {"channels": channels}:
        projections = model.add_projections(channels)

    own_levels, teacher_levels = zip(*common.levels, strict=True)
    own_classes, teacher_classes = zip(*common.classes, strict=True)
    say(f"--teacher {printable(file)}: {_describe(detector, projections, model, common)}")
    return Distillation(
        model,
        lcm(max(model.strides), max(detector.strides)),
        Teacher(detector, teacher_levels, teacher_classes, dtype, world),
        Shared(own_levels, own_classes, type(model.head) is type(detector.head)),
    )


def _describe(teacher: Detector, projections: nn.Module, model: Detector, common: Common) -> str:
    """Return what the teacher is, and what it teaches, as text."""
    parameters = count_parameters(teacher)
    added = count_parameters(projections)
    strides = ", ".join(str(model.strides[level]) for level, _ in common.levels)
    classes = f"{len(common.classes)} of {counted(model.num_classes, 'class')}"
    return (
        f"{parameters:,} parameters; teaches maps and boxes at strides {strides} and the scores of "
        f"{classes}; {added:,} parameters of projections, which best.pt does not keep"
    )
