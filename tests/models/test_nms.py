"""Non-maximum suppression against a slow greedy loop; ties, limits and error messages."""

import pytest
import torch

from models.nms import non_max_suppression, register_nms


def random_predictions(boxes: int = 120, classes: int = 3, images: int = 2, seed: int = 0):
    """Return boxes clustered around a few points, partly beyond the image's left and upper border,
    and scores.
    """
    g = torch.Generator().manual_seed(seed)
    centers = (
        torch.randint(0, 4, (images, boxes, 2), generator=g) * 60.0
        + torch.randn(images, boxes, 2, generator=g) * 6
    )
    sizes = torch.rand(images, boxes, 2, generator=g) * 30 + 30
    return torch.cat([centers - sizes / 2, centers + sizes / 2], -1), torch.rand(
        images, boxes, classes, generator=g
    )


def iou_of(a: list[float], b: list[float]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    overlap = max(width, 0) * max(height, 0)
    return overlap / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - overlap)


def slow_suppress(
    boxes, scores, *, confidence, iou, multi_label=True, agnostic=False, most=300, candidates=3000
):
    """Compute the definition for one image with plain loops."""
    rows = []
    for n in range(len(boxes)):
        for c in range(scores.shape[1]):
            is_best = all(scores[n, c] >= scores[n, k] for k in range(scores.shape[1]))
            if scores[n, c] > confidence and (multi_label or is_best):
                rows.append((scores[n, c].item(), n, c))
    rows = sorted(rows, key=lambda row: (-row[0], row[1], row[2]))[:candidates]
    kept = []
    for score, n, c in rows:
        rivals = [k for k in kept if agnostic or k[2] == c]
        if all(iou_of(boxes[n].tolist(), boxes[k].tolist()) <= iou for _, k, _ in rivals):
            kept.append((score, n, c))
    return torch.tensor([[*boxes[n].tolist(), score, c] for score, n, c in kept[:most]]).reshape(
        -1, 6
    )


@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("iou", [0.3, 0.6])
def test_nms_equals_slow_loop(iou, multi_label, agnostic):
    boxes, scores = random_predictions()
    settings = {"confidence": 0.2, "iou": iou, "multi_label": multi_label, "agnostic": agnostic}
    for image, found in enumerate(non_max_suppression(boxes, scores, **settings)):
        wanted = slow_suppress(boxes[image], scores[image], **settings)
        assert (
            0 < len(wanted) < (scores[image] > 0.2).sum()
        )  # something is kept and something suppressed
        assert found.equal(wanted)


def test_nms_with_many_classes_and_negative_coordinates():
    # 80 classes of boxes with negative coordinates: the shift that separates the classes must
    # neither let boxes of different classes overlap nor be so large that digits are lost.
    boxes, scores = random_predictions(boxes=20, classes=80, images=1, seed=3)
    boxes = boxes - 180
    settings = {"confidence": 0.5, "iou": 0.5}
    found = non_max_suppression(boxes, scores, **settings, max_detections=3000)[0]
    assert found.equal(slow_suppress(boxes[0], scores[0], **settings, most=3000))


def test_nms_decision_at_threshold_does_not_depend_on_class():
    # A pair of boxes with IoU just below 0.6 and one just above it. Shifted as class 79, float32
    # has steps of 0.004 px.
    first = [100.0, 100.0, 120.0, 110.0]
    for shift, suppressed in ((5.001, False), (4.999, True)):  # 15 / 25 = 0.6 at 5 px
        boxes = torch.tensor([[first, [100 + shift, 100, 120 + shift, 110], [0, 0, 640, 640]]])
        for class_id in (0, 79):
            scores = torch.zeros(1, 3, 80)
            scores[0, :2, class_id] = torch.tensor([0.9, 0.8])
            scores[0, 2, 0] = 0.5
            found = non_max_suppression(boxes, scores, iou=0.6)[0]
            assert (found[:, 5] == class_id).sum().item() == (1 if suppressed else 2) + (
                class_id == 0
            )


def test_nms_of_a_box_with_several_classes():
    boxes = torch.tensor([[[0.0, 0, 10, 10]]])
    scores = torch.tensor([[[0.2, 0.9, 0.5]]])
    rows = non_max_suppression(boxes, scores, confidence=0.3)[0]
    assert rows[:, 4:].equal(torch.tensor([[0.9, 1], [0.5, 2]]))
    assert non_max_suppression(boxes, scores, confidence=0.3, multi_label=False)[0][
        :, 5
    ].tolist() == [1]
    assert non_max_suppression(boxes, scores, confidence=0.3, agnostic=True)[0][:, 5].tolist() == [
        1
    ]


