"""Training, drawing and validation stay on the device and never read a value on the host, shown on
the meta device.

The meta device has no values, so reading one raises an error. Only models/nms.py must read values.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Conv2d

import train
import training.checkpoints.preemption
import training.nonfinite
import training.progress
import training.state
from data import Augmentation, Loader, build_train_loader
from data.base_images import DecodedImages
from data.cache import DeviceImages, offsets_of
from data.labels import Labels
from data.layouts import open_data
from data.multi_scale import MultiScale
from data.splits import read_split
from models import Detector, build_model
from models.assign.targets import pad_targets
from models.backends.combined import AugmentedViews, Ensemble, MergedClasses, ReorderedClasses
from models.backends.in_torch import TorchBackend
from models.blocks.registry import LAYERS
from models.head_registry import HEADS, build_loss
from models.losses import DistillationLoss, LossGains
from models.losses.distillation import Shared
from models.nms import non_max_suppression
from models.weights.transfer import with_added_classes
from tests.support.anchor_free import FAMILY
from tests.support.meta_device import (
    COPIED_TO_DEVICE,
    META,
    NeverReadyHostCopy,
    OneDevice,
    fused_on_meta,
    use_fused,
)
from training.averages.ema import EMA
from training.checkpoints.preemption import SaveTrigger
from training.distillation.teacher import Teacher
from training.freezing import freeze, set_training
from training.global_batch import GlobalBatch
from training.optimizers import build_optimizer
from training.schedule import Schedule
from training.state import build_train_state
from utils.distributed.host_copies import to_device
from utils.distributed.replica import Replica, running_statistics
from utils.distributed.world import World
from utils.log import RunLog, say_nothing
from utils.threads import BackgroundTask

SIDE = 64
ALL_AUGMENTATIONS = Augmentation(
    0.02, 0.7, 0.4, 10, 0.1, 0.5, 3, 0.0005, 0.5, 0.5, 0.7, 0.5, 0.0
)  # no copy-paste
UPRIGHT = Augmentation(0.02, 0.7, 0.4, 0, 0.1, 0.5, 0, 0.0, 0.5, 0.5, 0.7, 0.5, 0.0)
BATCHES = 2  # per epoch of the eight images, except where the model is the subject
EVERY_LAYER: dict[str, Any] = {  # has a layer of every class
    "source": "every layer",
    "nc": 3,
    "depth_multiple": 1.0,
    "width_multiple": 1.0,
    "anchors": [[10, 14, 23, 27], [81, 82, 135, 169]],
    "backbone": [
        [-1, 1, "Normalize", [[0.4, 0.5, 0.6], [0.2, 0.3, 0.4]]],
        [-1, 1, "TorchvisionBackbone", ["mobilenet_v3_small", [2, 4]]],
        [-1, 1, "Level", [1]],  # stride 4
        [-1, 1, "C3", [8]],
        [-1, 1, "nn.ZeroPad2d", [[0, 1, 0, 1]]],
        [-1, 1, "nn.MaxPool2d", [2, 1, 0]],
        [-1, 1, "Bottleneck", [8]],
        [-1, 1, "C2f", [8]],
        [-1, 1, "ADown", [16]],  # 8, stride 8
        [-1, 1, "AConv", [16]],
        [-1, 1, "SeparableConv", [16]],
        [-1, 1, "RepConv", [16]],
        [-1, 1, "RepNCSP", [16]],
        [-1, 1, "ELAN", [16]],
        [-1, 1, "RepNCSPELAN", [16]],
        [-1, 1, "C3k2", [16, True]],
        [-1, 1, "CSPNeXt", [16, True, True]],
        [-1, 1, "SPPF", [16, 5]],
        [-1, 1, "SPP", [16]],
        [-1, 1, "C2PSA", [128]],
        [-1, 1, "nn.Conv2d", [128]],  # 20, stride 16: output
    ],
    "head": [
        [-1, 1, "nn.Upsample", [None, 2, "nearest"]],
        [[-1, 8], 1, "Concat", [1]],
        [-1, 1, "Conv", [16]],
        [-1, 1, "SeparableC3", [16]],
        [[14, -1], 1, "CBFuse", []],  # 25, stride 8: output
        [[25, 20], 1, "Detect", ["nc", "anchors"]],
    ],
}
# The same levels with a third of the convolutions, for tests whose subject is not the layers.
SHORT: dict[str, Any] = EVERY_LAYER | {
    "source": "short",
    "backbone": [
        [-1, 1, "Conv", [8, 3, 2]],
        [-1, 1, "nn.MaxPool2d", [2, 2, 0]],  # stride 4
        [-1, 1, "C3", [8]],
        [-1, 1, "Conv", [16, 3, 2]],  # 3, stride 8: output
        [-1, 1, "Conv", [16, 3, 2]],  # 4, stride 16: output
    ],
}
HEAD_ARGS: dict[str, Any] = {
    "Detect": ["nc", "anchors"],
    "DecoupledDetect": ["nc"],
    "DistanceDetect": ["nc"],
    "DualDistanceDetect": ["nc"],
    "SharedDistanceDetect": ["nc"],
    "GroupedDistanceDetect": ["nc"],
}
# Rows after SHORT's head, which only training computes.
AUXILIARY: list[Any] = [
    ["images", 1, "Conv", [16, 3, 8]],
    [[4, -1], 1, "CBFuse", []],  # 7, stride 8
    [[7, 4], 1, "GroupedDistanceDetect", ["nc"]],
]


def table_with(head: str, args: Sequence[Any], auxiliary: Sequence[Any] = ()) -> dict[str, Any]:
    """Return SHORT with a head, and with auxiliary rows."""
    return SHORT | {"head": [[[3, 4], 1, head, args]], "auxiliary": [*auxiliary]}


# ---------------------------------------------------------------------- the device itself


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, host: x + host,
        lambda x, host: x + host[0, 0],  # a GPU accepts a CPU scalar, but the code never uses one
        lambda x, host: x.add_(host),
        lambda x, host: x.copy_(host),
        lambda x, host: x @ host.T,
        lambda x, host: x[host[0].long()],
        lambda x, host: x.gather(0, host.long()),
        lambda x, host: torch._foreach_lerp_([x], [host], 0.5),
        lambda x, host: torch._foreach_copy_([x], [host]),
    ],
)
def test_one_device_mode_refuses_mixed_devices(mix: Callable[[Tensor, Tensor], object]) -> None:
    with OneDevice(), pytest.raises(RuntimeError, match="mixes tensors of"):
        mix(torch.ones(2, 3, device=META), torch.ones(2, 3))


@pytest.mark.parametrize(
    "copy",
    [
        lambda x: x[[0, 1]],
        lambda x: x[:, np.array([0, 1])],
        lambda x: x.__setitem__(([0, 1], 0), x[0, 0]),
        lambda x: x.new_tensor([1.0, 2.0, 3.0]),
        lambda x: torch.as_tensor(np.zeros(3), device=x.device),
        lambda x: torch.tensor(1.0, device=x.device),
    ],
)
def test_one_device_mode_refuses_numbers_of_the_host(copy: Callable[[Tensor], object]) -> None:
    with OneDevice(), pytest.raises(RuntimeError, match="numbers of the host"):
        copy(torch.ones(2, 3, device=META))


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.sum().item(),
        lambda x: float(x[0, 0]),
        lambda x: bool(x.any()),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: x.equal(x),
        lambda x: max(x[0, 0], x[0, 1]),
        lambda x: x[: x.sum().long()],
    ],
)
def test_one_device_mode_refuses_reading_values(look: Callable[[Tensor], object]) -> None:
    with (
        OneDevice(),
        pytest.raises(
            (RuntimeError, NotImplementedError), match=r"[Mm]eta tensor|data-independent"
        ),
    ):
        look(torch.ones(2, 3, device=META))


def test_model_table_contains_every_layer() -> None:
    optional = {"TimmBackbone"}  # of a package that may be missing
    modules = {row[2] for row in EVERY_LAYER["backbone"] + EVERY_LAYER["head"]}
    assert modules == {*LAYERS, "Detect"} - optional
    assert {*HEAD_ARGS, "AnchorFree"} == {*HEADS}


def test_one_device_mode_allows_operations_on_one_device() -> None:
    with OneDevice() as device:
        x = torch.ones(2, 3).to(META)
        x[:1, 1] = 5.0
        torch.where(x > 0, x * 2, 0).sum()
    assert device.calls[COPIED_TO_DEVICE] == 1
    assert device.calls["where"] == 1


# ---------------------------------------------------------------------- training


@pytest.fixture
def labels(tiny_data: Path, tmp_path: Path) -> Labels:
    spec = open_data(str(tiny_data))
    found, _ = read_split(spec, "train", cache_dir=str(tmp_path), progress=False)
    return found


def on_device(labels: Labels) -> DeviceImages:
    """Return the images of `labels` in the device's memory."""
    images = DecodedImages(labels, SIDE)
    pixels = np.concatenate([images(index).reshape(-1) for index in range(len(labels))])
    return DeviceImages(
        SimpleNamespace(sizes=images.sizes, offsets=offsets_of(images.sizes), pixels=pixels), META
    )  # type: ignore[arg-type]


