"""No float64 reaches a device that does not have it (Metal): whole trainings with validation,
checkpoints and resume.

tests/support/no_float64.py is such a device, with values, so that everything runs as it would
there.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import train
from tests.support.micro_tables import write_micro_table
from tests.support.no_float64 import DEVICE, REFUSAL, NoFloat64, OnDevice
from tests.support.small_run import small_description, state_with
from training import evaluation, validation
from utils.distributed import precision
from utils.distributed.world import World

WORLD = World(DEVICE)
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*meta parameter in the current model"
)  # here it is copied


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[NoFloat64]:
    """The device, which the code takes for one like Metal."""
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", ("mps", DEVICE.type))
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # "meta" has none
    for module in (
        validation,
        evaluation,
    ):  # in inference mode, a dispatch mode sees other operations
        in_no_grad = torch.no_grad()(evaluation.predict_split.__wrapped__)
        monkeypatch.setattr(module, "predict_split", in_no_grad)
    with NoFloat64() as device:
        yield device


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.double(),
        lambda x: x.double().cpu(),
        lambda x: x.to("cpu", torch.float64),  # converted on the device, then copied
        lambda x: torch.zeros(2, dtype=torch.float64).copy_(x),
        lambda x: torch.zeros(2, dtype=torch.float64).to(x.device),
        lambda x: torch.zeros(2, dtype=torch.float64, device=x.device),
        lambda x: torch.tensor([1.0], dtype=torch.float64, device=x.device),
        lambda x: x.to(torch.complex128),
    ],
)
def test_device_refuses_float64(look) -> None:
    with pytest.raises(TypeError, match=REFUSAL):
        look(torch.ones(2).to(DEVICE))


def test_device_refuses_a_mix_with_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="mul mixes tensors of the device and of the CPU"):
        torch.ones(2).to(DEVICE) * torch.ones(2)


def test_device_computes_and_copies_values(device: NoFloat64) -> None:
    x = torch.arange(3.0).to(DEVICE).requires_grad_()
    (x * x).sum().backward()
    x.grad.mul_(2)
    assert isinstance(x.grad, OnDevice)
    assert x.grad.device == DEVICE
    assert x.grad.cpu().double().tolist() == [0, 4, 8]
    assert device.operations > 3


def test_checkpoint_of_statistics_is_saved_and_loaded() -> None:
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 2, 1), torch.nn.BatchNorm2d(2), torch.nn.Flatten()
    )
    model = layers.to(DEVICE)
    state = state_with(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), WORLD)
    for number in range(3):
        model(torch.full((2, 3, 2, 2), float(number)).to(DEVICE)).square().sum().backward()
        state.step()
    saved = state.checkpoint(small_description())
    assert saved.statistics.dtype == torch.float64
    assert saved.statistics.shape == (
        1,
        8,
    )  # mean and variance of two channels, of the weights and of the average
    expected = saved.statistics.clone()
    with torch.no_grad():
        model[1].running_mean.add_(1)
    state.load(saved)
    assert state.checkpoint(small_description()).statistics.equal(expected)
    assert state.progress.losses.state().dtype == torch.float64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "flags"),
    [
        # two steps, and one of each larger head
        ("micro", "--batch 4 --optimizer SGD --multi-scale --image-weights --sync-bn"),
        ("micro", "--batch 4 --optimizer Muon --cache device --hyp hyp.scratch-low.yaml"),
        ("decoupled", "--batch 8 --optimizer Adam --cos-lr"),
        ("distance", "--batch 8 --optimizer AdamW --checkpoint-activations"),
        ("dual", "--batch 8 --optimizer SGD --rect"),
    ],
)
def test_training_with_validation_and_resume(
    device: NoFloat64,
    tiny_data: Path,
    micro_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table: str,
    flags: str,
) -> None:
    small = (
        "--img 64 --workers 0 --epochs 1 --amp fp32 --noplots --data "
        f"{tiny_data} --save-minutes 1e-9"
    )
    model = micro_model if table == "micro" else write_micro_table(tmp_path, table)
    paths = f"--cfg {model} --project {tmp_path} --name run --exist-ok --cache-dir {tmp_path}/cache"
    settings = train.parse_args([*small.split(), *paths.split(), *flags.split()])[0]
    real = train.TrainState.sync_buffers

    def interrupted(self: train.TrainState) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train.TrainState, "sync_buffers", interrupted)  # at the end of the epoch
    with pytest.raises(KeyboardInterrupt):
        train.main(settings, WORLD)
    monkeypatch.setattr(train.TrainState, "sync_buffers", real)
    evaluation = train.main(train.parse_args(["--resume", str(tmp_path / "run")])[0], WORLD)
    assert 0 <= evaluation.coco.stats["AP"] <= 1
    assert device.operations > 3000
