"""Heads joined to one: what the old model finds stays as it is, for every kind of head."""

from typing import Any

import pytest
import torch
from torch import Tensor

from models import Detector, build_model
from models.heads import AnchorBasedHead, JoinedHead
from models.heads.adapters import MapAdapters
from models.loading import load_backend
from models.nms import non_max_suppression
from models.tables.read import read_table
from models.tables.resolve import resolve
from models.weights.kestrel import load_detector
from models.weights.transfer import transfer, with_added_classes
from tests.support.exporting import MICRO, lively_detector, micro_table, save_checkpoint
from training.freezing import freeze
from utils.nested import tensors_in

NAMES = ["disc", "square", "bar"]
KINDS: dict[str, dict[str, Any]] = {
    "anchor-based": read_table(MICRO),
    "decoupled": micro_table("DecoupledDetect", "nc"),
    "distance": micro_table("DistanceDetect", "nc", 16),
    "grouped": micro_table("GroupedDistanceDetect", "nc", 16),
    "dual": micro_table("DualDistanceDetect", "nc", 1, True),
    "shared": micro_table("SharedDistanceDetect", "nc", True),
}


def confident_detector(kind: str) -> Detector:
    """A model of three classes whose predictions vary, with some scores above 0.5."""
    model = lively_detector(KINDS[kind])
    while detect(model)[1].max() < 0.6:
        for key, values in model.head.state_dict().items():
            classes = model.head.split_classes(key, values)[1]
            if classes is not None and key.endswith("bias"):
                classes.add_(1)
    return model


@pytest.fixture(params=KINDS)
def old(request: pytest.FixtureRequest) -> Detector:
    return confident_detector(request.param)


def images(seed: int = 1) -> Tensor:
    return torch.rand(3, 3, 64, 96, generator=torch.Generator().manual_seed(seed))


def detect(model: Detector, confidence: float = 0.0, count: int = 3) -> tuple[Tensor, Tensor]:
    with torch.inference_mode():
        return model.decode(model(images()[:count]), confidence)


def test_old_predictions_are_equal_to_the_bit(old):
    """Before NMS, above a confidence, and fused; two groups are added, one after the other."""
    before, scores_before = detect(old)
    model = with_added_classes(with_added_classes(old, 1), 2).eval()
    assert model.table["class_groups"] == [3, 1, 2]
    assert model.num_classes == 6

    for confidence in (0.0, 0.3):
        for fused in (False, True):
            if fused:
                old.fuse()
                model.fuse()
            expected, expected_scores = detect(old, confidence)
            boxes, scores = detect(model, confidence)
            count = expected.shape[1]
            assert torch.equal(boxes[:, :count], expected)
            assert torch.equal(scores[:, :count, :3], expected_scores)
            assert not scores[:, :count, 3:].any()
            assert not scores[:, count:, :3].any()
    assert before.shape[1] * 3 == detect(model)[0].shape[1]
    assert scores_before.amax() > 0.3  # the comparison is one of boxes that are found


def test_only_heads_of_one_layer_have_adapters(old):
    model = with_added_classes(old, 1)
    count = sum(values.numel() for values in model.head.adapters.parameters())
    assert (count > 0) == (type(old.head) is AnchorBasedHead)


def test_adapter_adds_nothing_at_first_and_leaves_older_parts_alone():
    """The new head alone, on the maps that the old one reads, is the other route."""
    old = confident_detector("anchor-based")
    model = with_added_classes(old, 1).eval()
    assert isinstance(model.head, JoinedHead)
    adapter = model.head.adapters[0]
    assert isinstance(adapter, MapAdapters)
    maps = [torch.rand(2, block.out_channels, 8, 8) for block in adapter.blocks]
    with torch.inference_mode():
        alone = model.head.heads[1](maps)
        joined = model.head(maps)
    assert all(map(torch.equal, joined[1], alone))

    # As after a training, which changes the scale of the last normalization.
    for values in adapter.state_dict().values():
        values.add_(1)
    with torch.inference_mode():
        trained = model.head(maps)
    assert all(map(torch.equal, trained[0], joined[0]))
    assert not any(map(torch.equal, trained[1], joined[1]))

    # A third group keeps the adapter of the second, and trains its own.
    more = with_added_classes(model, 2).eval()
    with torch.inference_mode():
        raw = more.head(maps)
    assert all(map(torch.equal, [*raw[0], *raw[1]], [*trained[0], *trained[1]]))
    freeze(more, [])
    for name, values in more.head.named_parameters():
        assert values.requires_grad == name.startswith(("parts.2.", "adapters.1."))


def test_no_images(old):
    model = with_added_classes(old, 1).eval()
    boxes, scores = detect(model, count=0)
    count = 2 * detect(old)[0].shape[1]
    assert (boxes.shape, scores.shape) == ((0, count, 4), (0, count, 4))


def test_old_detections_are_the_same_after_class_wise_nms(old):
    """As long as no limit of detections leaves some out."""
    model = with_added_classes(old, 1).eval()
    limits = {"confidence": 0.4, "max_detections": 10_000, "max_candidates": 100_000}
    for one, both in zip(
        non_max_suppression(*detect(old), **limits),
        non_max_suppression(*detect(model), **limits),
        strict=True,
    ):
        assert len(one)
        assert torch.equal(both[both[:, 5] < 3], one)


