"""training/search/history.py: evolve.csv is read as it was written."""

import re

import pytest

from training.search.history import read_history, write_history
from training.search.mutation import Generation, next_hyp
from training.settings.hyperparameters import Hyp

BASE = Hyp().as_dict()
METRICS = {"precision": 0.1, "recall": 0.123456, "AP50": -1.0, "AP": 0.3}
KNOWN = [
    Generation(0, 0.123456, METRICS, BASE),
    Generation(1, 0.0, dict.fromkeys(METRICS, 0.0), BASE | {"lr0": 1e-5}, 'not finite, "a\x1b"'),
    Generation(2, -0.25, METRICS, BASE | {"lr0": 0.1 + 0.2}),
]


def test_history_round_trip_is_exact(tmp_path):
    file = tmp_path / "evolve.csv"
    write_history(file, KNOWN)
    read = read_history(file)
    assert read[0] == KNOWN[0]
    assert read[2] == KNOWN[2]
    assert read[1].failure == 'not finite, "a\\x1b"'  # nothing that a terminal would obey
    assert next_hyp(read, 7) == next_hyp(KNOWN, 7)
    header = file.read_text().splitlines()[0]
    assert header.startswith(
        "generation,fitness,metrics/precision,metrics/recall,metrics/mAP_0.5,metrics/mAP_0.5:0.95,"
        "lr0,lrf,"
    )


def test_history_without_generations(tmp_path):
    assert read_history(tmp_path / "absent.csv") == []
    write_history(tmp_path / "evolve.csv", [])
    assert read_history(tmp_path / "evolve.csv") == []


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("generation,", "number,", " line 1: its columns are not those of a search"),
        ("\n1,", "\n2,", " line 3: generation 2, expected 1: put the missing row back"),
        (",0.937,", ",high,", " line 2: could not convert string to float: 'high'"),
        (",0.937,", ",5,", " line 2: momentum is 5, allowed are 0 to 0.999"),
        ("0,0.123456,", "0,nan,", " line 2: fitness nan, expected a finite number"),
        (",0.3,", ",inf,", " line 2: metrics/mAP_0.5:0.95 inf, expected a finite number"),
    ],
)
def test_damaged_history_is_reported_with_its_line(tmp_path, old, new, sentence):
    file = tmp_path / "evolve.csv"
    write_history(file, KNOWN)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=f"^{re.escape(str(file) + sentence)}$"):
        read_history(file)


@pytest.mark.parametrize("content", [b"\0", b"\xff\xfe", b"a\n" * 3, b'"'])
def test_other_file_is_not_a_history(tmp_path, content):
    file = tmp_path / "evolve.csv"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"evolve\.csv line \d: "):
        read_history(file)
    with pytest.raises(ValueError, match=r"cannot be read: Is a directory$"):
        read_history(tmp_path)
