"""The loss of a model that learns from a teacher: hand-worked terms, a slow oracle, every pair of
heads, and what several processes share.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import scatter_gather

from models import Detector, LossGains, build_loss, build_model
from models.heads import CellPredictions, WithAuxiliary, WithProjections
from models.heads.cells import joint_logit
from models.losses.distillation import (
    DistillationLoss,
    PredictionPairs,
    Shared,
    Taught,
    channel_divergence,
    output_sum,
    paired,
)
from models.losses.fixed_point import STEPS
from utils.nested import tensors_in

SIDE = 64
TARGETS = torch.tensor([[0.0, 1, 4, 6, 30, 40], [1, 0, 20, 10, 60, 58], [1, 2, 33, 35, 47, 62]])
HEADS: dict[str, list[Any]] = {
    "Detect": ["nc", "anchors"],
    "DecoupledDetect": ["nc"],
    "DistanceDetect": ["nc"],
    "GroupedDistanceDetect": ["nc"],
    "DualDistanceDetect": ["nc", 1, False],
    "SharedDistanceDetect": ["nc"],
}


def model_of(head: str, classes: int = 3, seed: int = 0, width: int = 8) -> Detector:
    """A model with two levels, strides 8 and 16; an anchor-based one has two anchors a cell."""
    torch.manual_seed(seed)
    table = {
        "depth_multiple": 1.0,
        "width_multiple": 1.0,
        "anchors": [[10, 14, 23, 27], [81, 82, 135, 169]],
        "backbone": [
            [-1, 1, "Conv", [width, 3, 4]],
            [-1, 1, "Conv", [width, 3, 2]],  # 1, stride 8
            [-1, 1, "Conv", [width, 3, 2]],  # 2, stride 16
        ],
        "head": [[[1, 2], 1, head, HEADS[head]]],
    }
    model = build_model(table, classes)
    with torch.no_grad():  # scores far from 0, unlike those of a new head
        for name, value in model.head.named_parameters():
            if name.endswith("bias"):
                value.add_(torch.randn_like(value))
    return model


def teach_with(teacher: Detector, classes: list[int]) -> Any:
    """What a teacher finds in images, as training/distillation/teacher.py does."""

    @torch.no_grad()
    def teach(images: Tensor) -> Taught:
        raw, maps = teacher.eval().forward_with_maps(images)
        cells = teacher.head.predict_cells(raw)
        return Taught(maps, [each._replace(logits=each.logits[..., classes]) for each in cells])

    return teach


def distilling(
    model: Detector, teacher: Detector, classes: tuple[list[int], list[int]] = ([0, 1, 2],) * 2
) -> DistillationLoss:
    if model.projections is None:
        model.add_projections(teacher.head_channels)
    main = build_loss(model.head, LossGains())
    teach = teach_with(teacher, classes[1])
    shared = Shared([0, 1], classes[0], same_head=True)
    return DistillationLoss(main, model.head, teach, shared)


def terms_of(criterion: DistillationLoss, model: Detector, images: Tensor) -> dict[str, Tensor]:
    criterion.begin_batch(images)
    return criterion(model.train()(images), TARGETS)


def test_batch_whose_step_failed_is_forgotten():
    """Its maps would be in memory while a smaller batch is tried."""
    criterion = distilling(model_of("Detect"), model_of("Detect"))
    criterion.begin_batch(torch.rand(2, 3, SIDE, SIDE))
    kept = []
    teach = criterion.teach
    criterion.teach = lambda images: kept.append(criterion.taught) or teach(images)
    criterion.begin_batch(torch.rand(1, 3, SIDE, SIDE))
    assert kept == [None]


# What heads predict in cells


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("classes", [1, 3])
def test_cells_predict_what_is_decoded(head, classes):
    model = model_of(head, classes).eval()
    model.choose_output("o2m" if model.head.outputs else "")
    raw = model(torch.rand(2, 3, SIDE, SIDE))
    boxes, scores = model.decode(raw)
    levels = model.head.predict_cells(raw)
    # `decode` lists a level's anchors first, then its rows and columns
    found = [[part.movedim(3, 1).flatten(1, 3) for part in level] for level in levels]
    assert torch.cat([each for each, _ in found], 1).equal(boxes)
    of_cells = torch.cat([logits for _, logits in found], 1).sigmoid()
    torch.testing.assert_close(of_cells, scores, rtol=1e-5, atol=1e-7)
    assert levels[0].boxes_xyxy.shape == (2, 8, 8, 2 if head == "Detect" else 1, 4)


def test_joint_logit_is_that_of_the_product_and_stays_finite():
    values = torch.linspace(-6, 6, 25, dtype=torch.float64)
    grids = torch.meshgrid(values, values, indexing="ij")
    objectness, classes = (grid.clone().requires_grad_() for grid in grids)
    product = objectness.sigmoid() * classes.sigmoid()
    expected = torch.logit(product)
    found = joint_logit(objectness, classes)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(x.sum(), (objectness, classes)) for x in (found, expected)]
    torch.testing.assert_close(*gradients)

    large = torch.tensor([-3e4, 3e4], requires_grad=True)
    joint_logit(large[:, None], large).sum().backward()
    assert joint_logit(large[:, None], large).isfinite().all()
    assert large.grad.isfinite().all()


# Terms by hand


def test_divergence_of_two_cells():
    """Softmax of the teacher (3/4, 1/4), of the model (1/2, 1/2): 3/4 log 3/2 + 1/4 log 1/2. A
    number added to a channel changes nothing, and the second channel is equal: the mean is half.
    """
    own = torch.tensor([[[[5.0, 5.0]], [[1.0, 2.0]]]])
    taught = torch.tensor([[[[math.log(3), 0.0]], [[0.0, 1.0]]]])
    expected = (0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2
    assert channel_divergence(own, taught).item() == pytest.approx(expected, rel=1e-5)


def test_output_of_two_pairs():
    """Side by side, boxes of 2 x 2 and 2 x 4: GIoU 0 - (16 - 12) / 16; the teacher's confidence is
    its highest score, 1/2. The second pair is equal, and only the score of its model differs: 1/2
    for a target of 1/4 costs (1/4)^2 log 2, times the confidence of 1/4.
    """
    boxes = torch.tensor([[[0.0, 0, 2, 2], [1, 1, 5, 5]]])
    teacher_boxes = torch.tensor([[[2.0, 0, 4, 4], [1, 1, 5, 5]]])
    quarter = math.log(1 / 3)
    logits = torch.tensor([[[0.0, -2.0], [0.0, quarter]]])
    teacher_logits = torch.tensor([[[0.0, -2.0], [quarter, quarter]]])
    found = output_sum(PredictionPairs(boxes, logits, teacher_boxes, teacher_logits))
    assert found.item() == pytest.approx(0.5 * 1.25 + math.log(2) / 64, rel=1e-5)


def test_inverted_box_of_the_model_costs_as_much_as_one_that_misses():
    """Linear distances may be negative. Inside the teacher's box the GIoU is 0, however wide."""
    teacher_boxes = torch.tensor([[[0.0, 0, 8, 8]]])
    zero = torch.zeros(1, 1, 1)
    for side in (1.0, 1000.0):
        boxes = torch.tensor([[[4 + side, 4 + side, 4 - side, 4 - side]]])
        found = output_sum(PredictionPairs(boxes, zero, teacher_boxes, zero))
        assert found.item() == pytest.approx(0.5)


