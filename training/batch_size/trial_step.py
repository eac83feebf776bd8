"""A training step on made-up images, to measure how much memory a batch takes
(training/batch_size/autobatch.py).
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models.assign.targets import made_up_targets
from models.detector import Detector
from models.losses import Loss
from models.losses.compiled import compile_halves
from training.batch_size.autobatch import choose_batch, initialize_state, is_out_of_memory
from training.ema import EMA
from training.optimizers import build_optimizer
from training.state import MAX_GRADIENT_NORM
from utils.distributed.devices import tuned_convolutions
from utils.distributed.host_copies import to_device
from utils.distributed.precision import autocast_for
from utils.distributed.replica import Replica
from utils.distributed.world import World

# torch warms a CUDA graph up, records it, and only then runs it in the memory that it keeps
GRAPH_RUNS = 3


class TrialStep:
    """step(images): one training step, on a copy of the model, of `images` made-up images per
    device.

    The step takes as much memory as any step of the run can take.

    Args:
        optimizer, lr, momentum: as for build_optimizer.
        image_size: the largest image side in pixels, a multiple of the model's largest stride.
        boxes_per_image: as many as in a crowded batch.
        one_shape: whether all batches have one shape, so that cuDNN times its algorithms; some need
            much memory.
        draw: draws so many images on the device, uint8 [B, H, W, 3], as the run does; None: empty
            images of the host.
    """

    def __init__(
        self,
        model: Detector,
        criterion: Loss,
        autocast: torch.autocast,
        *,
        optimizer: str,
        lr: float,
        momentum: float,
        image_size: int,
        boxes_per_image: int,
        world: World,
        one_shape: bool = False,
        draw: Callable[[int], Tensor] | None = None,
    ) -> None:
        self.criterion, self.autocast, self.world = criterion, autocast, world
        self.image_size, self.boxes_per_image, self.one_shape, self.draw = (
            image_size,
            boxes_per_image,
            one_shape,
            draw,
        )
        self.replica: Replica[Detector] = Replica(copy.deepcopy(model).train(), world)
        self.ema = EMA(self.replica.model)
        self.optimizer = build_optimizer(
            self.replica.model, optimizer, lr=lr, momentum=momentum, weight_decay=0
        )
        initialize_state(self.optimizer)

    def __call__(self, images: int) -> None:
        count = images * max(len(self.world.devices), 1)
        targets = made_up_targets(count, self.boxes_per_image, self.image_size, self.world.device)
        with tuned_convolutions(self.one_shape):
            pixels = self._pixels(count)  # kept until the end of the step, like a batch of the run
            with self.autocast:
                raw = self.replica(
                    self._scaled(to_device(pixels, self.world.device, self.replica.model.dtype))
                )
            self.criterion.weighted_sum(self.criterion(raw, targets)).backward()
            nn.utils.clip_grad_norm_(self.replica.model.parameters(), max_norm=MAX_GRADIENT_NORM)
            self.optimizer.step()
            self.ema.update(self.replica.live_state())

    def compiled(self, images: int, mode: str) -> None:
        """The same step of the compiled model, which takes a minute or more; nothing if torch
        cannot compile it.

        It is run three times: torch warms a CUDA graph up, records it, and only then runs it in
        memory of its own.
        """
        self.replica.model.compile(mode=mode, dynamic=False)
        compile_halves(self.criterion)
        try:
            for _ in range(GRAPH_RUNS):
                self(images)
        except Exception as error:
            # Of any type, as in compile_model: then the run reports it, and is not compiled.
            if is_out_of_memory(error):
                raise
        finally:
            self.replica.model._compiled_call_impl = None  # its value before model.compile()
            self.criterion.compiled = None
            torch.compiler.reset()  # frees the memory of CUDA graphs

    def _pixels(self, count: int) -> Tensor:
        """Images, uint8 [B, H, W, 3]."""
        if self.draw is not None:
            return self.draw(count)
        return torch.zeros(count, self.image_size, self.image_size, 3, dtype=torch.uint8)

    def _scaled(self, images: Tensor) -> Tensor:
        """Images of the largest size, float [B, 3, H, W]: --multi-scale enlarges what was drawn."""
        side = self.image_size
        return (
            images
            if images.shape[-2:] == (side, side)
            else nn.functional.interpolate(images, (side, side))
        )


def measure_batch(
    model: Detector,
    criterion: Loss,
    precision: torch.dtype,
    world: World,
    say: Callable[[str], None],
    *,
    images: int,
    compile_mode: Callable[[int], str] | None = None,
    **trial: Any,
) -> int:
    """Return the largest global batch whose step stays within a share of the free memory, and log
    its memory use.

    images: number of training images. compile_mode: for a run with --compile, the mode for so many
    images per device; the batch that was found is then tried with the compiled model too, on a GPU.
    trial: further arguments of TrialStep. Raises ValueError as `choose_batch` does.
    """
    step = TrialStep(model, criterion, autocast_for(precision, world.device), world=world, **trial)
    check: Callable[[int], None] | None = None
    if compile_mode is not None and world.device.type == "cuda" and not world.devices:
        mode_of = compile_mode

        def check(images: int) -> None:
            step.compiled(images, mode_of(images))

    size, sentence = choose_batch(
        step,
        lambda number: min(world.all_gather_object(number)),
        device=world.device,
        images=images,
        shares=max(world.size, len(world.devices)),
        local_processes=world.local_size,
        check=check,
    )
    say(sentence)
    return size
