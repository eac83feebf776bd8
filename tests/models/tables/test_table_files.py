"""YAML files of tables: values as written, and files that are refused."""

import math
from itertools import pairwise
from string import ascii_lowercase

import pytest

from models import build_model
from models.tables.read import read_table


def test_table_values_are_read_as_written(tmp_path):
    text = (
        "ch: [3, -1, 1e-3, .5, True, no, None, null, ~, '5', 007, 0x10, 1_0, 1:30, "
        "2024-13-45, .inf, 9e999, ٣]"
    )
    path = tmp_path / "values.yaml"
    path.write_text(text)
    numbers = [3, -1, 0.001, 0.5]
    words = [
        True,
        False,
        "None",
        None,
        None,
        "5",
        "007",
        "0x10",
        "1_0",
        "1:30",
        "2024-13-45",
        ".inf",
    ]
    found = read_table(path)["ch"]
    assert found == [*numbers, *words, math.inf, "٣"]
    assert [type(value) for value in found[:4]] == [int, int, float, float]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "not YAML"),
        ("!!python/object/apply:os.system ['true']", "tags .* are not allowed"),
        ("a: 1\na: 2", "line 2: the key 'a' appears twice"),
        ("a: " + "[" * 21, "nested more than 20 deep"),
        (
            "a: " + "[" * 50_000,
            "nested more than 20 deep|exceeded maximum nesting depth",
        ),  # by PyYAML 6.0.4 itself
        ('"a\\nb\\e[2J": 1', r"unknown keys a\\nb\\x1b\[2J; allowed are nc"),
        ("[1, 2]", "a model table is a mapping"),
        ("", "a model table is a mapping"),
        ("#" * (1 << 18) + "!", "larger than 262,144 bytes, the limit for a model table"),
    ],
)
def test_invalid_model_files_are_rejected(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"bad.yaml.*({message})"):
        build_model(path, 80)


@pytest.mark.parametrize("unfold", ["[{}]", "{{<<: [{}]}}"], ids=["lists", "merged mappings"])
def test_yaml_alias_bombs_are_rejected(tmp_path, unfold):
    lines = [f"{b}: &{b} {unfold.format(f'*{a}, *{a}')}" for a, b in pairwise(ascii_lowercase)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(["a: &a {k: 1}", *lines]))
    with pytest.raises(ValueError, match=r"bomb.yaml line 2: aliases \(\*a\) are not allowed"):
        build_model(path, 80)
