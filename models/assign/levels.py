"""Numbers of a head's levels, such as strides, on the device."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

# tuples of numbers: a few for each image size of multi-scale or rectangular training
SHAPES_KEPT = 512


def per_level(
    values: Sequence[float], reference: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """Return one number for each level, [L], on the device of `reference`; do not change it in
    place.

    It is created once, and on the device: a copy from the host would make the host wait. dtype:
    that of `reference` if None.

    >>> per_level((8, 16), torch.zeros(1)).tolist()
    [8.0, 16.0]
    """
    numbers = tuple(values)
    dtype = dtype or reference.dtype
    if torch.compiler.is_compiling() or type(reference) is not Tensor:
        return _filled(numbers, dtype, reference.device)  # placeholders of a trace must not be kept
    return _kept(numbers, dtype, reference.device)


def _filled(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.stack([torch.full((), value, dtype=dtype, device=device) for value in values])


@lru_cache(SHAPES_KEPT)
def _kept(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # the first caller may be a validation, a later one training
        return _filled(values, dtype, device)
