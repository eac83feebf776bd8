"""Muon for the weights of convolutions, AdamW for all other parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the iteration, chosen by its author for few steps
STEPS = 5
RMS = 0.2  # root mean square of an update's entries, in units of the learning rate, as AdamW's
MATRICES = "matrices"  # entry of a group whose parameters are stepped by Muon


class MuonAdamW(torch.optim.AdamW):
    """AdamW, but groups with the entry `matrices` take Muon's step.

    A weight [out, ...] is a matrix [out, rest]. Its step is the Nesterov momentum of its gradient
    with all singular values near 1, times 0.2 sqrt(max(out, rest)), so that one learning rate fits
    both kinds of groups. Weight decay is decoupled, as in AdamW. found_inf, if set, is a flag on
    the device: where it is not 0 nothing changes.

    Source: K. Jordan et al., Muon (kellerjordan.github.io/posts/muon, 2024); scale: arXiv
    2502.16982, equation 4.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        groups = self.param_groups
        for group in groups:
            if group.get(MATRICES):
                self._step_matrices(group)
        try:
            self.param_groups = [group for group in groups if not group.get(MATRICES)]
            return super().step(closure)
        finally:
            self.param_groups = groups

    def _step_matrices(self, group: dict[str, Any]) -> None:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        if not weights:
            return
        for weight in weights:
            if not self.state[weight]:
                # never used, but AdamW expects it when a state is loaded
                self.state[weight]["step"] = torch.zeros(())
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        gradients, buffers = (
            [weight.grad for weight in weights],
            [self.state[weight]["momentum_buffer"] for weight in weights],
        )
        lr, momentum, taken = group["lr"], group["betas"][0], 1.0
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None:
            pairs = zip(buffers, gradients, strict=True)
            # so that the buffers stay as they are
            gradients = [torch.where(found_inf > 0, *pair) for pair in pairs]
            taken = (found_inf == 0).to(gradients[0].dtype)
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        steps = orthogonal_steps(torch._foreach_lerp(gradients, buffers, momentum))
        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"] * taken)
        torch._foreach_mul_(steps, -lr * taken)
        torch._foreach_add_(weights, steps)


def orthogonal_steps(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return Muon's step for each gradient [out, ...]; those of one shape are computed together,
    for fewer kernels.
    """
    steps = list(gradients)
    places: dict[torch.Size, list[int]] = {}
    for place, gradient in enumerate(gradients):
        places.setdefault(gradient.flatten(1).shape, []).append(place)
    for shape, own in places.items():
        matrices = orthogonal(torch.stack([gradients[place].flatten(1) for place in own]))
        for place, matrix in zip(own, matrices * (RMS * max(shape) ** 0.5), strict=True):
            steps[place] = matrix.view_as(gradients[place])
    return steps


def orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices [..., R, C] with the same singular vectors and with singular values of about
    0.7 to 1.2.

    Values far below the largest stay smaller. Muon's iteration X <- (a + b S + c S S) X with S = X
    X^T, but on S, which is small for convolutions, and on the product of the polynomials: a third
    of the time in float32, in which it runs (in float64 for matrices in float64); in bfloat16,
    Muon's usual choice, the products would be too inaccurate.

    >>> orthogonal(torch.diag(torch.tensor([3.0, 1.0]))).diag().gt(0.6).tolist()
    [True, True]
    """
    x = matrices.to(torch.promote_types(matrices.dtype, torch.float32))
    wide = x if x.shape[-2] <= x.shape[-1] else x.mT
    wide = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    first, second, third = COEFFICIENTS
    square = product = wide @ wide.mT
    for step in range(STEPS):
        factor = second * square + third * square @ square
        factor.diagonal(dim1=-2, dim2=-1).add_(first)
        product = factor if step == 0 else factor @ product
        square = factor @ square @ factor if step < STEPS - 1 else square
    wide = product @ wide
    return (wide if x.shape[-2] <= x.shape[-1] else wide.mT).to(matrices.dtype)
