"""Mutated YAMLs of data, hyper-parameters and models, and image lists: read as written, or an error
message.
"""

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from data.dataset_yaml import read_data_yaml
from data.images import find_images
from data.report import NOTE, REPEATED_LINES
from models import build_model
from models.build import check_shapes
from models.detector import Detector
from models.tables.find import load_model_table
from models.tables.read import read_table
from models.tables.resolve import resolve
from tests.support.fuzzing import (
    assert_printable_line,
    assert_unchanged,
    line_number,
    mutate,
    result_or_error,
)
from training.settings.hyperparameters import Hyp, read_hyp
from utils.printable import printable

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WORDS = (
    "null ~ yes no 007 1e3 .inf .nan 0x1F 1_000 -1 0 99999999999999999999 2024-13-45 1:30 nc Conv"
)
SIGNS = (
    "&a ",
    "*a",
    "!!int ",
    "!!python/name:os.system ",
    "<<: *a",
    "{",
    "}",
    "[",
    "]",
    "[" * 100,
    ": ",
    "- ",
    "? ",
)
TEXTS = (
    "#",
    "'",
    '"',
    "| ",
    "> ",
    "%YAML 1.1\n",
    "---\n",
    "...\n",
    "\t",
    "\n",
    "\n  ",
    "\x1b[2J",
    "\0",
    "é",
    "\u2028",
)
LONG = ('"\\n\\e[2J"', "a" * 5000)
PIECES = [
    *(word.encode() for word in (*WORDS.split(), *SIGNS, *TEXTS, *LONG)),
    b"\xff",
    b"\xef\xbb\xbf",
    b"\r",
    b"\x85",
    b'"\\ud800"',
]

DATA = (
    b"# a set\npath: ../set\ntrain: images/train\nval: [images/val, val.json]\ntest:\n\n"
    b"names:\n  0: person\n  1: traffic light\n  2: no\n  3: 'a: b'\nnc: 4\ndownload: https://example.org/a.zip\n"
)
IMAGE_LIST = (
    b"images/a.png\n./images/b b.png\r\n../x/images/a.png\n\nimages/none.png\nimages\n"
    b"images/a.png\n\xc3\xa9.png\n"
)
BOMBS = {
    "aliases": "names: &a [x]\n" + "".join(f"k{i}: &b{i} [*a, *a]\n" for i in range(50)),
    "merges": "a: &a {k: 1}\n" + "".join(f"b{i}: &b{i} {{<<: [*a, *a]}}\n" for i in range(50)),
    "lists": "names: " + "[" * 60_000,
    "mappings": "lr0: " + "{a: " * 12_000,
    "indents": "".join(" " * i + "a:\n" for i in range(300)),
    "digits": "nc: " + "9" * 60_000,
    "keys": "".join(f"k{i}: 1\n" for i in range(5000)),
    "questions": "? " * 30_000,
    "quotes": "names: ['" + "''" * 30_000,
    "escapes": 'names: ["' + "\\n" * 30_000,
    "tags": "!!a " * 10_000,
    "anchors": "".join(f"- &a{i}\n" for i in range(5000)),
    "documents": "---\n" * 15_000,
    "commas": "names: [" + "a," * 30_000,
}


def readers(folder: Path) -> dict[str, tuple[bytes, Path, Callable[[Path], Any]]]:
    """Return for each kind: a valid file, the path to write it to, and the function that reads
    it.
    """
    hyp = (ROOT / "data" / "hyps" / "hyp.scratch-low.yaml").read_bytes()
    table = (ROOT / "tests" / "tables" / "tiny.yaml").read_bytes()
    return {
        "data": (DATA, folder / "data.yaml", read_data_yaml),
        "hyp": (hyp, folder / "hyp.yaml", read_hyp),
        "model": (table, folder / "model.yaml", resolve_model),
        "list": (IMAGE_LIST, folder / "train.txt", find_images),
    }


def resolve_model(file: Path) -> dict[str, Any]:
    """Return the resolved table for three classes, after building the model without allocating
    memory.
    """
    table = resolve(*load_model_table(file), 3)
    check_shapes(table)
    return table


def read_with_pyyaml(file: Path) -> Any:
    """Return the file's contents as read by PyYAML's Python reader, with all values as text."""
    return yaml.load(file.read_bytes(), yaml.BaseLoader)  # noqa: S506


def matches_file(kind: str, value: Any, file: Path) -> bool:
    """Whether the values that were read are those in the file."""
    if kind == "list":
        return _listed_correctly(value, file)
    try:
        written = read_with_pyyaml(file)
    except yaml.YAMLError:  # this reader allows tabs in fewer places
        return True
    if kind == "data":
        return list(value.names) == _texts(written["names"]) and _train_folder(written, file) in (
            value.train or ("",)
        )
    if kind == "hyp":
        optimizer, value = value
        if optimizer != written.get("optimizer", "auto"):
            return False
        return all(
            getattr(value, field.name) == float(written.get(field.name, field.default))
            for field in fields(Hyp)
        )
    rows = [*written["backbone"], *written["head"]]
    read = [*value["backbone"], *value["head"]]
    return all(
        row[2] == other[2] and int(row[1]) == other[1]
        for row, other in zip(rows, read, strict=True)
    )