class Epoch:
    """An epoch of train.py on the meta device, as rank 0 of `size` processes, with the optimizer
    used on GPUs.
    """

    def __init__(
        self,
        loader: Loader[Any],
        *,
        table: dict[str, Any] | None = None,
        head: Sequence[Any] = ("Detect", ["nc", "anchors"]),
        optimizer: str = "SGD",
        precision: torch.dtype = torch.float32,
        recompute: bool = False,
        frozen: Sequence[int] = (),
        scale: bool = False,
        added: int = 0,
        teacher: Sequence[Any] = (),
        **gains: float,
    ) -> None:
        sampler, self.loader = loader.sampler, loader
        world = World(META, size=sampler.num_replicas)
        self.model = build_model(table or table_with(*head), 3)
        if added:
            self.model = with_added_classes(self.model, added)
        if teacher:
            detector = build_model(table_with(*teacher), 4)
            self.model.add_projections(detector.head_channels)
        self.model.to(memory_format=torch.channels_last).to(META)
        self.model.recompute = recompute
        set_training(self.model, freeze(self.model, frozen))
        auxiliary = self.model.auxiliary_head
        self.criterion = build_loss(self.model.head, LossGains(**gains), auxiliary=auxiliary)
        if teacher:  # two of its classes are also the model's
            teach = Teacher(detector, [0, 1], [3, 1], torch.float32, world)
            shared = Shared([0, 1], [0, 2], same_head=True)
            self.criterion = DistillationLoss(self.criterion, self.model.head, teach, shared)
        self.criterion.to(META)
        self.state = build_train_state(
            self.model,
            world,
            GlobalBatch(sampler.batch_size, world.size),
            Schedule(total_batches=len(loader) * 10, epochs=10, batch_size=sampler.batch_size),
            precision=precision,
            optimizer=optimizer,
            weight_decay=5e-4,
            loss_terms=self.criterion.terms,
            say=say_nothing,
        )
        self.multi_scale = MultiScale(0, max(self.model.strides)) if scale else None

    def train(self) -> OneDevice:
        """Train the epoch and return the device, which has counted the operations."""
        trigger = SaveTrigger(self.state.world, 0, BackgroundTask("test"))
        checkpoints: Any = SimpleNamespace(after_step=lambda *_, **__: trigger.check())
        with fused_on_meta(), OneDevice() as device:
            train.train_one_epoch(
                self.state,
                self.loader,
                self.criterion,
                checkpoints,
                trigger.all_reduce_sum,
                RunLog(active=False),
                title="",
                multi_scale=self.multi_scale,
            )
            self.state.sync_buffers()
        return device


