"""Arguments key=value: the flags that are meant, and what is said about the others."""

import pytest

from utils.command_line.key_value_arguments import flags_meant
from utils.flags import FlagParser


@pytest.fixture
def parser():
    parser = FlagParser("")
    add = parser.add_argument
    add("--weights", nargs="+")
    add("--cfg", help="a table")
    add("--data", help="a data set")
    add("--max-det", type=int)
    add("--classes", nargs="+")
    add("--include", nargs="+")
    add("--half", action="store_true")
    parser.hint({"lr0": "lr0 is in a file", "mosaic": "mosaic, too"})
    return parser


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["model=a.pt", "data=my data.yaml"], "did you mean --weights a.pt --data 'my data.yaml'?"),
        (["detect", "train", "model=a.yaml"], "did you mean --cfg a.yaml?"),
        (["max_det=3", "classes=[0, 2]"], "did you mean --max-det 3 --classes 0 2?"),
        (["format=onnx", "half=True"], "did you mean --include onnx --half?"),
        (["format=onnx", "half=False"], "did you mean --include onnx?"),
        (
            ["data=a", "lr0=1", "mosaic=0", "fraction=1", "save=1"],
            "did you mean --data a? lr0 is in a file; mosaic, too; "
            "there is no flag for fraction, save",
        ),
        (["lr0=1"], "lr0 is in a file"),
        (["task=detect", "data=a"], "did you mean --data a?"),
    ],
)
def test_key_value_arguments_are_answered_with_flags(parser, words, hint):
    with pytest.raises(ValueError) as refusal:
        parser.read(words)
    assert (
        str(refusal.value) == f"unexpected argument {words[0]!r} ({hint}); --help lists the flags"
    )


@pytest.mark.parametrize("words", [[], ["train"], ["foo=1"], ["a.yaml"]])
def test_nothing_is_said_where_no_flag_is_meant(words):
    assert flags_meant(words, {}, {}) == ""
