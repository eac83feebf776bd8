"""Entries of fixed-size arrays that hold no assignment: they are masked, but must name some
prediction.
"""

import torch
from torch import Tensor


def assigned_predictions(prediction: Tensor, valid: Tensor, reference: Tensor) -> Tensor:
    """Return 1 for the predictions that valid entries [M] name, else 0; of the shape and dtype of
    `reference` [B, N].

    >>> prediction, valid = torch.tensor([2, 0]), torch.tensor([True, False])
    >>> assigned_predictions(prediction, valid, torch.zeros(1, 3)).tolist()
    [[0.0, 0.0, 1.0]]
    """
    flat = torch.zeros_like(reference).flatten()
    return flat.scatter_reduce(0, prediction, valid.to(flat.dtype), "amax").view_as(reference)


def distribute_invalid(prediction: Tensor, valid: Tensor, predictions: int | Tensor) -> Tensor:
    """Return `prediction` [..., M] with its invalid entries spread evenly over all predictions, 0
    to `predictions` - 1.

    A GPU adds the gradients of one prediction one by one, so they must not all name the same one.
    predictions: a tensor [..., 1] if it differs between the rows.

    >>> valid = torch.tensor([True, False, False, False])
    >>> distribute_invalid(torch.tensor([7, 7, 7, 7]), valid, 2).tolist()
    [7, 1, 0, 1]
    """
    number = predictions if isinstance(predictions, Tensor) else max(predictions, 1)
    anything = torch.arange(prediction.shape[-1], device=prediction.device) % number
    return torch.where(valid, prediction, anything)
