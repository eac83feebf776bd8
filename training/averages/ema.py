"""The exponential moving average of a model's weights and statistics."""

import copy
import math
from collections.abc import Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)
MAX_WINDOW = 10000  # steps that are averaged over, 1 / (1 - 0.9999)
SHARE_OF_RUN = 0.05


def ema_constants(steps: int) -> tuple[float, float]:
    """Return (decay, tau) for a run of so many optimizer steps.

    YOLOv5's 0.9999 and 2000 average over 10,000 steps after the first thousands, but over almost
    none in a run of a few hundred. Here a short run averages over a twentieth of its steps; from
    200,000 steps on the values are YOLOv5's.

    >>> ema_constants(400), ema_constants(500_000)
    ((0.95, 20.0), (0.9999, 2000.0))
    """
    window = min(max(steps * SHARE_OF_RUN, 2.0), MAX_WINDOW)
    decay = 1 - 1 / window
    tau = min(window, 2000.0)
    return decay, tau


class EMA(Generic[Model]):
    """A moving average of a model's weights and statistics.

    Update t keeps the fraction d(t) = decay * (1 - exp(-t / tau)) of the average. Floating-point
    parameters and buffers are averaged, integer buffers copied. Source: facts of YOLOv5's behavior.
    """

    def __init__(self, model: Model, decay: float = 0.9999, tau: float = 2000.0) -> None:
        self.model: Model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.tau = tau
        self.updates = 0

        # Listed once: a state dict takes the host longer to build than the GPU needs to update the
        # average.
        self._averaged: dict[str, Tensor] = {}
        self._copied: dict[str, Tensor] = {}
        for key, value in self.model.state_dict().items():
            if value.is_floating_point():
                self._averaged[key] = value
            else:
                self._copied[key] = value

    @torch.no_grad()
    def update(self, state: Mapping[str, Tensor]) -> None:
        """Update the average with a model's state after an optimizer step.

        state: named as in the model's state dict.
        """
        self.updates += 1
        kept = self.decay * (1 - math.exp(-self.updates / self.tau))

        # average <- kept average + (1 - kept) new
        averages = list(self._averaged.values())
        new = [state[key] for key in self._averaged]
        torch._foreach_lerp_(averages, new, 1 - kept)

        if self._copied:
            copies = list(self._copied.values())
            torch._foreach_copy_(copies, [state[key] for key in self._copied])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averaged weights and statistics."""
        return self.model.state_dict()
