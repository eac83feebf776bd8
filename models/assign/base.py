"""The result of an assignment, which all rules share, and how its losses read it.

B images, N predictions per image over all levels, T targets, M entries. An assignment has a fixed
size, so that the host need not wait for a count: entries without a prediction are masked.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Assignment:
    """Predictions with the targets they answer for: arrays [M] whose entries count where `valid`.

    Each prediction is in at most one valid entry. prediction: its number among B * N; arbitrary
    where not valid. target: its row among the targets.
    """

    prediction: Tensor
    target: Tensor
    valid: Tensor


def assigned_predictions(prediction: Tensor, valid: Tensor, reference: Tensor) -> Tensor:
    """Return 1 for the predictions that valid entries [M] name, else 0; as `reference` [B, N].

    The result has its shape and dtype.

    >>> prediction, valid = torch.tensor([2, 0]), torch.tensor([True, False])
    >>> assigned_predictions(prediction, valid, torch.zeros(1, 3)).tolist()
    [[0.0, 0.0, 1.0]]
    """
    zeros = torch.zeros_like(reference).flatten()
    assigned = zeros.scatter_reduce(0, prediction, valid.to(zeros.dtype), "amax")
    return assigned.view_as(reference)


def distribute_invalid(prediction: Tensor, valid: Tensor, predictions: int | Tensor) -> Tensor:
    """Return `prediction` [..., M] with its invalid entries spread evenly over all predictions.

    A GPU adds the gradients of one prediction one by one, so they must not all name the same one.
    predictions: how many there are, 0 to `predictions` - 1; a tensor [..., 1] if that differs
    between the rows.

    >>> valid = torch.tensor([True, False, False, False])
    >>> distribute_invalid(torch.tensor([7, 7, 7, 7]), valid, 2).tolist()
    [7, 1, 0, 1]
    """
    if not isinstance(predictions, Tensor):
        predictions = max(predictions, 1)
    in_turn = torch.arange(prediction.shape[-1], device=prediction.device) % predictions
    return torch.where(valid, prediction, in_turn)


def cheapest_takers(
    prediction: Tensor, taken: Tensor, cheapest_target: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the target of each entry, and which are valid, so that each prediction is once.

    A prediction that one target took is that target's. One that several took goes to its cheapest
    target, whether it took the prediction or not.

    Args:
        prediction: [T, K], numbers among the P predictions of all images.
        taken: [T, K], whether the target takes the prediction.
        cheapest_target: [P]; T for a prediction that no target can have.

    Returns:
        Rows of targets, and bool, [T * K] each.

    >>> prediction, taken = torch.tensor([[0, 2], [0, 1]]), torch.tensor([[True, True]] * 2)
    >>> cheapest_takers(prediction, taken, torch.tensor([1, 1, 0]))
    (tensor([1, 0, 1, 1]), tensor([ True,  True, False,  True]))
    """
    targets = len(prediction)
    taker = torch.arange(targets, device=prediction.device)[:, None].expand_as(prediction)
    chosen = prediction.flatten()  # [M]
    taken = taken.flatten()

    # How many targets took each prediction, and the first entry that names it.  [P]
    order = torch.arange(len(chosen), device=chosen.device)
    takers = torch.zeros_like(cheapest_target).scatter_add_(0, chosen, taken.long())
    first_entry = torch.full_like(cheapest_target, len(order))
    first_entry.scatter_reduce_(0, chosen, torch.where(taken, order, len(order)), "amin")

    # One entry for each of them.  [M]
    valid = taken & (first_entry[chosen] == order)
    winner = torch.where(takers[chosen] > 1, cheapest_target[chosen], taker.flatten())
    return winner.clamp(max=targets - 1), valid  # where not valid, there may be no cheapest target
