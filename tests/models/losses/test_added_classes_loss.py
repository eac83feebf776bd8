"""The loss of a joined head: the newest part alone, and what its ignore regions leave out."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from models import Detector, LossGains, build_loss, build_model
from models.assign.targets import PADDING_CLASS, pad_targets
from models.losses import AddedClassesLoss, added_classes
from models.weights.transfer import with_added_classes
from tests.models.heads.test_joined_head import KINDS, confident_detector
from tests.support.exporting import micro_table
from utils.boxes import IGNORE_CLASS
from utils.nested import tensors_in

# Of the newest of 3 + 1 classes, but for the last two: an older class, and a region of the data.
TARGETS = torch.tensor(
    [
        [0.0, 3, 4, 6, 30, 40],
        [1, 3, 20, 10, 60, 58],
        [1, 3, 33, 35, 47, 62],
        [0, 1, 40, 8, 62, 30],
        [0, IGNORE_CLASS, 0, 40, 20, 64],
    ]
)
OWN = torch.tensor([[0, 0, 0, PADDING_CLASS, IGNORE_CLASS]]).T


def images() -> Tensor:
    return torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> Detector:
    return with_added_classes(confident_detector(request.param), 1).eval()


def loss_of(model: Detector, ignore_old: float) -> AddedClassesLoss:
    criterion = build_loss(model.head, LossGains(ignore_old=ignore_old))
    assert isinstance(criterion, AddedClassesLoss)
    return criterion


def own_loss(model: Detector, raw: Any, targets: Tensor) -> dict[str, Tensor]:
    """The terms of the newest part, as if it were alone."""
    return build_loss(model.head.heads[-1], LossGains())(raw[-1], targets)


def test_without_regions_it_is_the_loss_of_the_newest_part(model):
    raw = model(images())
    criterion = loss_of(model, 1.0)
    terms = criterion(raw, pad_targets(TARGETS))
    own = torch.cat([TARGETS[:, :1], OWN, TARGETS[:, 2:]], 1)
    expected = own_loss(model, raw, pad_targets(own))
    assert {name: term.item() for name, term in terms.items()} == {
        name: term.item() for name, term in expected.items()
    }
    alone = build_loss(model.head.heads[-1], LossGains())
    for epoch in (0, 1):
        for loss in (criterion, alone):
            loss.start_epoch(epoch, 2, without_mosaic=epoch == 1)
        assert criterion.weighted_sum(terms) == alone.weighted_sum(expected)


def test_without_regions_training_computes_the_newest_part_only(model):
    everything = model(images())
    for ignore_old, parts in ((1.0, 1), (0.5, 2)):
        criterion = loss_of(model, ignore_old)
        model.head.training = True  # its layers stay in eval mode, so that the maps are the same
        raw = model(images())
        assert len(raw) == parts
        same = zip(tensors_in(raw[-1]), tensors_in(everything[-1]), strict=True)
        assert all(own.equal(expected) for own, expected in same)
        criterion(raw, pad_targets(TARGETS))
        model.eval()
        assert len(model(images())) == 2


def test_confident_boxes_of_older_parts_are_ignore_regions(model):
    """The same as rows of class -1 in the targets, one for each box that the older part finds."""
    raw = model(images())
    boxes, scores = model.head.heads[0].decode(raw[0])
    confidence = scores.amax(2).quantile(0.8).item()
    image, row = (scores.amax(2) > confidence).nonzero(as_tuple=True)
    assert 0 < len(row) < scores.shape[:2].numel()
    kind = torch.full((len(row), 1), float(IGNORE_CLASS))
    regions = torch.cat([image[:, None], kind, boxes[image, row]], 1)
    own = torch.cat([TARGETS[:, :1], OWN, TARGETS[:, 2:]], 1)

    terms = loss_of(model, confidence)(raw, pad_targets(TARGETS))
    expected = own_loss(model, raw, pad_targets(torch.cat([own, regions])))
    without = own_loss(model, raw, pad_targets(own))
    for name, term in terms.items():
        assert torch.allclose(term, expected[name], rtol=1e-6, atol=0)
    assert any(term < without[name] for name, term in terms.items())


def test_only_the_newest_part_has_gradients(model):
    model.train()
    raw = model(images())
    criterion = loss_of(model, 1.0)
    criterion.weighted_sum(criterion(raw, pad_targets(TARGETS))).backward()
    older, newest = model.head.heads
    assert all(parameter.grad is None for parameter in older.parameters())
    assert any(
        parameter.grad.any() for parameter in newest.parameters() if parameter.grad is not None
    )


def test_shares_of_two_processes_add_up(model):
    """An image each; the counts are the only exchange."""
    criterion = loss_of(model, 0.5)
    raw = [model(image[None]) for image in images()]
    targets = []
    for image in range(2):
        own = TARGETS[TARGETS[:, 0] == image]
        targets.append(pad_targets(torch.cat([torch.zeros(len(own), 1), own[:, 1:]], 1)))

    parts = list(zip(raw, targets, strict=True))
    counts = [criterion.assign(*part)[1] for part in parts]
    shares = [criterion(*part, lambda _: counts[0] + counts[1]) for part in parts]
    for name, term in criterion(model(images()), pad_targets(TARGETS)).items():
        assert sum(share[name] for share in shares).item() == pytest.approx(term.item(), rel=1e-4)


@pytest.mark.parametrize("confidence", [0.5, 1.0])
def test_no_targets_and_no_images(model, confidence):
    criterion = loss_of(model, confidence)
    for count in (0, 2):
        terms = criterion(model(images()[:count]), torch.zeros(0, 6))
        assert all(term.isfinite() for term in terms.values())


def test_ignored_cells_by_hand():
    """One image of 64 x 64 with 4 x 4 cells of 16 px. The old part has one box with a score above
    0.5, of cell (1, 1): 20, 4 to 44, 28. In it are the middles, 24 and 40 px by 8 and 24 px, of
    the cells (1, 0), (2, 0), (1, 1) and (2, 1). The target, 30, 12 to 50, 36, is assigned the cell
    (2, 1), though it is ignored.
    """
    table = micro_table("DecoupledDetect", "nc")
    table["head"] = [[[3], 1, "DecoupledDetect", ["nc"]]]
    model = with_added_classes(build_model(table, 2), 1)
    older = torch.full((1, 4, 4, 7), -5.0)
    older[0, 1, 1] = torch.tensor([1.0, 0, 0.405465, 0.405465, 5, -5, 5])  # 1.5 cells wide
    newest = torch.zeros(1, 4, 4, 6)
    target = torch.tensor([[0.0, 2, 30, 12, 50, 36]])

    criterion = loss_of(model, 0.5)
    raw = ([older], [newest])
    assignment, counts = criterion.assign(raw, target)
    regions = assignment.targets[assignment.targets[:, 1] == IGNORE_CLASS]
    assert regions[0].tolist() == pytest.approx([0, -1, 20, 4, 44, 28], abs=1e-4)
    assert len(regions) == 1
    assigned = assignment.own.slots.prediction[assignment.own.slots.valid].tolist()
    assert 1 * 4 + 2 in assigned  # row 1, column 2

    # Each prediction has the cross entropy log 2 at a logit of 0, whatever its target.
    ignored = {1, 2, 5, 6} - set(assigned)
    entropy = softplus(torch.zeros(())) * (16 - len(ignored))
    terms = criterion(raw, target)
    gain = criterion.loss.gains["obj"]
    assert terms["obj"].item() == pytest.approx((entropy / counts[0] * gain).item(), rel=1e-6)
    assert ignored


def test_shapes_do_not_depend_on_what_the_older_parts_find():
    model = with_added_classes(confident_detector("distance"), 1).eval()
    raw = model(images())
    shapes = []
    for confidence in (0.01, 0.99):
        found = loss_of(model, confidence).assign(raw, pad_targets(TARGETS))
        shapes.append([each.shape for each in tensors_in(list(found[0]))])
    assert shapes[0] == shapes[1]


def test_regions_of_an_image_do_not_depend_on_the_others(monkeypatch):
    """Of each image the five boxes of the highest scores, however confident those of another."""
    monkeypatch.setattr(added_classes, "MAX_REGIONS", 5)
    model = with_added_classes(confident_detector("distance"), 1).eval()
    criterion = loss_of(model, 0.001)

    def regions(part: Tensor) -> Tensor:
        _, targets = criterion.assign(model(part), torch.zeros(0, 6))[0]
        return targets[targets[:, 1] == IGNORE_CLASS, 2:]

    together = regions(images())
    alone = torch.cat([regions(image[None]) for image in images()])
    assert len(alone) == 10
    torch.testing.assert_close(together.sort(0).values, alone.sort(0).values, rtol=1e-4, atol=1e-3)


def test_weights_of_classes_are_those_of_the_newest_part():
    model = with_added_classes(build_model(KINDS["distance"], 3), 2)
    gains = LossGains(class_weights=(9.0, 9.0, 9.0, 1.0, 2.0))
    assert build_loss(model.head, gains).loss.class_weights.tolist() == [1, 2]
