"""Misspelled flags get a suggestion if it is near; tests/test_yolov5_flags_list.py walks all
flags of YOLOv5.
"""

import pytest

import detect
import export
import train
import val


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
    assert (
        error_message(train, word)
        == f"unknown flag {word} (did you mean {flag}?); --help lists the flags"
    )


@pytest.mark.parametrize("word", ["--comet", "--amp-off", "--evo"])
def test_distant_misspellings_get_no_suggestion(word):
    assert error_message(train, word) == f"unknown flag {word}; --help lists the flags"


@pytest.mark.parametrize(
    ("script", "word", "hint"),
    [
        (train, "--lr", "the learning rate is lr0 in a --hyp file"),
        (train, "--learning-rate=0.1", "the learning rate is lr0 in a --hyp file"),
        (train, "--lr0", "lr0 is a value in a --hyp file, see data/hyps/"),
        (train, "--weight-decay", "weight_decay is a value in a --hyp file, see data/hyps/"),
        (train, "--model", "--cfg names a model table, --weights a checkpoint"),
        (train, "--gpus", "did you mean --device?"),
        (val, "--model", "did you mean --weights?"),
        (detect, "--model", "did you mean --weights?"),
        (export, "--checkpoint", "did you mean --weights?"),
    ],
)
def test_other_names_of_a_setting_get_a_hint(script, word, hint):
    flag = word.partition("=")[0]
    assert error_message(script, word) == f"unknown flag {flag} ({hint}); --help lists the flags"


@pytest.mark.parametrize("script", [train, val, detect, export])
def test_help_fits_in_80_columns(script, monkeypatch, capsys):
    """Examples too: argparse does not wrap them."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        script.parse_args(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 40
    assert [line for line in lines if len(line) > 80] == []
