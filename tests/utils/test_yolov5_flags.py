"""Flags of YOLOv5: each is accepted, or rejected with one sentence that names what to use instead."""

import re

import pytest

import train
import val

# Flags of YOLOv5's train.py and val.py, with a value where they need one.
TRAIN = """
--weights=a.pt --cfg=a.yaml --data=a.yaml --hyp=a.yaml --epochs=1 --batch-size=1 --batch=1 --imgsz=64 --img=64
--img-size=64 --rect --resume --resume=a.pt --nosave --noval --noautoanchor --noplots --evolve --evolve=300
--evolve_population=a --resume_evolve=a --bucket=a --cache --cache=ram --cache=disk --image-weights --device=cpu
--multi-scale --single-cls --optimizer=SGD --optimizer=Adam --optimizer=AdamW --sync-bn --workers=1 --project=a --name=a
--exist-ok --quad --cos-lr --label-smoothing=0.1 --patience=1 --freeze=1 --save-period=1 --seed=1 --local_rank=0
--entity=a --upload_dataset --upload_dataset=a --bbox_interval=1 --artifact_alias=a
"""
VAL = """
--data=a.yaml --weights=a.pt --batch-size=1 --imgsz=64 --img=64 --img-size=64 --conf-thres=0.1 --iou-thres=0.5
--max-det=1 --task=train --task=val --task=test --task=speed --device=cpu --workers=1 --single-cls --augment --verbose
--save-txt --save-hybrid --save-conf --save-json --project=a --name=a --exist-ok --half --dnn
"""
UNSUPPORTED = {
    train: {"evolve", "evolve_population", "resume_evolve", "bucket", "quad", "entity", "upload_dataset"}
    | {"bbox_interval", "artifact_alias"},
    val: {"save-hybrid", "dnn"},
}


def error_message(script, word: str) -> str:
    """The error message of the script for an argument; "" if it is accepted."""
    try:
        script.parse_args([word])
    except ValueError as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize(("script", "words"), [(train, TRAIN), (val, VAL)], ids=["train", "val"])
def test_yolov5_flags_are_accepted_or_rejected_with_alternative(script, words):
    answers = {word: said for word in words.split() if (said := error_message(script, word))}
    assert {word[2:].split("=")[0] for word in answers} == UNSUPPORTED[script]
    for word, said in answers.items():
        assert said.startswith(f"{word.split('=')[0]} is not supported: ")
        instead = re.findall(r"--[a-z_-]+|\w+\.json|\w+\.csv|\w+\*\w+\.jpg", said.split(": ", 1)[1])
        assert instead, said
        for flag in (name for name in instead if name.startswith("--")):  # a flag that exists
            assert "unknown flag" not in error_message(script, flag)
            assert "not supported" not in error_message(script, flag)


@pytest.mark.parametrize(
    ("word", "flag"),
    [
        ("--epoch", "--epochs"),
        ("--batchsize", "--batch-size"),
        ("--batch_size", "--batch-size"),
        ("--imgsize", "--img-size"),
        ("--weight", "--weights"),
        ("--optimiser", "--optimizer"),
        ("--devices", "--device"),
    ],
)
def test_close_misspellings_get_a_suggestion(word, flag):
    assert error_message(train, word) == f"unknown flag {word} (did you mean {flag}?); --help lists the flags"


@pytest.mark.parametrize("word", ["--wandb", "--classes", "--lr", "--gpus", "--model", "--amp-off", "--evolv"])
def test_distant_misspellings_get_no_suggestion(word):
    assert error_message(train, word) == f"unknown flag {word}; --help lists the flags"
