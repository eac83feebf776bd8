"""Muon for the weights of convolutions, AdamW for all other parameters."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key", bound=Hashable)

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
    """Return Muon's step for each gradient [out, ...], in the memory order of the gradient.

    Those of one shape are multiplied together, for fewer kernels.
    """
    matrices = [as_matrix(gradient) for gradient in gradients]
    places_of_shape = places_of([matrix.shape for matrix in matrices])

    # The matrices of each shape, [n, R, C] with R <= C, and what makes them orthogonal.
    stacks = []
    for places in places_of_shape.values():
        stacked = torch.stack([matrices[place] for place in places])
        stacks.append(wide(stacked))
    factors = orthogonal_factors(stacks)

    steps = list(gradients)
    for (shape, places), x, factor in zip(places_of_shape.items(), stacks, factors, strict=True):
        scale = RMS * max(shape) ** 0.5
        # P is symmetric: of a tall matrix X^T the step is (P X)^T = X^T P
        is_tall = shape[0] > shape[1]
        found = x.mT @ (scale * factor) if is_tall else (scale * factor) @ x
        for place, step in zip(places, found, strict=True):
            steps[place] = like_gradient(step, gradients[place])
    return steps


def places_of(keys: Sequence[Key]) -> dict[Key, list[int]]:
    """Return where each key is in a list.

    >>> places_of(["a", "b", "a"])
    {'a': [0, 2], 'b': [1]}
    """
    places: dict[Key, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return places


def as_matrix(gradient: Tensor) -> Tensor:
    """Return a gradient [out, ...] as a matrix [out, rest], in float32 or float64.

    The columns are in the order of the memory, so that nothing is copied: any order has the same
    singular values.
    """
    if is_channels_last(gradient):
        gradient = gradient.permute(0, 2, 3, 1)
    matrix = gradient.flatten(1)
    return matrix.to(torch.promote_types(matrix.dtype, torch.float32))


def like_gradient(matrix: Tensor, gradient: Tensor) -> Tensor:
    """Return a matrix [out, rest], in the order of `as_matrix`, as a gradient [out, ...]."""
    if is_channels_last(gradient):
        out, channels, height, width = gradient.shape
        shaped = matrix.reshape(out, height, width, channels).permute(0, 3, 1, 2)
    else:
        shaped = matrix.reshape(gradient.shape)
    return shaped.to(gradient.dtype)


def is_channels_last(gradient: Tensor) -> bool:
    return gradient.dim() == 4 and gradient.is_contiguous(memory_format=torch.channels_last)


def wide(matrices: Tensor) -> Tensor:
    """Return matrices [..., R, C] with R <= C: transposed if they are taller than wide."""
    return matrices.mT if matrices.shape[-2] > matrices.shape[-1] else matrices


def orthogonal_factors(stacks: Sequence[Tensor]) -> list[Tensor]:
    """Return factors P [n, R, R] of each stack X [n, R, C]: P X is X with singular values near 1.

    Stacks of one R are iterated together, for fewer kernels, since only X X^T is iterated on.
    """
    factors = [x @ x.mT for x in stacks]  # each is replaced below
    for places in places_of([x.shape[1] for x in stacks]).values():
        squares = torch.cat([factors[place] for place in places])
        counts = [len(stacks[place]) for place in places]
        for place, factor in zip(places, factors_of(squares).split(counts), strict=True):
            factors[place] = factor
    return factors


def factors_of(squares: Tensor) -> Tensor:
    """Return factors P [B, R, R] from X X^T [B, R, R]: P X is X with singular values near 1.

    They are about 0.7 to 1.2; values far below the largest stay smaller.

    Muon iterates X <- (a + b S + c S S) X with S = X X^T. Here the iteration is on S, which is
    small for convolutions, and on the product P of the polynomials: a third of the time in float32.
    In bfloat16, Muon's usual choice, the products would be too inaccurate.
    """
    # X / norm, whose Frobenius norm is 1 or less, so that all singular values are.
    norm = squares.diagonal(dim1=-2, dim2=-1).sum(-1).sqrt()
    inverse = (norm + 1e-7).reciprocal()[:, None, None]
    s = squares * inverse.square()

    # From X to F X, with the symmetric F = a + b S + c S S, P becomes F P, and S becomes F S F.
    factor = polynomial(s)
    product = factor
    for _ in range(STEPS - 1):
        s = factor @ s @ factor
        factor = polynomial(s)
        product = factor @ product
    return product * inverse


def polynomial(s: Tensor) -> Tensor:
    """Return a + b S + c S S of matrices S [B, R, R]."""
    a, b, c = COEFFICIENTS
    value = torch.baddbmm(s, s, s, beta=b, alpha=c)
    value.diagonal(dim1=-2, dim2=-1).add_(a)
    return value