def make_loader(
    labels: Labels,
    images: Any = None,
    augmentation: Augmentation = ALL_AUGMENTATIONS,
    size: int = 1,
    batches: int = BATCHES,
) -> Loader[Any]:
    square = {
        "image_size": SIDE,
        "stride": 32,
        "augmentation": augmentation,
        "seed": 0,
        "device": META,
        "size": size,
    }
    return build_train_loader(labels, batch_size=len(labels) // batches, images=images, **square)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _simulate_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace collectives and host copies, since there is only this process; the meta device has no
    autocast.
    """
    for module in (training.progress, training.nonfinite, training.checkpoints.preemption):
        monkeypatch.setattr(module, "AsyncHostCopy", NeverReadyHostCopy)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda _: None)
    monkeypatch.setattr("torch.distributed.broadcast", lambda *_: None)
    built = training.state
    monkeypatch.setattr(built, "build_replica", lambda model, world, **_: Replica(model, world))
    monkeypatch.setattr(
        built,
        "build_optimizer",
        lambda *args, **kwargs: use_fused(build_optimizer(*args, **kwargs)),
    )
    monkeypatch.setattr(built, "autocast_for", lambda *_: nullcontext())
    monkeypatch.setitem(HEADS, "AnchorFree", FAMILY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "size", "batches", "settings"),
    [
        ("SGD", 1, BATCHES, {}),
        # all layers compute their outputs twice, and their gradients
        pytest.param(
            "SGD",
            1,
            1,
            {"table": EVERY_LAYER, "scale": True, "recompute": True},
            marks=pytest.mark.slow,
        ),
        ("SGD", 2, BATCHES, {"frozen": (2,)}),
        ("SGD", 1, 1, {"head": ("AnchorFree", ["nc"])}),
        ("SGD", 1, 1, {"head": ("DecoupledDetect", ["nc", True])}),
        ("SGD", 1, 1, {"head": ("DistanceDetect", ["nc", 16]), "recompute": True}),
        ("AdamW", 2, 1, {"head": ("DistanceDetect", ["nc", 1, True])}),
        ("SGD", 1, 1, {"head": ("DecoupledDetect", ["nc"]), "added": 2, "ignore_old": 0.5}),
        ("SGD", 2, 1, {"head": ("DualDistanceDetect", ["nc"]), "scale": True}),
        (
            "SGD",
            2,
            1,
            {"head": ("GroupedDistanceDetect", ["nc"], AUXILIARY), "recompute": True},
        ),
        ("SGD", 1, 1, {"teacher": ("DecoupledDetect", ["nc"]), "scale": True}),
        (
            "AdamW",
            2,
            1,
            {"head": ("DualDistanceDetect", ["nc"]), "teacher": ("Detect", ["nc", "anchors"])},
        ),
        ("Adam", 1, BATCHES, {"scale": True, "fl_gamma": 1.5, "label_smoothing": 0.1}),
        # its GradScaler reads the scale on the device
        ("AdamW", 2, BATCHES, {"precision": torch.float16}),
    ],
)
def test_training_epoch_stays_on_device(
    labels: Labels, optimizer: str, size: int, batches: int, settings: dict[str, Any]
) -> None:
    """Two batches show that later steps of each optimizer stay there too; of each model, one."""
    loader = make_loader(labels, size=size, batches=batches)
    epoch = Epoch(loader, optimizer=optimizer, **settings)
    calls = epoch.train().calls
    closing = epoch.state.schedule.step_batches(0, batches)
    assert calls[COPIED_TO_DEVICE] == 2 * batches  # images and targets
    assert calls[f"_fused_{optimizer.lower()}_"] == 3 * len(closing)  # one per parameter group
    convolutions = sum(
        any(p.requires_grad for p in c.parameters())
        for c in epoch.model.modules()
        if isinstance(c, Conv2d)
    )
    assert calls["convolution_backward"] == convolutions * batches > 10
    assert epoch.state.ema.updates == len(closing) > 0
    assert epoch.state.progress.losses.sums.device == META


@pytest.mark.slow
@pytest.mark.parametrize(
    "augmentation", [UPRIGHT, ALL_AUGMENTATIONS], ids=["upright", "everything"]
)
def test_training_epoch_with_device_augmentation_stays_on_device(
    labels: Labels, augmentation: Augmentation
) -> None:
    loader = make_loader(labels, on_device(labels), augmentation)
    calls = Epoch(loader).train().calls
    assert (
        calls[COPIED_TO_DEVICE] == 5 * BATCHES
    )  # targets, and the augmentation plans: lines, places, mixes, tables
    assert calls["_fused_sgd_"] > 0


def multiply_on_cpu(losses: dict[str, Tensor]) -> dict[str, Tensor]:
    return losses | {"box": losses["box"] * torch.ones(())}


def multiply_gradient_on_cpu(losses: dict[str, Tensor]) -> dict[str, Tensor]:
    losses["box"].register_hook(lambda gradient: gradient * torch.ones(()))
    return losses


def read_on_host(losses: dict[str, Tensor]) -> dict[str, Tensor]:
    return losses if losses["box"].item() else {}


@pytest.mark.parametrize(
    ("fault", "refusal"),
    [
        (multiply_on_cpu, "mul mixes tensors of cpu and meta"),
        (multiply_gradient_on_cpu, "mul mixes tensors of cpu and meta"),
        (read_on_host, r"item\(\) cannot be called on meta tensors"),
    ],
)
def test_device_fault_in_loss_is_detected(
    labels: Labels, fault: Callable[..., Any], refusal: str
) -> None:
    epoch = Epoch(make_loader(labels))
    epoch.criterion.register_forward_hook(lambda module, taken, losses: fault(losses))
    with pytest.raises(RuntimeError, match=refusal):
        epoch.train()


def test_loss_anchors_left_on_cpu_are_detected(labels: Labels) -> None:
    epoch = Epoch(make_loader(labels))
    epoch.criterion.anchors_px = torch.ones(epoch.criterion.anchors_px.shape)
    with pytest.raises(RuntimeError, match="mixes tensors of cpu and meta"):
        epoch.train()


def test_ema_left_on_cpu_is_detected(labels: Labels) -> None:
    epoch = Epoch(make_loader(labels))
    epoch.state.ema = EMA(build_model(table_with("Detect", ["nc", "anchors"]), 3))
    with pytest.raises(RuntimeError, match="_foreach_lerp_ mixes tensors of cpu and meta"):
        epoch.train()


def test_host_read_by_guard_of_unfused_optimizer_is_detected(labels: Labels) -> None:
    epoch = Epoch(make_loader(labels))
    epoch.state.optimizer.defaults["fused"] = False
    with pytest.raises(RuntimeError, match=r"item\(\) cannot be called on meta tensors"):
        epoch.train()


# ---------------------------------------------------------------------- validation


BACKENDS = {
    "single": TorchBackend,
    "views": lambda model: AugmentedViews(TorchBackend(model)),
    "ensemble": lambda model: Ensemble([TorchBackend(model), AugmentedViews(TorchBackend(model))]),
    "reordered": lambda model: ReorderedClasses(TorchBackend(model), [2, 0, 1]),
    "one class": lambda model: MergedClasses(TorchBackend(model)),
}


def fused_model(table: dict[str, Any]) -> Detector:
    """Return a model as used to detect: on the device, with its BatchNorm folded into the
    convolutions.
    """
    model = build_model(table, 3)
    return model.to(memory_format=torch.channels_last).to(META).fuse()


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("single", "every layer"),
        *((name, "Detect") for name in [*BACKENDS][1:]),
        *(("single", head) for head in [*HEAD_ARGS][1:]),
    ],
)
def test_predictions_stay_on_device(name: str, head: str) -> None:
    table = EVERY_LAYER
    if head != "every layer":
        table = table_with(head, HEAD_ARGS[head])
    backend = BACKENDS[name](fused_model(table))
    host = torch.zeros(2, SIDE, SIDE + 32, 3, dtype=torch.uint8)
    with torch.no_grad(), OneDevice() as device:
        boxes, scores, _ = backend.predict(to_device(host, META))
    assert device.calls[COPIED_TO_DEVICE] == 1
    assert boxes.device == scores.device == META
    assert (boxes.shape[:2], boxes.shape[2]) == (scores.shape[:2], 4)
    assert scores.shape[2] == (1 if name == "one class" else 3)


@pytest.mark.parametrize("boxes", [0, 3])
@pytest.mark.parametrize("head", HEAD_ARGS)
def test_validation_loss_stays_on_device(head: str, boxes: int) -> None:
    model = (
        build_model(table_with(head, HEAD_ARGS[head]), 3)
        .to(memory_format=torch.channels_last)
        .to(META)
        .eval()
    )
    criterion = build_loss(model.head, LossGains()).to(META)
    targets, images = torch.zeros(boxes, 6, device=META), torch.zeros(2, 3, SIDE, SIDE, device=META)
    with torch.no_grad(), OneDevice():
        losses = criterion(model(images), pad_targets(targets))
    assert {name: loss.shape for name, loss in losses.items()} == dict.fromkeys(criterion.terms, ())


def test_fusing_a_model_stays_on_device() -> None:
    model = build_model(EVERY_LAYER, 3).to(META)
    with OneDevice():
        model.fuse()
    assert not running_statistics(model)


def test_device_fault_in_model_is_detected() -> None:
    model = fused_model(table_with("Detect", HEAD_ARGS["Detect"]))
    images = torch.zeros(1, 3, SIDE, SIDE, device=META)
    with OneDevice() as device:
        model.decode(model(images))
        assert (
            device.calls["convolution"]
            == sum(isinstance(layer, Conv2d) for layer in model.modules())
            > 5
        )
        model.head.anchors_px = torch.ones(model.head.anchors_px.shape)
        with pytest.raises(RuntimeError, match="mixes tensors of cpu and meta"):
            model.decode(model(images))
    model.layers[0].register_forward_hook(lambda layer, taken, given: given.max().item())
    with (
        OneDevice(),
        pytest.raises(RuntimeError, match=r"item\(\) cannot be called on meta tensors"),
    ):
        model(images)


@pytest.mark.parametrize("multi_label", [True, False])
def test_nms_reads_no_value_before_selecting_candidates(multi_label: bool) -> None:
    """NMS stays on the device until it needs the number of scores above the threshold."""
    boxes, scores = torch.zeros(1, 10, 4, device=META), torch.zeros(1, 10, 3, device=META)
    with (
        OneDevice() as device,
        pytest.raises(NotImplementedError, match=r"torch\.nonzero") as refused,
    ):
        non_max_suppression(boxes, scores, multi_label=multi_label)
    assert device.calls["gt"] == 1
    own = [entry for entry in refused.traceback if entry.path.name == "nms.py"]
    assert own[-1].name == "_candidates"
