"""The wrappers of a model for training, on a CPU."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from utils.distributed.replica import Replica
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


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="DataParallel runs on the CPU only if there is no GPU"
)
def test_data_parallel_of_no_images_has_no_images() -> None:
    replica = Replica(RecordsDtype(), PAIR)
    assert replica(torch.rand(0, 3, 4, 4)).shape == (0, 2, 4, 4)