def test_pairs_are_one_to_one_or_of_the_best():
    boxes = torch.arange(8.0).view(1, 1, 1, 2, 4)
    two = CellPredictions(boxes, torch.tensor([[[[[0.0, 3.0], [2.0, 1.0]]]]]))
    one = CellPredictions(boxes[:, :, :, 1:], torch.tensor([[[[[1.0, 1.0]]]]]))
    assert paired(two, two, same_head=True) == (two, two)
    own, taught = paired(two, one, same_head=True)
    assert own.boxes_xyxy.equal(boxes[:, :, :, :1])
    assert own.logits.tolist() == [[[[[0.0, 3.0]]]]]
    assert taught is one

    # Two anchors of one head, two groups of classes of the other: the best of each.
    for best in paired(two, two, same_head=False):
        assert best.logits.tolist() == [[[[[0.0, 3.0]]]]]


# The whole loss


def by_loops(model: Detector, teacher: Detector, images: Tensor, classes: Any) -> list[float]:
    """The terms `feature` and `output`, image by image and cell by cell, in float64."""
    model, teacher, images = model.double().eval(), teacher.double().eval(), images.double()
    own_raw, own_maps = model.forward_with_maps(images)
    raw, maps = teacher.forward_with_maps(images)
    projected = model.projections(own_maps)

    feature = 0.0
    for own, taught in zip(projected, maps, strict=True):
        batch, channels = own.shape[:2]
        for image in range(batch):
            for channel in range(channels):
                p = taught[image, channel].flatten().softmax(0)
                q = own[image, channel].flatten().softmax(0)
                feature += (p * (p / q).log()).sum().item() / channels / batch / len(maps)

    output = confidences = 0.0
    levels = zip(model.head.predict_cells(own_raw), teacher.head.predict_cells(raw), strict=True)
    for own, taught in levels:
        batch, height, width, count, _ = own.logits.shape
        for place in torch.cartesian_prod(*map(torch.arange, (batch, height, width))).tolist():
            own_boxes, own_logits = (part[tuple(place)] for part in own)
            boxes, logits = (part[tuple(place)] for part in taught)
            own_logits, logits = own_logits[:, classes[0]], logits[:, classes[1]]
            if count != len(boxes):
                best, own_best = logits.amax(1).argmax(), own_logits.amax(1).argmax()
                boxes, logits = boxes[best][None], logits[best][None]
                own_boxes, own_logits = own_boxes[own_best][None], own_logits[own_best][None]
            for a in range(len(boxes)):
                target, score = logits[a].sigmoid(), own_logits[a].sigmoid()
                entropy = -target * score.log() - (1 - target) * (1 - score).log()
                of_scores = ((target - score) ** 2 * entropy).sum().item()
                of_boxes = 1 - overlap(own_boxes[a], boxes[a])
                output += target.max().item() * (of_scores + of_boxes)
                confidences += target.max().item()
    return [feature, output / max(confidences, 1)]


