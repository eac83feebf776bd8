"""A loss compiled with torch.compile, for the training steps of a compiled model."""

import time

import torch
from torch import Tensor

from models.assign.targets import made_up_targets
from models.detector import Detector
from models.losses.base import Loss
from utils.distributed.replica import preserve_buffers
from utils.distributed.torch_compile import first_failure
from utils.distributed.world import World
from utils.nested import tensors_in

TRIAL_BOXES = (0, 8)  # per image


def compile_halves(criterion: Loss) -> None:
    """Let the first calls with gradients compile the assignment and the terms."""
    criterion.compiled = (torch.compile(criterion.assign), torch.compile(criterion.compute_terms))


def compile_loss(
    criterion: Loss, model: Detector, images: Tensor, autocast: torch.autocast, world: World
) -> str:
    """Compile the two halves of `criterion` for training, and return a message about the result.

    They are compiled once, for any number of targets; the all-reduce between them is not. One
    forward and backward pass for each of two numbers of targets is run as a test. If it fails on
    any process, the loss of all processes runs uncompiled. CUDA graphs are not used: the number of
    targets changes from batch to batch.

    Args:
        model: in training mode; its forward pass is run uncompiled and leaves its buffers
            unchanged.
        images: a batch [B, 3, H, W] of the shape that training uses.
    """
    started = time.perf_counter()
    compile_halves(criterion)

    def trial() -> None:
        for boxes in TRIAL_BOXES:
            with preserve_buffers(model), autocast:
                criterion.begin_batch(images)
                raw = model.forward(images)  # not model(images), which is compiled
            targets = made_up_targets(len(images), boxes, images.shape[-1], images.device)
            # Otherwise torch compiles for this number first, and for any number at the next one.
            torch._dynamo.maybe_mark_dynamic(targets, 0)
            terms = criterion(raw, targets)
            total = criterion.weighted_sum(terms)
            trained = [values for values in tensors_in(raw) if values.requires_grad]
            torch.autograd.grad(total, trained, allow_unused=True)

    failure = first_failure(trial, world)
    if failure:
        criterion.compiled = None
        return f"--compile: torch cannot compile the loss, so it runs uncompiled ({failure})"
    return f"--compile: compiled the loss in {time.perf_counter() - started:.0f} s"
