"""Muon for the weights of convolutions, AdamW for all other parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# a, b and c of the iteration, chosen by its author for few steps
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
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

        # AdamW's own step, of the other groups.
        try:
            self.param_groups = [group for group in groups if not group.get(MATRICES)]
            return super().step(closure)
        finally:
            self.param_groups = groups

    def _step_matrices(self, group: dict[str, Any]) -> None:
        """Take Muon's step for the parameters of a group that have a gradient."""
        weights = [weight for weight in group["params"] if weight.grad is not None]
        if not weights:
            return
        for weight in weights:
            state = self.state[weight]
            if not state:
                # never used, but AdamW expects it when a state is loaded
                state["step"] = torch.zeros(())
                state["momentum_buffer"] = torch.zeros_like(weight)
        gradients = [weight.grad for weight in weights]
        buffers = [self.state[weight]["momentum_buffer"] for weight in weights]

        # Without a host read: a skipped step has the buffers as gradients, which leaves the buffers
        # as they are, and the factor 0.
        taken: float | Tensor = 1.0
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None:
            skipped = found_inf > 0
            gradients = [
                torch.where(skipped, buffer, gradient)
                for buffer, gradient in zip(buffers, gradients, strict=True)
            ]
            taken = (found_inf == 0).to(gradients[0].dtype)

        # Nesterov momentum, then the orthogonal step.
        momentum = group["betas"][0]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        nesterov = torch._foreach_lerp(gradients, buffers, momentum)
        steps = orthogonal_steps(nesterov)

        # weights <- (1 - lr decay) weights - lr steps
        lr = group["lr"]
        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"] * taken)
        torch._foreach_mul_(steps, -lr * taken)
        torch._foreach_add_(weights, steps)


def orthogonal_steps(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return Muon's step for each gradient [out, ...].

    Those of one shape are computed together, for fewer kernels.
    """
    positions_of: dict[torch.Size, list[int]] = {}
    for position, gradient in enumerate(gradients):
        shape = gradient.flatten(1).shape  # [out, rest]
        positions_of.setdefault(shape, []).append(position)

    steps = list(gradients)
    for shape, positions in positions_of.items():
        stacked = torch.stack([gradients[position].flatten(1) for position in positions])
        scale = RMS * max(shape) ** 0.5
        scaled = orthogonal(stacked) * scale
        for position, step in zip(positions, scaled, strict=True):
            steps[position] = step.view_as(gradients[position])
    return steps


def orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices [..., R, C] with the same singular vectors, and singular values near 1.

    They are about 0.7 to 1.2; values far below the largest stay smaller.

    Muon iterates X <- (a + b S + c S S) X with S = X X^T. Here the iteration is on S, which is
    small for convolutions, and on the product P of the polynomials, with X = P X0: a third of the
    time in float32, in which it runs (in float64 for matrices in float64). In bfloat16, Muon's
    usual choice, the products would be too inaccurate.

    >>> orthogonal(torch.diag(torch.tensor([3.0, 1.0]))).diag().gt(0.6).tolist()
    [True, True]
    """
    x = matrices.to(torch.promote_types(matrices.dtype, torch.float32))

    # From the shorter side, so that S is small.
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT

    # The Frobenius norm is 1 or less, so that all singular values are.
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)

    # F = a + b S + c S S is symmetric. From X to F X, P becomes F P, and S becomes F S F.
    a, b, c = COEFFICIENTS
    s = x @ x.mT
    for step in range(STEPS):
        factor = b * s + c * s @ s
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        if step == 0:
            product = factor
        else:
            product = factor @ product
        if step < STEPS - 1:
            s = factor @ s @ factor

    x = product @ x
    if is_tall:
        x = x.mT
    return x.to(matrices.dtype)
