"""Misspelt flags get a suggestion if it is near; tests/test_yolov5_flags_list.py walks all flags of YOLOv5."""

import pytest

import train


def error_message(script, word: str) -> str:
    """The error message of the script for an argument; "" if it is accepted."""
    try:
        script.parse_args([word])
    except ValueError as refusal:
        return str(refusal)
    return ""


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
