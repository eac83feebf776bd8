"""No training step makes the host wait for the device: counted on the CPU; on a GPU, CUDA itself
raises an error.

Two ways of counting: a dispatch mode sees a whole run, but some of torch's formulas (the gradient
of `prod`) take another way when such a mode is active. torch's profiler changes nothing; it watches
whole steps of every head and optimizer.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import benchmarks.steps.operations
import train
import training.checkpoints.preemption
import training.nonfinite
import training.progress
import training.state
import training.validation
from benchmarks.steps.operations import host_waits, operations, profiled_step, roots
from benchmarks.timed_steps import Setting
from data import Loader
from data.loader import Batch
from models.heads import Head
from models.heads.anchor_based import AnchorBasedHead
from models.losses import Loss
from models.losses.decoupled import DecoupledLoss
from tests.support.launching import small_run_flags
from tests.support.meta_device import NeverReadyHostCopy, use_fused
from tests.support.micro_tables import HEADS, MICRO, write_micro_table
from training import evaluation
from training.optimizers import OPTIMIZERS
from utils.distributed.world import World

BLOCKING_OPERATIONS = (
    "_local_scalar_dense",
    "item",
    "nonzero",
    "masked_select",
    "is_nonzero",
    "equal",
    "unique",
    "bincount",
)


class HostWaitCounter(TorchDispatchMode):
    """Counts operations that would make the host wait for a GPU, because it needs their values or
    shapes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.operations = 0
        self.paused = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self.paused:
            return function(*args, **(kwargs or {}))
        self.operations += 1
        name = function.overloadpacket.__name__
        indices = (
            args[1]
            if name.startswith("index") and len(args) > 1 and isinstance(args[1], (list, tuple))
            else ()
        )
        if name in BLOCKING_OPERATIONS or any(
            isinstance(i, Tensor) and i.dtype == torch.bool for i in indices
        ):
            self.waits[name] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("function", "waits"),
    [
        (lambda x: x.sum().item(), 1),
        (lambda x: x[x > 0], 1),
        (lambda x: x[torch.tensor([1])], 0),
        (lambda x: x.nonzero(), 1),
        (lambda x: float(x[0]), 1),
        (lambda x: torch.where(x > 0, x, 0).sum(), 0),
    ],
)
def test_host_wait_counter_counts_blocking_operations(
    function: Callable[[Tensor], object], waits: int
) -> None:
    for inference in (False, True):
        with HostWaitCounter() as watch, torch.inference_mode(inference):
            function(torch.ones(3))
        assert sum(watch.waits.values()) == waits


def table_of(kind: str, folder: Path) -> str:
    """Return the path of a table of tests/tables, or of micro.yaml with one of HEADS."""
    if kind in HEADS:
        return str(write_micro_table(folder, kind))
    return str(MICRO.with_stem(kind))


@contextmanager
def simulate_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostWaitCounter]:
    """Training epochs under a watch, with fused optimizers and delayed copies to the host, as on a
    GPU.
    """
    watch, real_epoch, real_optimizer, real_pass = (
        HostWaitCounter(),
        train.train_one_epoch,
        training.state.build_optimizer,
        Loader.__iter__,
    )

    def loading(loader: Loader) -> Iterator[Batch]:
        """Pause the watch: loading works on host memory and does not wait for the device."""
        watch.paused = True
        for batch in real_pass(loader):
            watch.paused = False
            yield batch
            watch.paused = True
        watch.paused = False

    def epoch(*args: Any, **kwargs: Any) -> str:
        with watch:
            return real_epoch(*args, **kwargs)

    def fused(*args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        return use_fused(real_optimizer(*args, **kwargs))

    for module in (training.progress, training.nonfinite, training.checkpoints.preemption):
        monkeypatch.setattr(module, "AsyncHostCopy", NeverReadyHostCopy)
    monkeypatch.setattr(Loader, "__iter__", loading)
    monkeypatch.setattr(train, "train_one_epoch", epoch)
    monkeypatch.setattr(training.state, "build_optimizer", fused)
    yield watch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "flags"),
    [
        ("tiny", ""),
        ("micro", "--multi-scale --optimizer AdamW"),
        ("micro", "--rect --amp bf16 --class-weights auto --repeat-factor 0.9"),
        ("micro", "--image-weights --freeze 1"),
        ("decoupled", "--close-mosaic 1 --class-weights auto"),
        ("distance", "--amp bf16 --class-weights auto"),
        ("distance_plain", ""),
        ("dual", "--multi-scale --class-weights auto"),
    ],
)
def test_training_steps_never_make_host_wait(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, flags: str
) -> None:
    cfg = table_of(table, tmp_path)
    arguments = small_run_flags(tiny_data, cfg, tmp_path, *flags.split())
    with simulate_gpu(monkeypatch) as watch:
        train.main(train.parse_args(arguments)[0], World(torch.device("cpu")))
    assert watch.operations > 1000
    assert not watch.waits


