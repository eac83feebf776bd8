"""models/export/metadata.py: a round trip, and every other content is refused with one sentence."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from models.export.metadata import MAX_JSON, ExportedModel, Suppression, read_metadata

FILE = Path("a\nb.onnx")
NMS = Suppression(0.25, 0.45, 100, False)
MODEL = ExportedModel(
    ("cat", 'd"\n<é>'), 32, 320, canvas=(256, 320), batch_size=4, nms=NMS, precision="fp16",
    data="a.yaml", single_class=True, digest="0123abcd", opset=17, torch_version="2.11",
    payload="ff",
)  # fmt: skip
CORNER = replace(MODEL, letterbox="top_left")
CHOSEN = replace(MODEL, chosen_classes=("cat", "1"))


@pytest.mark.parametrize(
    "model",
    [MODEL, CORNER, CHOSEN, ExportedModel(("a",), 64, 128)],
    ids=["all fields", "top left", "chosen classes", "defaults"],
)
def test_metadata_survives_a_round_trip(model):
    assert read_metadata(model.to_json(), FILE) == model


def test_json_states_input_and_outputs_for_other_programs():
    values = json.loads(MODEL.to_json())
    assert values["input"]["colors"] == "RGB"
    assert (values["input"]["gray"], values["input"]["range"], values["stride"]) == (
        114,
        [0, 1],
        32,
    )
    assert set(values["outputs"]) == {"boxes_xyxy", "scores", "detections"}
    assert (MODEL.outputs, ExportedModel(("a",), 32, 64).outputs) == (
        ("detections",),
        ("boxes_xyxy", "scores"),
    )


def test_letterbox_is_stated_and_is_an_entry_only_if_it_is_not_the_center():
    """Files of versions without the entry are read, and sealed as before."""
    centered, corner = (json.loads(model.to_json()) for model in (MODEL, CORNER))
    assert "keep its ratio, center it, fill" in centered["input"]["letterbox"]
    assert "keep its ratio, put it at the top left, fill" in corner["input"]["letterbox"]
    assert corner.keys() - centered.keys() == {"letterbox"}
    assert MODEL.sealed("ab").payload != CORNER.sealed("ab").payload
    for values in (centered | {"letterbox": "top_left"}, corner | {"letterbox": "center"}):
        assert "it is not of format 3" in refusal(json.dumps(values))


def test_chosen_classes_are_an_entry_only_if_there_are_some():
    """Files of versions without the entry are read, and sealed as before."""
    plain, chosen = (json.loads(model.to_json()) for model in (MODEL, CHOSEN))
    assert chosen.keys() - plain.keys() == {"chosen_classes"}
    assert read_metadata(json.dumps(plain), FILE).chosen_classes == ()


def refusal(text: str) -> str:
    with pytest.raises(ValueError) as caught:
        read_metadata(text, FILE)
    message = str(caught.value)
    assert message.startswith(r"a\nb.onnx: its metadata cannot be used: ")
    assert message.isprintable()
    return message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("names", []), ("names", "abc"), ("names", [1]), ("names", None),
        ("stride", 0), ("stride", 32.0), ("stride", True), ("stride", 1 << 40), ("stride", "32"),
        ("image_size", -320), ("image_size", 321),
        ("canvas", [320]), ("canvas", [256, 300]), ("canvas", [0, 320]),
        ("batch_size", 0), ("batch_size", 1e9), ("precision", "fp4"), ("precision", ["fp32"]),
        ("data", 5), ("data", "x" * 5000), ("single_class", 1), ("digest", None), ("opset", -1),
        ("payload", {}), ("nms", {}),
        ("chosen_classes", "cat"), ("chosen_classes", [1]), ("chosen_classes", [""]),
        ("letterbox", "top_right"), ("letterbox", None), ("letterbox", ["center"]),
        ("nms", {"confidence": 2.0, "iou": 0.5, "max_detections": 1, "agnostic": False}),
        ("nms", {"confidence": 0.5, "iou": 0.5, "max_detections": 1 << 40, "agnostic": False}),
        ("nms", {"confidence": 0.5, "iou": "0.5", "max_detections": 1, "agnostic": False}),
        ("nms", {"confidence": 1e999, "iou": 0.5, "max_detections": 1, "agnostic": False}),
        ("format", 1), ("input", {}), ("outputs", None), ("another", 1),
    ],
)  # fmt: skip
def test_other_values_are_refused(name, value):
    refusal(json.dumps(json.loads(MODEL.to_json()) | {name: value}))


def test_other_texts_are_refused():
    for text in (
        "",
        "{}",
        "[]",
        "null",
        "nan",
        '{"format": NaN}',
        "[" * 100_000,
        "{",
        MODEL.to_json()[:-1],
    ):
        refusal(text)
    assert "has more than" in refusal(" " * (MAX_JSON + 1))
    without = json.loads(MODEL.to_json())
    del without["nms"]
    assert "its entries must be" in refusal(json.dumps(without))


def test_files_of_an_older_format_are_to_be_exported_again():
    """Also if the older format had other entries."""
    older = json.loads(MODEL.to_json()) | {"format": 1}
    del older["needs_nms"]
    assert refusal(json.dumps(older)).endswith("it is not of format 3: export the checkpoint again")