def test_nms_prefers_lower_index_for_equal_scores():
    boxes = torch.tensor([[[0.0, 0, 10, 10], [1, 0, 11, 10], [50, 50, 60, 60], [51, 50, 61, 60]]])
    found = non_max_suppression(boxes, torch.full((1, 4, 1), 0.5), iou=0.5)[0]
    assert found[:, :4].tolist() == [[0, 0, 10, 10], [50, 50, 60, 60]]
    assert non_max_suppression(boxes, torch.full((1, 4, 1), 0.5), iou=0.5, max_candidates=1)[0][
        :, 0
    ].tolist() == [0]


def test_nms_confidence_and_iou_thresholds_by_hand():
    # 10 x 10 boxes shifted by 5 px: overlap 50, union 150, IoU exactly 1/3.
    boxes = torch.tensor([[[0.0, 0, 10, 10], [5, 0, 15, 10], [100, 0, 110, 10]]])
    scores = torch.tensor([[[0.75], [0.5], [0.25]]])
    assert len(non_max_suppression(boxes, scores, confidence=0.25, iou=0.34)[0]) == 2
    assert len(non_max_suppression(boxes, scores, confidence=0.25, iou=0.33)[0]) == 1
    assert len(non_max_suppression(boxes, scores, confidence=0.2499, iou=0.34)[0]) == 3


@pytest.mark.parametrize("most", [1, 7, 50, 359, 360, 10**6])
def test_nms_candidates_are_the_highest_scores(most):
    boxes, scores = random_predictions(images=1)
    scores = (scores * 20).round() / 20  # many ties, also at the top-k limit
    settings = {"confidence": 0.0, "iou": 0.5, "max_detections": 1000}
    found = non_max_suppression(boxes, scores, max_candidates=most, **settings)[0]
    wanted = slow_suppress(boxes[0], scores[0], confidence=0.0, iou=0.5, most=1000, candidates=most)
    assert found.equal(wanted)
    assert found.equal(non_max_suppression(boxes, scores, max_candidates=most, **settings)[0])


def test_max_detections_keeps_the_best():
    boxes, scores = random_predictions()
    every = non_max_suppression(boxes, scores)
    for found, all_of_them in zip(
        non_max_suppression(boxes, scores, max_detections=4), every, strict=True
    ):
        assert found.equal(all_of_them[:4])
        assert (found[:, 4].diff() <= 0).all()


def test_nms_processes_images_independently():
    boxes, scores = random_predictions(images=3)
    for image, found in enumerate(non_max_suppression(boxes, scores)):
        assert found.equal(
            non_max_suppression(boxes[image : image + 1], scores[image : image + 1])[0]
        )


@pytest.mark.parametrize("multi_label", [False, True])
def test_nms_with_no_images_boxes_or_scores(multi_label):
    for images, boxes in ((0, 5), (2, 0), (0, 0)):
        found = non_max_suppression(
            torch.zeros(images, boxes, 4), torch.zeros(images, boxes, 3), multi_label=multi_label
        )
        assert [tuple(f.shape) for f in found] == [(0, 6)] * images
    boxes, scores = random_predictions()
    assert [
        len(f) for f in non_max_suppression(boxes, scores, confidence=1.0, multi_label=multi_label)
    ] == [0, 0]
    assert [
        len(f) for f in non_max_suppression(boxes, scores * float("nan"), multi_label=multi_label)
    ] == [0, 0]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"confidence": 1.5}, "confidence 1.5: choose a threshold from 0 to 1"),
        ({"confidence": float("nan")}, "confidence nan: choose a threshold from 0 to 1"),
        ({"iou": -0.1}, "iou -0.1: choose a threshold from 0 to 1"),
        ({"max_detections": 0}, "max_detections 0: choose 1 or more"),
        ({"max_candidates": -1}, "max_candidates -1: choose 1 or more"),
    ],
)
def test_nms_rejects_invalid_settings(setting, sentence):
    with pytest.raises(ValueError) as caught:
        non_max_suppression(*random_predictions(), **setting)
    assert str(caught.value) == sentence


def test_the_python_package_of_torchvision_is_not_imported(monkeypatch: pytest.MonkeyPatch):
    """Its import takes 2 s, its library of operators a hundredth of that."""
    imported: list[str] = []
    monkeypatch.setattr("models.nms.importlib.import_module", imported.append)
    register_nms()
    assert imported == []


@pytest.mark.parametrize("cuda", [13000, 12080, 11080])
def test_a_library_for_another_cuda_leaves_the_message_to_torchvision(
    monkeypatch: pytest.MonkeyPatch, cuda: int
):
    imported: list[str] = []
    monkeypatch.setattr("models.nms.importlib.import_module", imported.append)
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(torch.ops.torchvision, "_cuda_version", lambda: cuda)
    register_nms()
    assert imported == ([] if cuda == 12080 else ["torchvision"])


def test_without_the_library_torchvision_is_imported(monkeypatch: pytest.MonkeyPatch):
    imported: list[str] = []
    monkeypatch.setattr("models.nms.find_spec", lambda name: None)
    monkeypatch.setattr("models.nms.importlib.import_module", imported.append)
    register_nms()
    assert imported == ["torchvision"]