# ---------------------------------------------------------------------- by torch's profiler


def product_of_pairs(x: Tensor) -> None:
    """Compute a gradient whose formula counts zeros on the host, unless a dispatch mode is
    active.
    """
    x.clone().requires_grad_().view(-1, 2).prod(-1).sum().backward()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.sum().item(), ["item in the loop"]),
        (lambda x: x[x > 1], ["index by a mask in the loop"]),
        (
            lambda x: x.clone().index_put_((x > 1,), x[:2]),
            ["_index_put_impl_ by a mask in the loop"],
        ),
        (lambda x: x.index_put_((torch.tensor([1]),), torch.ones(1), accumulate=True), []),
        (lambda x: x.nonzero(), ["nonzero in the loop"]),
        (lambda x: x.masked_select(x > 1), ["masked_select in the loop"]),
        (lambda x: bool(x.equal(x)), ["equal in the loop"]),
        (product_of_pairs, ["item in ProdBackward1"]),
    ],
)
def test_profiler_shows_what_makes_host_wait(
    function: Callable[[Tensor], object], expected: list[str]
) -> None:
    x = torch.arange(4.0)
    with profile(activities=[ProfilerActivity.CPU]) as recorder:
        function(x)
    assert list(host_waits(roots(recorder))) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "settings"),
    [
        *(
            (table, {})
            for table in ("every_layer", "decoupled", "distance", "distance_plain", "dual")
        ),
        *(("micro", {"optimizer": optimizer}) for optimizer in OPTIMIZERS if optimizer != "SGD"),
        ("distance", {"amp": "bf16", "optimizer": "Muon"}),
        ("micro", {"boxes": 0}),
    ],
)
def test_whole_steps_never_make_host_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, table: str, settings: dict[str, Any]
) -> None:
    """Forward, loss, backward, clipping, the guard, the optimizer and the moving average, as on a
    GPU.
    """
    monkeypatch.setattr(
        DecoupledLoss, "weighted_sum", Loss.weighted_sum
    )  # with L1, as in epochs without mosaic
    cfg = table_of(table, tmp_path)
    setting = Setting(cfg=cfg, img=64, batch=2, **({"amp": "fp32"} | settings))
    events = profiled_step(setting)
    parts = {part for part, _ in operations(events)}
    assert parts == {
        "forward",
        "loss",
        "backward",
        "optimizer",
        "EMA",
        benchmarks.steps.operations.REST,
    }
    assert list(host_waits(events)) == []


@pytest.mark.slow
def test_detection_reads_device_values_only_in_nms(
    tiny_data: Path, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses of a validation are fetched once, after the last batch, and not for each batch and
    term.
    """
    calls = []
    real_nms, real_detect = evaluation.detections_in_images, evaluation.predict_split

    def nms(*args: Any, **kwargs: Any) -> Any:
        watch.paused = True
        calls.append(watch.waits.total())
        found = real_nms(*args, **kwargs)
        watch.paused = False
        return found

    def detect(*args: Any, **kwargs: Any) -> Any:
        with watch:
            return real_detect(*args, **kwargs)

    arguments = small_run_flags(tiny_data, tiny_model, tmp_path, "--batch", "1", "--workers", "0")
    with simulate_gpu(monkeypatch) as watch:
        monkeypatch.setattr(
            AnchorBasedHead, "decode_candidates", Head.decode_candidates
        )  # only a CPU uses its own
        monkeypatch.setattr(evaluation, "detections_in_images", nms)
        monkeypatch.setattr(training.validation, "predict_split", detect)
        train.main(train.parse_args(arguments)[0], World(torch.device("cpu")))
    assert calls[:8] == [0] * 8  # one call per image of the epoch's validation
