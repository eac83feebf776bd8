"""JSON that is damaged, nested too deeply, in another encoding, or ambiguous."""

import os
from pathlib import Path

import pytest

from data.formats.json_files import parse_json, read_json
from tests.support.fuzzing import assert_printable_line


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "a.json line 1: not JSON: Expecting value"),
        (b'{"a":\n1,\nx}', "a.json line 3: not JSON: Expecting property name"),
        (b'["a', "a.json line 1: not JSON: Unterminated string"),
        (b"[" * 100_000, "a.json: nested too deeply"),
        (b'{"a":' * 100_000, "a.json: nested too deeply"),
        (b'{"id": 7, "x\\n": 1, "x\\n": 2}', "a.json: not JSON: the object with the id 7 has the"),
        (b'{"a": 1,\n"\xff": 1}', "a.json line 2: not UTF-8 text: save it as UTF-8"),
        (b"9" * 5000, "a.json: not JSON: Exceeds the limit"),
        (b"\xff\xfe\x00", "a.json line 1: not UTF-16-LE text: save it as UTF-8"),
    ],
)
def test_bad_json_is_refused_with_its_place(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=r"^a\.json") as found:
        parse_json(data, "a.json")
    assert str(found.value).startswith(reason)
    assert_printable_line(str(found.value))


def test_utf_8_with_a_mark_and_utf_16_are_read(tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32-le"):
        (tmp_path / "a.json").write_bytes('{"é": [1, NaN]}'.encode(encoding))
        assert list(read_json(tmp_path / "a.json")) == ["é"]


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for name, reason in (("pipe", "it is not a regular file"), ("absent", "No such file")):
        with pytest.raises(ValueError, match=rf"{name}\.json cannot be read: {reason}"):
            read_json(tmp_path / f"{name}.json")