def _train_folder(written: dict[str, Any], file: Path) -> Path | str:
    """Return the path of the first source of `train`; "" if there is none."""
    nothing = ("", "~", "null", "Null", "NULL")
    source = written.get("train", "")
    source = source[0] if isinstance(source, list) else source
    root = "." if written.get("path", "") in nothing else written["path"]
    return "" if source in nothing else Path(os.path.abspath(file.parent / root / source))


def _texts(names: Any) -> list[str]:
    return names if isinstance(names, list) else [names[key] for key in sorted(names, key=int)]


def _listed_correctly(listing: Any, file: Path) -> bool:
    """Whether every non-empty line is either an existing image or a problem with its line
    number.
    """
    text = file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    numbers = {number for number, line in enumerate(text.split("\n"), 1) if line.strip()}
    # A note says how many paths were found without their first folders, and another problem how
    # many lines repeat one; their place is the file.
    of_file = (NOTE, REPEATED_LINES)
    of_lines = [problem for problem in listing.problems if problem.kind not in of_file]
    repeated = [problem for problem in listing.problems if problem.kind == REPEATED_LINES]
    repetitions = sum(int(problem.reason.partition(" ")[0]) for problem in repeated)
    reported = {line_number(problem.where, file) for problem in of_lines}
    for problem in listing.problems:
        assert_printable_line(str(problem))
    return len(listing.images) + len(reported) + repetitions == len(numbers) and all(
        map(os.path.isfile, listing.images)
    )


def try_mutated(kind: str, folder: Path, count: int, seed: int) -> int:
    """Return how many of `count` mutated files are read without error."""
    seed_text, file, read = readers(folder)[kind]
    random, values = np.random.default_rng(seed), 0
    for _ in range(count):
        file.write_bytes(mutate(seed_text, random, PIECES))
        found = result_or_error(lambda: read(file), file)
        if isinstance(found, str):
            continue
        assert matches_file(kind, found, file), file.read_bytes()
        values += 1
    return values


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a few images, for lists."""
    place = tmp_path / "set é\n"
    (place / "images").mkdir(parents=True)
    for name in ("a.png", "b b.png"):
        (place / "images" / name).touch()
    return place


@pytest.mark.parametrize("kind", ["data", "hyp", "model", "list"])
def test_unmodified_files_are_read_correctly(kind: str, folder: Path) -> None:
    text, file, read = readers(folder)[kind]
    file.write_bytes(text)
    with assert_unchanged(folder):
        assert matches_file(kind, result_or_error(lambda: read(file), file), file)


@pytest.mark.parametrize(
    ("kind", "count"), [("data", 300), ("hyp", 150), ("model", 200), ("list", 200)]
)
def test_mutated_files_are_read_as_written_or_rejected(kind: str, count: int, folder: Path) -> None:
    assert try_mutated(kind, folder, count, seed=0) > count // 20


@pytest.mark.parametrize("kind", ["data", "hyp", "model"])
@pytest.mark.parametrize("bomb", BOMBS)
def test_yaml_bombs_are_rejected_by_all_readers(kind: str, bomb: str, folder: Path) -> None:
    _, file, read = readers(folder)[kind]
    file.write_text(BOMBS[bomb])
    found = result_or_error(lambda: read(file), file)
    assert isinstance(found, str) or (kind, bomb) == ("data", "commas")


def test_yaml_with_too_many_values_is_rejected_early(folder: Path) -> None:
    file = folder / "data.yaml"
    file.write_text("names:\n" + "- a\n" * 500_000)
    assert "line 199998: more than 200,000 values" in result_or_error(
        lambda: read_data_yaml(file), file
    )


def test_model_built_from_mutated_table_matches_it(folder: Path) -> None:
    text, file, _ = readers(folder)["model"]
    random, built = np.random.default_rng(9), 0
    while built < 5:
        file.write_bytes(mutate(text, random, [b"16", b"8", b"2", b"True", b" "]))
        model = result_or_error(lambda: build_model(file, 3), file)
        if isinstance(model, Detector):
            built += 1
            assert model.table == resolve(read_table(file), None, 3)


def test_errors_name_files_with_odd_names_printably(tmp_path: Path) -> None:
    names = ("a\nb\x1b[2J.yaml", "'", "é漢.yaml", " ", "-x.yaml", os.fsdecode(b"\xff.yaml"), "%s{}")
    for number, name in enumerate(names):
        file = tmp_path / f"{number}" / name
        file.parent.mkdir()
        file.write_text("a: [1")
        for _, _, read in readers(tmp_path).values():
            message = result_or_error(lambda: str(read(file)), file)  # noqa: B023
            assert printable(file) in message
