"""Exponential moving average of a model's weights and statistics."""

import copy
import math

import torch
from torch import Tensor, nn


class EMA:
    """A copy of `model` that follows it: update t keeps the share d(t) = decay * (1 - exp(-t / tau)) of the copy.

    Floating-point parameters and buffers are averaged, integer buffers copied. Source: facts of YOLOv5's behaviour.
    """

    def __init__(self, model: nn.Module, decay: float = 0.9999, tau: float = 2000.0) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay, self.tau, self.updates = decay, tau, 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move towards `model`, once per optimizer step."""
        self.updates += 1
        share = 1 - self.decay * (1 - math.exp(-self.updates / self.tau))
        ours, theirs = self.model.state_dict(), model.state_dict()
        averaged = [key for key, value in ours.items() if value.is_floating_point()]
        torch._foreach_lerp_([ours[k] for k in averaged], [theirs[k] for k in averaged], share)
        for key, value in ours.items():
            if not value.is_floating_point():
                value.copy_(theirs[key])

    def state_dict(self) -> dict[str, Tensor]:
        """The copy's weights and statistics."""
        return self.model.state_dict()
