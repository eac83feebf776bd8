"""Losses compiled with torch.compile: traced without a graph break, equal to the uncompiled ones,
and the fallback.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import lookup_backend

from models import LossGains, build_loss, build_model
from models.assign.targets import pad_targets
from models.detector import Detector
from models.losses import Loss
from models.losses.distillation import DistillationLoss, Shared, Taught
from tests.support.exporting import MICRO, micro_table, one_level, two_level_table
from training.compiled_loss import compile_loss
from utils.distributed.world import World
from utils.nested import tensors_in

CPU = torch.device("cpu")
NO_AUTOCAST = torch.autocast("cpu", torch.bfloat16, enabled=False)
TEACHER = micro_table("SharedDistanceDetect", "nc", True)
TEACHER["head"][0][0] = [4]
TABLES: dict[str, dict[str, Any]] = {  # one per kind of loss; each level adds operations to trace
    "Detect with a teacher": two_level_table(),  # whose terms are those of Detect and two more
    "DecoupledDetect": one_level("DecoupledDetect", "nc"),
    "DualDistanceDetect": one_level("DualDistanceDetect", "nc", 1, True),  # twice DistanceDetect
    "SharedDistanceDetect": one_level("SharedDistanceDetect", "nc", True),
}
IMAGES, SIDE, CLASSES = 2, 64, 3
Graph = Callable[..., Any]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """torch.compile without a code generator, which takes a minute; a graph break is an error.

    Returns the graphs that are compiled, which are traced with their gradients.
    """
    compiled: list[Graph] = []

    def traced(graph: torch.fx.GraphModule, inputs: Sequence[Tensor | torch.SymInt]) -> Graph:
        compiled.append(graph)
        return lookup_backend("aot_eager")(graph, inputs)

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=traced, fullgraph=True))
    return compiled


def build(table: str | dict[str, Any]) -> tuple[Detector, Loss]:
    torch.manual_seed(0)
    model = build_model(table, CLASSES).train()
    return model, build_loss(model.head, LossGains(class_weights=(0.5, 3.0, 1.25)))


def some_targets(number: int) -> Tensor:
    """Return `number` boxes, a few of them ignore regions, and padding rows."""
    random = torch.Generator().manual_seed(number)
    image = torch.randint(0, IMAGES, (number, 1), generator=random)
    class_id = torch.randint(-1, CLASSES, (number, 1), generator=random)
    centers = torch.rand(number, 2, generator=random) * SIDE
    sides = 4 + torch.rand(number, 2, generator=random) * SIDE / 2
    return pad_targets(torch.cat([image, class_id, centers - sides / 2, centers + sides / 2], 1))


def terms_and_gradients(model: Detector, criterion: Loss, targets: Tensor) -> list[Tensor]:
    """Return the terms of the loss for fixed images, and the gradients of the raw predictions."""
    images = torch.rand(IMAGES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    criterion.begin_batch(images)
    raw = model.forward(images)
    terms = criterion(raw, targets, lambda counts: counts * 2)
    maps = list(tensors_in(raw))
    gradients = torch.autograd.grad(criterion.weighted_sum(terms), maps, allow_unused=True)
    return [*terms.values(), *(values for values in gradients if values is not None)]


def learning(model: Detector, criterion: Loss) -> Loss:
    """Return the loss of a model that learns from one with fewer levels and anchors."""
    teacher = build_model(TEACHER, CLASSES).eval()
    model.add_projections([0, *teacher.head_channels])

    @torch.no_grad()
    def teach(images: Tensor) -> Taught:
        raw, maps = teacher.forward_with_maps(images)
        cells = teacher.head.predict_cells(raw)
        return Taught(maps, [each._replace(logits=each.logits[..., 1:]) for each in cells])

    shared = Shared(levels=(1,), classes=(1, 2), same_head=True)
    return DistillationLoss(criterion, model.head, teach, shared)


@pytest.mark.slow
@pytest.mark.parametrize("head", TABLES)
def test_compiled_loss_has_the_terms_and_gradients_of_the_uncompiled_one(head, graphs):
    model, criterion = build(TABLES[head])
    if head == "Detect with a teacher":
        criterion = learning(model, criterion)
    message = compile_loss(
        criterion, model, torch.rand(IMAGES, 3, SIDE, SIDE), NO_AUTOCAST, World(CPU)
    )
    assert message.startswith("--compile: compiled the loss in ")
    compiled = criterion.compiled
    assert compiled is not None
    assert len(graphs) == 2  # one of each half, for any number of targets
    for number in (0, 20):
        targets = some_targets(number)
        found = terms_and_gradients(model, criterion, targets)
        criterion.compiled = None
        expected = terms_and_gradients(model, criterion, targets)
        criterion.compiled = compiled
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    assert len(graphs) == 2


class Counted:
    """Calls a function and counts the calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *arguments):
        self.calls += 1
        return self.function(*arguments)


def test_validation_uses_the_uncompiled_loss():
    model, criterion = build(str(MICRO))
    halves = (Counted(criterion.assign), Counted(criterion.compute_terms))
    criterion.compiled = halves
    raw = model(torch.rand(IMAGES, 3, SIDE, SIDE))
    with torch.no_grad():
        criterion(raw, some_targets(5))
    assert [half.calls for half in halves] == [0, 0]
    criterion(raw, some_targets(5))
    assert [half.calls for half in halves] == [1, 1]


def fail(*_: object) -> None:
    raise RuntimeError("no compiler\nhere")


def test_loss_that_cannot_be_compiled_runs_uncompiled_on_all_processes(monkeypatch):
    model, criterion = build(str(MICRO))
    expected = terms_and_gradients(model, criterion, some_targets(5))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    images = torch.rand(IMAGES, 3, SIDE, SIDE)
    monkeypatch.setattr(torch, "compile", lambda _: fail)
    message = compile_loss(criterion, model, images, NO_AUTOCAST, World(CPU))
    assert message == (
        "--compile: torch cannot compile the loss, so it runs uncompiled (RuntimeError: no "
        "compiler here)"
    )
    assert all(value.equal(state[name]) for name, value in model.state_dict().items())
    assert all(
        ours.equal(theirs)
        for ours, theirs in zip(
            terms_and_gradients(model, criterion, some_targets(5)), expected, strict=True
        )
    )
