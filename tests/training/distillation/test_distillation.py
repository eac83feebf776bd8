"""training/distillation: what a model and a teacher have in common, and what the teacher finds."""

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from models import Detector, LossGains, build_loss, build_model
from models.detector import count_detecting, count_parameters
from models.heads.distance import DistanceHead
from models.losses.distillation import DistillationLoss
from models.weights.kestrel import load_detector
from models.weights.transfer import with_added_classes
from training.distillation.distillation import Distillation, open_distillation
from training.distillation.matching import match
from training.distillation.teacher import Teacher
from training.distillation.teacher_file import read_teacher
from utils.distributed.world import World
from utils.files import checkpoint_file
from utils.log import Say, say_nothing

CPU = World(torch.device("cpu"))
NAMES = ["cat", "dog", "cow"]


def table_of(head: str, strides: tuple[int, ...], width: int = 8) -> dict[str, Any]:
    """A table of rows of these strides, the first at most 8."""
    steps = [strides[0], *(after // before for before, after in pairwise(strides))]
    args: list[Any] = ["nc", 1, False] if head == "DualDistanceDetect" else ["nc"]
    return {
        "depth_multiple": 1.0,
        "width_multiple": 1.0,
        "backbone": [[-1, 1, "Conv", [width * (i + 1), 3, s]] for i, s in enumerate(steps)],
        "head": [[list(range(len(steps))), 1, head, args]],
    }


def model_of(strides: tuple[int, ...] = (8, 16), classes: int = 3, **options: Any) -> Detector:
    torch.manual_seed(0)
    head = options.pop("head", "DistanceDetect")
    return build_model(table_of(head, strides, **options), classes)


def saved(folder: Path, model: Detector, names: list[str]) -> str:
    """The path of a checkpoint of a model."""
    file = folder / "teacher.pt"
    entries = {"table": model.table, "names": names, "model": model.state_dict()}
    checkpoint_file.save(file, entries)
    load_detector(file)
    return str(file)


def opened(
    file: str, model: Detector, say: Say = say_nothing, image_size: int = 64
) -> Distillation:
    return open_distillation(read_teacher(file), model, NAMES, image_size, torch.float32, CPU, say)


def test_levels_and_classes_are_matched():
    model = model_of((4, 8, 16))
    teacher = model_of((8, 16, 32), 4)
    common = match(model, NAMES, teacher, ["dog", "bird", "cat", "dog"])
    assert common == ([(1, 0), (2, 1)], [(0, 2), (1, 0)])  # of two dogs the first


@pytest.mark.parametrize(
    ("strides", "names", "sentence"),
    [
        ((4, 32), NAMES, "its levels have the strides 4, 32, those of the model 8, 16; at least"),
        ((8, 16), ["a", "Cat", "b\x1b"], r"none of its classes \(a, Cat, b\\x1b\) is a class of"),
    ],
)
def test_teacher_with_nothing_in_common_is_refused(tmp_path, strides, names, sentence):
    file = saved(tmp_path, model_of(strides), names)
    with pytest.raises(ValueError, match=f"--teacher .*teacher.pt: {sentence}"):
        opened(file, model_of())


def test_heads_that_do_not_say_what_cells_predict_are_refused(monkeypatch):
    monkeypatch.delattr("models.heads.point_distance.PointDistanceHead.predict_cells")
    model = model_of()
    sentence = "a head of class DistanceHead does not predict in cells"
    with pytest.raises(ValueError, match=sentence):
        match(model, NAMES, model, NAMES)
    with pytest.raises(ValueError, match=sentence):
        model.head.predict_cells([])
    assert DistanceHead.predict_cells


def test_run_learns_from_its_teacher(tmp_path):
    said: list[str] = []
    teacher = model_of((8, 16, 64), 2, width=16)
    file = saved(tmp_path, teacher, ["cow", "cat"])
    model = model_of((4, 8, 16))
    distillation = opened(file, model, said.append)
    assert model.table["distillation"] == {"channels": [0, 16, 32]}
    assert distillation.stride == 64
    parameters = sum(value.numel() for value in teacher.parameters()) + 16  # its bins
    assert said == [
        f"--teacher {file}: {parameters:,} parameters; teaches maps and boxes at strides 8, 16 and "
        f"the scores of 2 of 3 classes; {16 * 16 + 24 * 32:,} parameters of projections, which "
        "best.pt does not keep"
    ]

    criterion = distillation.add_to(build_loss(model.head, LossGains()), 2.0)
    assert isinstance(criterion, DistillationLoss)
    assert criterion.shared.same_head
    images = torch.rand(2, 3, 64, 64)
    criterion.begin_batch(images)
    terms = criterion(model.train()(images), torch.zeros(0, 6))
    assert terms["feature"] > 0
    assert terms["output"] > 0

    half = distillation.add_to(build_loss(model.head, LossGains()), 1.0)
    half.begin_batch(images)
    other = half(model(images), torch.zeros(0, 6))
    assert (2 * other["output"]).item() == pytest.approx(terms["output"].item(), rel=1e-3)

    # A resumed model has the projections, and keeps them.
    resumed = Detector(model.table)
    convs = resumed.projections
    opened(file, resumed, said.append)
    assert resumed.projections is convs
    assert said[1] == said[0]


def test_another_image_size_of_the_teacher_is_said(tmp_path):
    model = model_of()
    file = tmp_path / "teacher.pt"
    entries = {"table": model.table, "names": NAMES, "model": model.state_dict()}
    checkpoint_file.save(file, entries | {"config": {"imgsz": 320}})
    said: list[str] = []
    opened(str(file), model_of(), said.append, 640)
    opened(str(file), model_of(), said.append, 320)
    sentence = f"--teacher {file}: trained at 320 px, this run is at 640 px: see --img"
    assert [line for line in said if "px" in line] == [sentence]


def test_parameters_of_the_teacher_are_those_that_detect(tmp_path):
    teacher = model_of()
    teacher.add_projections([8, 8])
    said: list[str] = []
    opened(saved(tmp_path, teacher, NAMES), model_of(), said.append)
    assert f": {count_detecting(teacher):,} parameters; teaches" in said[0]
    assert count_detecting(teacher) < count_parameters(teacher)


def test_without_teacher_nothing_is_added():
    model = model_of()
    distillation = opened("", model)
    criterion = build_loss(model.head, LossGains())
    assert distillation.add_to(criterion, 1.0) is criterion
    assert distillation.stride == 16
    assert model.projections is None

    model.add_projections([8, 8])
    with pytest.raises(ValueError, match="the table has `distillation`, which needs --teacher"):
        opened("", model)


def test_model_with_added_classes_teaches_all_of_them(tmp_path):
    """Both parts of its head predict in each cell, each its own classes."""
    joined = with_added_classes(model_of((8, 16), 2), 1).eval()
    raw = joined(torch.rand(2, 3, 64, 64))
    boxes, scores = joined.decode(raw)
    levels = joined.head.predict_cells(raw)
    parts = [[part.movedim(3, 0) for part in level] for level in levels]  # [2, B, H, W, ...]
    found = torch.cat([level[0].flatten(2, 3) for level in parts], 2)
    assert torch.cat(list(found), 1).equal(boxes)
    of_cells = torch.cat([level[1].flatten(2, 3) for level in parts], 2).sigmoid()
    torch.testing.assert_close(torch.cat(list(of_cells), 1), scores, rtol=1e-5, atol=1e-7)

    model = model_of()
    file = saved(tmp_path, joined, ["cow", "cat", "dog"])
    distillation = opened(file, model)
    criterion = distillation.add_to(build_loss(model.head, LossGains()), 1.0)
    assert not criterion.shared.same_head  # its predictions of a cell are not those of anchors
    images = torch.rand(2, 3, 64, 64)
    criterion.begin_batch(images)
    terms = criterion(model.train()(images), torch.zeros(0, 6))
    criterion.weighted_sum(terms).backward()
    assert all(term.isfinite() for term in terms.values())

    # Classes are added to the weights of a last.pt, without its projections.
    assert with_added_classes(model, 1).projections is None


@pytest.mark.parametrize("head", ["DistanceDetect", "DualDistanceDetect"])
def test_teacher_finds_what_its_model_detects(head):
    """Fused, without gradients; of a head with two outputs that with many boxes per object."""
    detector = model_of((8, 16, 32), 4, head=head).eval()
    images = torch.rand(2, 3, 64, 64)
    expected, maps = copy.deepcopy(detector).forward_with_maps(images)
    cells = detector.head.predict_cells(expected)

    teacher = Teacher(detector, [1, 2], [3, 0], torch.float32, CPU)
    found = teacher(images)
    for own, level in zip(found.maps, (1, 2), strict=True):
        torch.testing.assert_close(own, maps[level].detach(), rtol=1e-4, atol=1e-5)
    for own, level in zip(found.cells, (1, 2), strict=True):
        torch.testing.assert_close(
            own.boxes_xyxy, cells[level].boxes_xyxy.detach(), rtol=1e-4, atol=1e-3
        )
        logits = cells[level].logits.detach()[..., [3, 0]]
        torch.testing.assert_close(own.logits, logits, rtol=1e-4, atol=1e-4)
        assert not own.logits.requires_grad
    assert not any(value.requires_grad for value in detector.parameters())
