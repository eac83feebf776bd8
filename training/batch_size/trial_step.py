"""A training step on made-up images, to measure how much memory a batch takes."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.assign.targets import made_up_targets
from models.detector import Detector
from models.losses import Loss
from training.averages.ema import EMA
from training.batch_size.autobatch import initialize_state, is_out_of_memory
from training.compiled_loss import compile_halves
from training.optimizers import build_optimizer
from training.state import MAX_GRADIENT_NORM
from utils.distributed.devices import tuned_convolutions
from utils.distributed.host_copies import to_device
from utils.distributed.replica import Replica
from utils.distributed.world import World

# torch warms a CUDA graph up, records it, and only then runs it in the memory that it keeps
GRAPH_RUNS = 3


class TrialStep:
    """A training step of a copy of the model on made-up images, as many per device as it is given.

    It takes as much memory as any step of the run can take.

    Args:
        model: is copied.
        criterion: the loss.
        autocast: of the forward pass.
        optimizer, lr, momentum: as for build_optimizer.
        image_size: the largest image side in pixels, a multiple of the largest strides of the model
            and its teacher.
        boxes_per_image: as many as in a crowded batch.
        world: with the device, or those of DataParallel.
        draw: takes a number of images and draws them on the device, uint8 [B, H, W, 3], as the run
            does; None: empty images from the host.
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
        draw: Callable[[int], Tensor] | None = None,
    ) -> None:
        self.criterion = criterion
        self.autocast = autocast
        self.world = world
        self.image_size = image_size
        self.boxes_per_image = boxes_per_image
        self.draw = draw

        own_model = copy.deepcopy(model).train()
        self.replica: Replica[Detector] = Replica(own_model, world)
        self.ema = EMA(self.replica.model)
        self.optimizer = build_optimizer(
            self.replica.model, optimizer, lr=lr, momentum=momentum, weight_decay=0
        )
        initialize_state(self.optimizer)

    def __call__(self, images: int) -> None:
        """Run the step, with convolutions that cuDNN has not timed. images: per device."""
        count = images * max(len(self.world.devices), 1)
        targets = made_up_targets(count, self.boxes_per_image, self.image_size, self.world.device)

        # Both are kept until the end of the step, as a batch of the run is.
        pixels = self._pixels(count)
        drawn = to_device(pixels, self.world.device, self.replica.model.dtype)
        scaled = self._scaled(drawn)
        del drawn
        with self.autocast:
            self.criterion.begin_batch(scaled)
            raw = self.replica(scaled)
        terms = self.criterion(raw, targets)
        self.criterion.weighted_sum(terms).backward()
        nn.utils.clip_grad_norm_(self.replica.model.parameters(), max_norm=MAX_GRADIENT_NORM)
        self.optimizer.step()
        self.ema.update(self.replica.live_state())

    def tuned(self, images: int) -> None:
        """Run the step with the convolutions that cuDNN finds fastest, as the run does.

        That takes seconds for each number of images. images: per device.
        """
        with tuned_convolutions(one_shape=True):
            self(images)

    def compiled(self, images: int, mode: str) -> None:
        """Run the step GRAPH_RUNS times with the compiled model, which takes a minute or more.

        It has no effect if torch cannot compile the model. images: per device. mode: of
        torch.compile.
        """
        self.replica.model.compile(mode=mode, dynamic=False)
        compile_halves(self.criterion)
        try:
            for _ in range(GRAPH_RUNS):
                self.tuned(images)
        except Exception as error:
            # Python, Triton and C++ compilers raise errors of any type. The run meets them again,
            # reports them, and trains uncompiled.
            if is_out_of_memory(error):
                raise
        finally:
            self.replica.model._compiled_call_impl = None  # its value before model.compile()
            self.criterion.compiled = None
            torch.compiler.reset()  # frees the memory of CUDA graphs

    def _pixels(self, count: int) -> Tensor:
        """Return images, uint8 [B, H, W, 3]."""
        if self.draw is not None:
            return self.draw(count)
        return torch.zeros(count, self.image_size, self.image_size, 3, dtype=torch.uint8)

    def _scaled(self, images: Tensor) -> Tensor:
        """Return images of the largest size, float [B, 3, H, W].

        --multi-scale enlarges what was drawn.
        """
        side = self.image_size
        if images.shape[-2:] == (side, side):
            return images
        return nn.functional.interpolate(images, (side, side))