def test_parts_have_the_weights_of_the_old_head_where_classes_share_them(old):
    model = with_added_classes(old, 3)
    assert isinstance(model.head, JoinedHead)
    first, second = model.head.heads
    assert second.state_dict().keys() == first.state_dict().keys() == old.head.state_dict().keys()
    shared = 0
    for key, values in second.state_dict().items():
        given = first.state_dict()[key]
        assert torch.equal(given, old.head.state_dict()[key])
        rows, given_rows = second.box_rows(key, values), first.box_rows(key, given)
        assert torch.equal(rows, given_rows)
        shared += rows.numel()
        classes, given_classes = (
            head.split_classes(key, each)[1] for head, each in ((second, values), (first, given))
        )
        if classes is not None and key.endswith("weight"):
            assert not torch.equal(classes, given_classes)
    assert 0 < shared < sum(values.numel() for values in second.state_dict().values())


def test_new_scores_begin_as_those_of_a_new_model(old):
    """Also objectness, which the old head has learned: it would find old objects as new ones."""
    scores = detect(with_added_classes(old, 1).eval())[1][..., 3]
    assert 0 < scores.max() < 0.35
    assert detect(old)[1].max() > 0.5


@pytest.mark.slow
def test_checkpoint_is_loaded_and_its_outputs_are_chosen(old, tmp_path):
    model = with_added_classes(old, 1)
    path = save_checkpoint(tmp_path / "m.pt", model, names=[*NAMES, "new"])
    loaded, _ = load_detector(path)
    assert all(
        map(
            torch.equal, tensors_in(list(loaded.state_dict().values())), model.state_dict().values()
        )
    )
    backend = load_backend(path, torch.device("cpu")).backend
    boxes, scores = backend.predict(images())[:2]
    one, one_scores = load_backend(
        save_checkpoint(tmp_path / "old.pt", old), torch.device("cpu")
    ).backend.predict(images())[:2]
    assert torch.equal(boxes[:, : one.shape[1]], one)
    assert torch.equal(scores[:, : one.shape[1], :3], one_scores)

    outputs = model.head.outputs
    assert outputs == old.head.outputs
    assert model.needs_nms == old.needs_nms
    if outputs:
        for each in (old, model):
            each.choose_output("o2m")
        assert model.needs_nms
        assert torch.equal(detect(model.eval())[0][:, : detect(old)[0].shape[1]], detect(old)[0])


@pytest.mark.parametrize(
    ("wanted", "part", "copied"),
    [
        (["new", "square", "disc", "none"], 0, {1: 1, 2: 0}),
        (["bar", "new", "other"], 1, {1: 1, 2: 0}),
        (["square", "other"], 0, {0: 1}),  # as many of each: the older part
    ],
)
def test_transfer_takes_the_part_with_most_of_the_classes(old, wanted, part, copied):
    """copied: row in the model: row in the part. Rows of another part read what it computes."""
    joined = with_added_classes(old, 2)
    given = joined.head.heads[part]
    given_state = given.state_dict()
    model = build_model(old.table, len(wanted))
    before = {key: value.clone() for key, value in model.head.state_dict().items()}
    result = transfer(model, wanted, joined, [*NAMES, "other", "new"])
    assert result.classes == len(copied)

    for key, values in model.head.state_dict().items():
        if key in model.head.fitted:
            continue
        shared, rows = model.head.split_classes(key, values)
        given_shared, given_rows = given.split_classes(key, given_state[key])
        assert torch.equal(shared, given_shared)
        if rows is None:
            continue
        rows_before = model.head.split_classes(key, before[key])[1]
        for row in range(len(wanted)):
            source = given_rows[copied[row]] if row in copied else rows_before[row]
            assert torch.equal(rows[row], source)


def test_auxiliary_branch_is_left_out():
    table = micro_table("DistanceDetect", "nc", 16)
    table["auxiliary"] = [["images", 1, "Conv", [256, 3, 8]], [[3, 4], 1, "DistanceDetect", ["nc"]]]
    old = build_model(table, 3).eval()
    model = with_added_classes(old, 1).eval()
    assert "auxiliary" not in model.table
    assert len(model.layers) == old.head_position + 1
    assert torch.equal(detect(model)[0][:, :30], detect(old)[0])


def test_letterbox_of_the_old_model_is_kept():
    old = build_model(micro_table("DecoupledDetect", "nc") | {"letterbox": "top_left"}, 3)
    assert with_added_classes(old, 1).letterbox == "top_left"


@pytest.mark.parametrize("groups", [[3], [2, 2], [3, 0], [1.5, 1.5], "21", 3, [True, 2]])
def test_wrong_groups_are_refused(groups):
    table = resolve(KINDS["decoupled"], None, 3) | {"class_groups": groups}
    with pytest.raises(ValueError, match="`class_groups` must be 2 or more whole numbers, which"):
        Detector(table)


def test_groups_in_a_file_are_refused(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(MICRO.read_text() + "class_groups: [2, 1]\n")
    with pytest.raises(
        ValueError, match=r"mine\.yaml: `class_groups` is only in the table of a che"
    ):
        build_model(file, 3)


def test_groups_beside_an_auxiliary_branch_are_refused():
    table = resolve(KINDS["decoupled"], None, 3)
    table |= {"class_groups": [2, 1], "auxiliary": [[[3, 4], 1, "DecoupledDetect", ["nc"]]]}
    with pytest.raises(ValueError, match="`class_groups` and `auxiliary` cannot be used together"):
        Detector(table)
