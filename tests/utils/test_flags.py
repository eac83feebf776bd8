"""FlagParser: every mistake in a command line raises one sentence."""

import argparse
import sys

import pytest

from utils.flags import FlagParser, answer_help


@pytest.fixture
def parser():
    parser = FlagParser("words")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--cache-dir", default="")
    parser.add_argument("--task", choices=["val", "test"])
    parser.refuse({"--evolve": "use --epochs", "--Evolve": "use --cache-dir"})
    return parser


def test_flag_parser_returns_values_and_defaults(parser):
    assert vars(parser.read(["--epochs", "5"])) == {"epochs": 5, "cache_dir": "", "task": None}
    assert parser.read([]).epochs == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--epoch", "5"], "unknown flag --epoch (did you mean --epochs?); --help lists the flags"),
        (["--epoch=5"], "unknown flag --epoch (did you mean --epochs?); --help lists the flags"),
        (["--zzz"], "unknown flag --zzz; --help lists the flags"),
        (["5"], "unexpected argument '5'; --help lists the flags"),
        (["--epochs"], "--epochs: expected one argument"),
        (["--epochs", "five"], "--epochs: invalid int value: 'five'"),
        (["--evolve", "300"], "--evolve is not supported: use --epochs"),
        (["--evolve=300"], "--evolve is not supported: use --epochs"),
        (["--Evolve"], "--Evolve is not supported: use --cache-dir"),
        (["--evolved"], "unknown flag --evolved; --help lists the flags"),
    ],
)
def test_flag_parser_reports_each_mistake_in_one_sentence(parser, words, sentence):
    with pytest.raises(ValueError) as refusal:
        parser.read(words)
    assert str(refusal.value) == sentence


def test_help_omits_unsupported_flags(parser, capsys):
    with pytest.raises(SystemExit) as end:
        parser.read(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert "--epochs" in said
    assert "evolve" not in said


def test_help_says_every_default_once():
    parser = FlagParser("words", argument_default=argparse.SUPPRESS, defaults={"rate": 10.0, "seed": -1, "cache": True})
    add = parser.add_argument
    add("--rate", type=float, help="a rate")
    add("--seed", type=int, help="a seed")
    add("--cache", action="store_true", help="a switch")
    add("--compile", help="mode: default or off")
    add("--sides", type=int, nargs="+", default=[3, 4], help="two sides")
    add("--name", default="exp", help="a name (default: any)")
    add("--hidden", default="secret", help=argparse.SUPPRESS)
    add("--empty", default="", help="no text")
    wanted = ("a rate (default: 10)", "a seed (default: -1)", "a switch\n", "off\n", "two sides (default: 3 4)")
    for _ in range(2):
        said = parser.format_help()
        for text in (*wanted, "a name (default: any)\n", "no text\n"):
            assert text in said
    assert "secret" not in said


@pytest.mark.parametrize("words", [["--help"], ["--epochs", "5", "-h"]])
def test_answer_help_prints_help_and_exits(parser, words, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    with pytest.raises(SystemExit) as end:
        answer_help(parser.read)
    assert end.value.code == 0
    assert "--epochs" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--zzz"], ["--epochs", "five", "--help"], ["--cache-dir", "--help"]])
def test_answer_help_ignores_command_lines_with_mistakes(parser, words, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    answer_help(parser.read)
    assert capsys.readouterr() == ("", "")