def overlap(own: Tensor, other: Tensor) -> float:
    """GIoU of two boxes."""
    (a, b, c, d), (e, f, g, h) = own.tolist(), other.tolist()
    common = max(min(c, g) - max(a, e), 0) * max(min(d, h) - max(b, f), 0)
    union = (c - a) * (d - b) + (g - e) * (h - f) - common
    hull = (max(c, g) - min(a, e)) * (max(d, h) - min(b, f))
    return common / union - (hull - union) / hull


@pytest.mark.parametrize(
    ("head", "of_teacher"),
    [
        ("Detect", "Detect"),
        ("Detect", "DistanceDetect"),
        ("DecoupledDetect", "Detect"),
        ("DualDistanceDetect", "DecoupledDetect"),
        ("SharedDistanceDetect", "GroupedDistanceDetect"),
    ],
)
def test_terms_of_heads_of_all_kinds_are_those_of_loops(head, of_teacher):
    """The teacher knows 4 classes, two of them also the model's."""
    model, teacher = model_of(head), model_of(of_teacher, 4, seed=1, width=16)
    classes = ([0, 2], [3, 1])
    criterion = distilling(model, teacher, classes)
    images = torch.rand(2, 3, SIDE, SIDE)
    model.double()
    teacher.double()
    criterion.begin_batch(images.double())
    raw = model.eval()(images.double())
    maps = model.projections(model.forward_with_maps(images.double())[1])
    terms = criterion(WithProjections(raw, maps), TARGETS)

    feature, output = by_loops(model, teacher, images, classes)
    weight = criterion.main.box_weight
    assert weight > 0
    assert terms["feature"].item() == pytest.approx(feature * weight, rel=1e-6)
    assert terms["output"].item() == pytest.approx(output * weight, rel=1e-5)

    # The main loss is as it is without a teacher.
    alone = criterion.main(raw, TARGETS)
    assert {name: terms[name] for name in alone} == alone
    assert tuple(terms) == criterion.terms == (*criterion.main.terms, "feature", "output")
    total = criterion.main.weighted_sum(alone) + terms["feature"] + terms["output"]
    assert criterion.weighted_sum(terms).equal(total)


@pytest.mark.parametrize("head", HEADS)
def test_a_teacher_that_is_the_model_teaches_nothing(head):
    model = model_of(head).eval()
    criterion = distilling(model, model)
    images = torch.rand(2, 3, SIDE, SIDE)
    criterion.begin_batch(images)
    raw, maps = model.forward_with_maps(images)
    terms = criterion(WithProjections(raw, maps), TARGETS)
    assert terms["feature"].item() == pytest.approx(0, abs=1e-7)
    assert terms["output"].item() == pytest.approx(0, abs=1e-6)
    gradients = torch.autograd.grad(terms["output"], list(tensors_in(raw)), allow_unused=True)
    assert max(each.abs().max().item() for each in gradients if each is not None) < 1e-6


