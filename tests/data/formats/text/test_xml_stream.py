"""XML as a stream: its elements with their lines, and the files that are refused."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from data.formats.text.xml_stream import MAX_DEPTH, read_xml
from tests.support.fuzzing import assert_printable_line


def events(file: Path) -> list[tuple[str, Mapping[str, str] | str, int]]:
    """Return what is called for a file: attributes at the start, the text at the end."""
    found: list[tuple[str, Mapping[str, str] | str, int]] = []
    read_xml(
        file,
        lambda path, attributes, line: found.append(("/".join(path), dict(attributes), line)),
        lambda path, text, line: found.append(("/".join(path), text, line)),
    )
    return found


def test_elements_are_called_with_their_path_text_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text('<a>\n <b x="&lt;1"> é &amp; ö\n</b>after</a>')
    assert events(tmp_path / "a.xml") == [
        ("a", {}, 1),
        ("a/b", {"x": "<1"}, 2),
        ("a/b", "é & ö", 3),
        ("a", "after", 3),
    ]


def test_utf_16_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_bytes("<a>é</a>".encode("utf-16"))
    assert events(tmp_path / "a.xml") == [("a", {}, 1), ("a", "é", 1)]


def test_the_declared_encoding_is_read(tmp_path: Path) -> None:
    text = '<?xml version="1.0" encoding="gb2312"?><a b="狗">猫</a>'
    (tmp_path / "a.xml").write_bytes(text.encode("gb2312"))
    assert events(tmp_path / "a.xml") == [("a", {"b": "狗"}, 1), ("a", "猫", 1)]


def test_letters_across_blocks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.formats.text.xml_stream.BLOCK_BYTES", 7)
    (tmp_path / "a.xml").write_text("<a>\n猫猫猫\n</a>", encoding="utf-8")
    assert events(tmp_path / "a.xml") == [("a", {}, 1), ("a", "猫猫猫", 3)]
    (tmp_path / "a.xml").write_bytes("<a>\n猫猫猫\n".encode() + b"\xff</a>")
    with pytest.raises(ValueError, match=r"a\.xml line 3: not UTF-8 text"):
        events(tmp_path / "a.xml")


LAUGHS = '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><a>&b;</a>'


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "line 1: not XML: no element found"),
        (b"<a>\n<b></a>", "line 2: not XML: mismatched tag"),
        (b"<a/>\n<a/>", "line 2: not XML: junk after document element"),
        (LAUGHS.encode(), "line 1: has a DTD, which is not read"),
        (b'\n<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', "line 2: has a DTD"),
        (b"<a>&x;</a>", "line 1: not XML: undefined entity"),
        (b"<a>" * (MAX_DEPTH + 1), f"line 1: nested more than {MAX_DEPTH} elements deep"),
        (b"<a>\n\xff</a>", "line 2: not UTF-8 text, and it declares no other encoding"),
        (b"<a>\0</a>", "line 1: not XML: not well-formed (invalid token)"),
    ],
)
def test_xml_is_refused_with_its_line(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "a.xml").write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.xml line \d") as found:
        events(tmp_path / "a.xml")
    assert str(found.value).startswith(f"{tmp_path}/a.xml {reason}")
    assert_printable_line(str(found.value))


def test_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.xml cannot be read: No such file or directory$"):
        events(tmp_path / "a.xml")
