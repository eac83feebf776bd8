"""Small constants, such as strides, as tensors on the device of other tensors."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from utils.distributed.torch_compile import is_traced

# results of `device_constant`: a few for each image size of multi-scale or rectangular training
CACHED_RESULTS = 512


def device_constant(
    values: Sequence[float], reference: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """Return numbers as a tensor, [len(values)], on the device of `reference`.

    The result is cached, so do not change it in place. It is created on the device, because a copy
    from the host would make the host wait. dtype: that of `reference` if None.

    >>> device_constant((8, 16), torch.zeros(1)).tolist()
    [8.0, 16.0]
    """
    numbers = tuple(values)
    dtype = dtype or reference.dtype

    if is_traced(reference):
        return _create(numbers, dtype, reference.device)
    return _cached(numbers, dtype, reference.device)


def _create(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    numbers = [torch.full((), value, dtype=dtype, device=device) for value in values]
    return torch.stack(numbers)


@lru_cache(CACHED_RESULTS)
def _cached(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # The first caller may be a validation, whose tensors training could not use.
    with torch.inference_mode(False):
        return _create(values, dtype, device)
