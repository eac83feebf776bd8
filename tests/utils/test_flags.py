"""FlagParser: every mistake in a command line raises one sentence."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

import detect
import val
from training.check import __main__ as training_check
from utils import __version__
from utils.flags import FlagParser, check_command_line

ROOT = Path(__file__).parents[2]


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


def test_the_flags_of_tiles_are_the_same_in_all_commands(capsys):
    """val.py, detect.py and training.check have one text for them."""

    def tile_help(parse) -> str:
        with pytest.raises(SystemExit):
            parse(["--help"])
        words = " ".join(capsys.readouterr().out.split())
        start = words.rindex("--tile TILE ")
        end = " for large objects"
        return words[start : words.index(end, start) + len(end)]

    texts = {tile_help(module.parse_args) for module in (val, detect, training_check)}
    assert len(texts) == 1
    assert "(default: as trained, or 0.2)" in texts.pop()


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
        (
            ["epochs=5"],
            "unexpected argument 'epochs=5' (did you mean --epochs 5?); --help lists the flags",
        ),
        (["lr=5"], "unexpected argument 'lr=5'; --help lists the flags"),
        (["--evolved"], "unknown flag --evolved; --help lists the flags"),
    ],
)
def test_flag_parser_reports_each_mistake_in_one_sentence(parser, words, sentence):
    with pytest.raises(ValueError) as refusal:
        parser.read(words)
    assert str(refusal.value) == sentence


def test_switch_with_a_value_is_refused(parser):
    parser.add_argument("--rect", action="store_true")
    with pytest.raises(ValueError, match=r"^--rect: takes no value, not 'True'$"):
        parser.read(["--rect=True"])


def test_files_in_place_of_a_pattern_are_explained(parser, tmp_path):
    parser.stray_file_hint = "put a pattern into quotes"
    files = [str(tmp_path / "a.jpg"), str(tmp_path / "b.jpg")]
    for words, hint in ((files, ""), ([str(tmp_path)], " (put a pattern into quotes)")):
        with pytest.raises(ValueError) as refusal:
            parser.read(words)
        sentence = f"unexpected argument {words[0]!r}{hint}; --help lists the flags"
        assert str(refusal.value) == sentence


def test_help_omits_unsupported_flags(parser, capsys):
    with pytest.raises(SystemExit) as end:
        parser.read(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert "--epochs" in said
    assert "evolve" not in said


def test_version_is_printed_by_rank_0_only(parser, capsys, monkeypatch):
    for rank, printed in (("0", f"Kestrel {__version__}\n"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit) as end:
            parser.read(["--version"])
        assert end.value.code == 0
        assert capsys.readouterr().out == printed


def test_help_says_every_default_once():
    parser = FlagParser(
        "words",
        argument_default=argparse.SUPPRESS,
        defaults={"rate": 10.0, "seed": -1, "cache": True},
    )
    add = parser.add_argument
    add("--rate", type=float, help="a rate")
    add("--seed", type=int, help="a seed")
    add("--cache", action="store_true", help="a switch")
    add("--compile", help="mode: default or off")
    add("--sides", type=int, nargs="+", default=[3, 4], help="two sides")
    add("--name", default="exp", help="a name (default: any)")
    add("--hidden", default="secret", help=argparse.SUPPRESS)
    add("--empty", default="", help="no text")
    wanted = (
        "a rate (default: 10)",
        "a seed (default: -1)",
        "a switch\n",
        "off\n",
        "two sides (default: 3 4)",
    )
    for _ in range(2):
        said = parser.format_help()
        for text in (*wanted, "a name (default: any)\n", "no text\n"):
            assert text in said
    assert "secret" not in said


@pytest.mark.parametrize("variables", [{}, {"RANK": "0", "WORLD_SIZE": "2"}])
@pytest.mark.parametrize("words", [["--help"], ["--epochs", "5", "-h"]])
def test_help_is_printed_before_the_imports(parser, words, variables, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    monkeypatch.setattr(os, "environ", variables)
    with pytest.raises(SystemExit) as end:
        check_command_line(parser.read)
    assert end.value.code == 0
    assert "--epochs" in capsys.readouterr().out


MISTAKES = {
    "--zzz": "error: unknown flag --zzz; --help lists the flags\n",
    "--epochs five --help": "error: --epochs: invalid int value: 'five'\n",
    "--cache-dir --help": "error: --cache-dir: expected one argument\n",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_single_process_reports_a_mistake_before_the_imports(parser, words, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", *words.split()])
    monkeypatch.setattr(os, "environ", {})
    with pytest.raises(SystemExit) as end:
        check_command_line(parser.read)
    assert end.value.code == 2
    assert capsys.readouterr() == ("", MISTAKES[words])


@pytest.mark.parametrize("variable", ["RANK", "WORLD_SIZE", "SLURM_NTASKS"])
@pytest.mark.parametrize("words", MISTAKES)
def test_processes_of_a_launcher_report_mistakes_later(
    parser, words, variable, capsys, monkeypatch
):
    monkeypatch.setattr(sys, "argv", ["train.py", *words.split()])
    monkeypatch.setattr(os, "environ", {variable: "1"})
    check_command_line(parser.read)
    assert capsys.readouterr() == ("", "")


def test_valid_command_line_prints_nothing(parser, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "5"])
    monkeypatch.setattr(os, "environ", {})
    check_command_line(parser.read)
    assert capsys.readouterr() == ("", "")


def completed(line: str, script: str, folder: Path) -> list[str]:
    """Return the words that a shell with argcomplete offers at the end of a line."""
    answer = folder / "answer"
    variables = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    command = [sys.executable, str(ROOT / script)]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return answer.read_text().split("\n")


@pytest.mark.slow
def test_shells_complete_flags_and_values(tmp_path):
    pytest.importorskip("argcomplete")
    for script in ("train.py", "val.py", "detect.py", "export.py"):
        assert "PYTHON_ARGCOMPLETE_OK" in (ROOT / script).read_text()[:1024]
    assert completed("train.py --close", "train.py", tmp_path) == ["--close-mosaic"]
    assert completed("train.py --optimizer Ad", "train.py", tmp_path) == ["Adam", "AdamW"]
    assert "--evolve_population" not in completed("train.py --e", "train.py", tmp_path)
    assert set(completed("detect.py --hide-", "detect.py", tmp_path)) == {
        "--hide-conf",
        "--hide-labels",
    }


def test_without_argcomplete_a_shell_gets_no_words(parser, monkeypatch):
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    assert parser.read(["--epochs", "5"]).epochs == 5
