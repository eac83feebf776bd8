"""A training step on made-up images, to measure how much memory a batch takes (utils/training/autobatch.py)."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from models.assign.targets import pad_targets
from models.detector import Detector
from models.losses import Loss
from utils.distributed.host_copies import to_device
from utils.distributed.precision import autocast_for
from utils.distributed.replica import Replica
from utils.distributed.world import World
from utils.training.autobatch import choose_batch, initialize_state
from utils.training.ema import EMA
from utils.training.optimizers import build_optimizer
from utils.training.state import MAX_GRADIENT_NORM


def trial_step(
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
) -> Callable[[int], None]:
    """Return step(images): one training step, on a copy of the model, of `images` made-up images per device.

    The step takes as much memory as any step of the run can take. optimizer, lr, momentum: as for build_optimizer.
    image_size: the largest image side in pixels, a multiple of the model's largest stride. boxes_per_image: as many as
    in a crowded batch.
    """
    replica = Replica(copy.deepcopy(model).train(), world)
    ema = EMA(replica.model)
    trial_optimizer = build_optimizer(replica.model, optimizer, lr=lr, momentum=momentum, weight_decay=0)
    initialize_state(trial_optimizer)
    devices = max(len(world.devices), 1)

    def step(images: int) -> None:
        random = torch.Generator().manual_seed(0)
        owner = torch.arange(images * devices).repeat_interleave(boxes_per_image)[:, None]
        corners = torch.rand(len(owner), 2, generator=random) * image_size * 0.8
        targets = pad_targets(torch.cat([owner, owner * 0, corners, corners + image_size / 8], 1).to(world.device))
        pixels = torch.zeros(images * devices, image_size, image_size, 3, dtype=torch.uint8)
        with autocast:
            raw = replica(to_device(pixels, world.device, model.dtype))
        criterion.weighted_sum(criterion(raw, targets)).backward()
        nn.utils.clip_grad_norm_(replica.model.parameters(), max_norm=MAX_GRADIENT_NORM)
        trial_optimizer.step()
        ema.update(replica.state_dict())

    return step


def measure_batch(
    model: Detector,
    criterion: Loss,
    precision: torch.dtype,
    world: World,
    say: Callable[[str], None],
    *,
    images: int,
    **trial: Any,
) -> int:
    """Return the largest global batch whose step stays within a share of the free memory, and log its memory use.

    images: number of training images. trial: arguments of `trial_step`. Raises ValueError as `choose_batch` does.
    """
    size, sentence = choose_batch(
        trial_step(model, criterion, autocast_for(precision, world.device), world=world, **trial),
        lambda number: min(world.all_gather_object(number)),
        device=world.device,
        images=images,
        shares=max(world.size, len(world.devices)),
        local_processes=world.local_size,
    )
    say(sentence)
    return size
