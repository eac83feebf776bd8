"""The wrappers of a model for training, on a CPU."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from utils.distributed.replica import Replica, use_plain_strides
from utils.distributed.world import World

CPU = torch.device("cpu")
PAIR = World(CPU, devices=(CPU, CPU))


class RecordsDtype(nn.Module):
    """A convolution that keeps the dtype of its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)
        self.computed_in: torch.dtype | None = None

    def forward(self, images: Tensor) -> Tensor:
        maps = self.conv(images)
        self.computed_in = maps.dtype
        return maps


@pytest.fixture
def data_parallel_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """DataParallel on a CPU runs its module in a new thread, entered as
    torch.nn.parallel.parallel_apply does.
    """

    def forward(self: DataParallel, *inputs: object, **settings: object) -> object:
        enabled = torch.is_autocast_enabled("cpu")

        def worker() -> object:
            with torch.amp.autocast(
                "cpu", enabled=enabled
            ):  # of the dtype of this new thread: the default
                return self.module(*inputs, **settings)

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(worker).result()

    monkeypatch.setattr(DataParallel, "forward", forward)


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="DataParallel runs on the CPU only if there is no GPU"
)
@pytest.mark.parametrize(
    ("dtype", "enabled", "expected"),
    [
        (
            torch.float16,
            True,
            torch.float16,
        ),  # the default of CPUs is bfloat16, that of GPUs float16
        (torch.bfloat16, True, torch.bfloat16),
        (torch.float16, False, torch.float32),
    ],
)
def test_data_parallel_threads_compute_in_the_dtype_of_the_caller(
    data_parallel_threads: None, dtype: torch.dtype, enabled: bool, expected: torch.dtype
) -> None:
    replica = Replica(RecordsDtype(), PAIR)
    with torch.autocast("cpu", dtype, enabled=enabled):
        maps = replica(torch.rand(2, 3, 4, 4))
    assert replica.model.computed_in == expected
    maps.float().sum().backward()
    assert replica.model.conv.weight.grad is not None


def test_weights_in_both_memory_orders_get_the_strides_of_the_plain_one() -> None:
    model = nn.Sequential(
        nn.Conv2d(6, 4, 1), nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)
    ).to(memory_format=torch.channels_last)
    before = copy.deepcopy(model)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    assert model[0].weight.stride() == (6, 1, 6, 6)
    assert model[1].weight.stride() == (9, 1, 3, 1)

    use_plain_strides(model)
    assert model[0].weight.stride() == (6, 1, 1, 1)  # of [4, 6, 1, 1]
    assert model[1].weight.stride() == (9, 9, 3, 1)  # of [4, 1, 3, 3]
    assert model[2].weight.stride() == (36, 1, 12, 4)  # of [6, 4, 3, 3], only channels last
    assert addresses == [parameter.data_ptr() for parameter in model.parameters()]
    for parameter, other in zip(model.parameters(), before.parameters(), strict=True):
        assert parameter.equal(other)


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="DataParallel runs on the CPU only if there is no GPU"
)
def test_data_parallel_of_no_images_has_no_images() -> None:
    replica = Replica(RecordsDtype(), PAIR)
    assert replica(torch.rand(0, 3, 4, 4)).shape == (0, 2, 4, 4)
