"""The encodings that XML declares: which are read, and which are refused by name."""

import codecs

import pytest

from data.formats.text.encoding import CODECS, EncodingError, XmlDecoder, utf_8_text


def xml(name: str, declared: str) -> str:
    return f'<?xml version="1.0" encoding="{declared}"?>\n<a>{name}</a>'


def decoded(data: bytes) -> str:
    return XmlDecoder(data).decode(data, final=True)


@pytest.mark.parametrize(
    ("name", "declared", "encoding"),
    [
        ("Käfer", "windows-1252", "cp1252"),
        ("Käfer", "ISO-8859-1", "latin-1"),
        ("Käfer", "ISO-8859-15", "iso-8859-15"),
        ("猫", "gb2312", "gb2312"),
        ("镕", "GB2312", "gbk"),  # which GB2312 lacks
        ("猫", "GBK", "gbk"),
        ("貓", "Big5", "big5"),
        ("ねこ", "Shift_JIS", "shift_jis"),
        ("ねこ", "EUC-JP", "euc-jp"),
        ("고양이", "euc-kr", "euc-kr"),
        ("кот", "windows-1251", "cp1251"),
        ("кот", "KOI8-R", "koi8-r"),
        ("cat", "US-ASCII", "ascii"),
        ("猫", "UTF-16", "utf-16"),
        ("猫", "UTF-16", "utf-16-le"),
        ("猫", "utf-16", "utf-8"),  # as .NET writes it
        ("猫", "gbk", "utf-8-sig"),  # the mark counts
        ("", "gbk", "gbk"),
    ],
)
def test_declared_encodings_are_read(name: str, declared: str, encoding: str) -> None:
    assert decoded(xml(name, declared).encode(encoding)) == xml(name, declared)


@pytest.mark.parametrize(
    ("data", "reason", "line"),
    [
        (xml("é", "utf-8").encode("latin-1"), "not UTF-8 text, and it declares no other", 2),
        ("<a>é".encode("latin-1"), "not UTF-8 text, and it declares no other encoding: save", 1),
        (xml("猫", "gb2312").encode(), "not text in gb2312, the encoding that it declares", 2),
        (xml("小猫", "GBK").encode(), "declares the encoding GBK, but seems to be UTF-8: corr", 1),
        (xml("é", "windows-1252").encode(), "declares the encoding windows-1252, but seems", 1),
        (xml("a", "rot13").encode(), "declares the encoding rot13, which is not read: save", 1),
        (xml("猫", "utf-16").encode("utf-16")[:-1], "not text in UTF-16, the encoding that it", 2),
    ],
)
def test_others_are_refused_by_name(data: bytes, reason: str, line: int) -> None:
    with pytest.raises(EncodingError) as found:
        decoded(data)
    assert str(found.value).startswith(reason)
    assert found.value.line == line


def test_all_codecs_exist() -> None:
    for codec in CODECS.values():
        assert codecs.lookup(codec)


def test_an_empty_file_is_empty_text() -> None:
    assert decoded(b"") == ""
    assert utf_8_text(b"", "a.txt") == ""


def test_text_that_is_not_utf_8_is_named_with_its_line() -> None:
    with pytest.raises(EncodingError, match=r"^a\.txt line 2: not UTF-8 text: save it as UTF-8$"):
        utf_8_text(b"a\n\xff", "a.txt")