@pytest.mark.parametrize("boxes", [0, 3])
def test_shares_of_two_processes_add_up(boxes):
    """An image each, without boxes, too; the counts are the only exchange.

    The teacher is confident, so that the sum of its confidences, at least 1, is more than that.
    """
    model, teacher = model_of("DistanceDetect"), model_of("Detect", seed=1)
    with torch.no_grad():
        for name, value in teacher.head.named_parameters():
            if name.endswith("bias"):
                value.add_(5)
    criterion = distilling(model, teacher)
    images = torch.rand(2, 3, SIDE, SIDE, dtype=torch.float64)
    teacher.double()
    model.double().eval()  # BatchNorm's statistics would be those of a process

    def raw_of(part: Tensor) -> WithProjections:
        raw, maps = model.forward_with_maps(part)
        return WithProjections(raw, model.projections(maps))

    criterion.begin_batch(images)
    whole = criterion(raw_of(images), TARGETS[:boxes])
    assert all(term.isfinite() for term in whole.values())

    counts: list[Tensor] = []

    def recorded(own: Tensor) -> Tensor:
        counts.append(own)
        return own

    def summed(_: Tensor) -> Tensor:
        return counts[0] + counts[1]

    shares = []
    for total in (recorded, recorded, summed, summed):
        image = len(shares) % 2
        part = images[image : image + 1]
        own = TARGETS[:boxes][TARGETS[:boxes, 0] == image] * torch.tensor([0.0, 1, 1, 1, 1, 1])
        criterion.begin_batch(part)
        shares.append(criterion(raw_of(part), own, total))
    assert len(counts) == 2
    assert all(own[-2] > 2 * STEPS for own in counts)
    shares = shares[2:]
    for name, term in whole.items():
        assert sum(share[name] for share in shares).item() == pytest.approx(term.item(), rel=1e-5)


def test_data_parallel_gathers_the_projections(monkeypatch):
    """As torch does for GPUs; on a CPU its DataParallel calls the model itself."""

    def concatenated(device: int, dim: int, *parts: Tensor) -> Tensor:
        return torch.cat(parts, dim)

    monkeypatch.setattr(scatter_gather.Gather, "apply", concatenated)
    raw = [torch.rand(2, 4, 4, 7)]
    whole = WithProjections(WithAuxiliary(raw, raw), [torch.rand(2, 3, 4, 4)])

    def image(number: int, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[number : number + 1]
        parts = [image(number, each) for each in value]
        return type(value)(*parts) if isinstance(value, tuple) else parts

    gathered = scatter_gather.gather([image(number, whole) for number in range(2)], 0)
    assert isinstance(gathered, WithProjections)
    assert isinstance(gathered.raw, WithAuxiliary)
    assert all(a.equal(b) for a, b in zip(tensors_in(gathered), tensors_in(whole), strict=True))


def test_every_parameter_learns_and_the_teacher_does_not():
    model, teacher = model_of("DualDistanceDetect"), model_of("SharedDistanceDetect", seed=1)
    criterion = distilling(model, teacher)
    terms = terms_of(criterion, model, torch.rand(2, 3, SIDE, SIDE))
    criterion.weighted_sum(terms).backward()
    assert [name for name, value in model.named_parameters() if value.grad is None] == []
    assert all(value.grad is None for value in teacher.parameters())
    assert list(criterion.parameters()) == []
    assert model.projections.convs[0].weight.grad.abs().sum() > 0


def test_validation_has_no_teacher():
    model = model_of("DistanceDetect")
    criterion = distilling(model, model_of("Detect", seed=1))
    raw = model.eval()(torch.rand(2, 3, SIDE, SIDE))
    terms = criterion(raw, TARGETS)
    alone = criterion.main(raw, TARGETS)
    assert terms == alone
    assert criterion.validation_terms == tuple(terms)


def test_each_batch_needs_its_images():
    model = model_of("DistanceDetect")
    criterion = distilling(model, model_of("Detect", seed=1))
    images = torch.rand(2, 3, SIDE, SIDE)
    terms_of(criterion, model, images)
    with pytest.raises(ValueError, match="begin_batch must be called with the images of each"):
        criterion(model.train()(images), TARGETS)


def test_epochs_reach_the_main_loss():
    model = model_of("DualDistanceDetect")
    criterion = distilling(model, model_of("Detect", seed=1))
    criterion.start_epoch(9, 10, without_mosaic=False)
    assert criterion.main.o2m_weight == pytest.approx(0.1)
