"""What --teacher adds to a run: projections of the model, terms of the loss; nothing without it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

import torch
from torch import nn

from models.detector import Detector, count_detecting, count_parameters
from models.losses import Loss
from models.losses.distillation import DistillationLoss, Shared
from models.weights.trained_settings import say_other_size
from training.distillation.matching import Common, match
from training.distillation.teacher import Teacher
from training.distillation.teacher_file import TeacherFile
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

    def add_to(self, criterion: Loss, gain: float) -> Loss:
        """Return the loss with the terms of distillation, or as it is without a teacher.

        gain: of these terms.
        """
        if self.teacher is None or self.shared is None:
            return criterion
        return DistillationLoss(criterion, self.model.head, self.teacher, self.shared, gain)


def open_distillation(
    file: TeacherFile,
    model: Detector,
    names: Sequence[str],
    image_size: int,
    dtype: torch.dtype,
    world: World,
    say: Say,
) -> Distillation:
    """Return what a teacher adds to a run; give the model the projections to the teacher's maps.

    Args:
        file: of the teacher; an empty one for a run without a teacher.
        model: of the run, before it is moved to its device.
        names: of its classes.
        image_size: of the training, in pixels: said if the teacher's was another.
        dtype: of its weights.
        say: logs what the teacher is, and what it teaches.

    Raises ValueError if the two have too little in common.
    """
    detector = file.detector
    if detector is None:
        if model.projections is not None:
            source = printable(model.table["source"])
            raise ValueError(f"{source}: the table has `distillation`, which needs --teacher")
        return Distillation(model, max(model.strides))

    title = f"--teacher {printable(file.path)}"
    try:
        common = match(model, names, detector, file.checkpoint["names"])
    except ValueError as error:
        raise ValueError(f"{title}: {error}") from None

    channels = [0] * len(model.strides)
    for level, teacher_level in common.levels:
        channels[level] = detector.head_channels[teacher_level]
    projections = model.projections  # a resumed model has them
    if projections is None or model.table.get("distillation") != {"channels": channels}:
        projections = model.add_projections(channels)

    own_levels, teacher_levels = zip(*common.levels, strict=True)
    own_classes, teacher_classes = zip(*common.classes, strict=True)
    say(f"{title}: {_describe(detector, projections, model, common)}")
    say_other_size("--teacher", file.path, file.checkpoint, image_size, say)
    return Distillation(
        model,
        lcm(max(model.strides), file.stride),
        Teacher(detector, teacher_levels, teacher_classes, dtype, world),
        Shared(own_levels, own_classes, type(model.head) is type(detector.head)),
    )


def _describe(teacher: Detector, projections: nn.Module, model: Detector, common: Common) -> str:
    """Return what the teacher is, and what it teaches, as text."""
    parameters = count_detecting(teacher)
    added = count_parameters(projections)
    strides = ", ".join(str(model.strides[level]) for level, _ in common.levels)
    classes = f"{len(common.classes)} of {counted(model.num_classes, 'class')}"
    return (
        f"{parameters:,} parameters; teaches maps and boxes at strides {strides} and the scores of "
        f"{classes}; {added:,} parameters of projections, which best.pt does not keep"
    )
