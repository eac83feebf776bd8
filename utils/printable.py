"""Make text from files and paths safe to print in a message.

One line, no control characters, limited length.
"""

from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable
from difflib import SequenceMatcher
from os import PathLike, fspath

MAX_CHARS = 4096  # characters: the path length limit on most systems


def printable(text: str | bytes | PathLike[str]) -> str:
    r"""Return `text` as one printable line: newlines, control characters and undecodable bytes are
    escaped.

    Text is cut after 4096 characters, because a "path" read from a list or a JSON file can have any
    length.

    >>> printable("a\nb \u00e9")
    'a\\nb é'
    """
    plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else fspath(text)
    if len(plain) > MAX_CHARS:
        plain = plain[:MAX_CHARS] + "..."
    if plain.isprintable():
        return plain
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in plain
    )


def utf_16_hint(data: bytes) -> str:
    r"""Return an addition to the sentence "not UTF-8 text" if the data begin as UTF-16 does; "" if
    they do not.

    That is with the mark of UTF-16, or with an ASCII character, of which one of two bytes is zero.

    >>> utf_16_hint("a".encode("utf-16")), utf_16_hint("a".encode("utf-16-le"))
    (', but UTF-16: save the file as UTF-8', ', but UTF-16: save the file as UTF-8')
    >>> utf_16_hint(b"\xff")
    ''
    """
    has_mark = data.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
    is_ascii = len(data) > 1 and (data[0] == 0) != (data[1] == 0)
    return ", but UTF-16: save the file as UTF-8" if has_mark or is_ascii else ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "class"), counted(2, "box"), counted(0, "image")
    ('1 class', '2 boxes', '0 images')
    """
    return f"{number:,} {noun}" + (
        "" if number == 1 else "es" if noun.endswith(("s", "x")) else "s"
    )


def excerpt(text: str | bytes, length: int = 40) -> str:
    """Return the first `length` characters of `text`, printable, for use in a message.

    >>> excerpt("abcdef", 3)
    'abc...'
    """
    cut = printable(text[:length])
    return cut + "..." if len(text) > length else cut


def one_line(error: object, length: int = 300) -> str:
    r"""The message of another library's error on one line, cut after `length` characters.

    >>> one_line(ValueError("bad\n  at 3"))
    'bad at 3'
    """
    return excerpt(" ".join(str(error).split()), length)


def did_you_mean(word: str, known: Iterable[str], similarity: float = 0.6) -> str:
    """A question with the known words that are nearest to `word`, to end an error's sentence; "" if
    none is near.

    similarity: difflib's ratio, 0 to 1, from which a word is near. Upper and lower case and leading
    dashes make no difference.

    >>> did_you_mean("adamw", ["Adam", "AdamW"]), did_you_mean("lr", ["lr0", "lrf", "box"])
    (' (did you mean AdamW?)', ' (did you mean lr0 or lrf?)')
    >>> did_you_mean("x", ["SGD"])
    ''
    """
    matcher = SequenceMatcher()
    matcher.set_seq2(word[:100].lstrip("-").casefold())
    ratios: dict[str, float] = {}
    for name in known:
        matcher.set_seq1(name.lstrip("-").casefold())
        ratios[name] = matcher.ratio()
    best = max(ratios.values(), default=0.0)
    nearest = [name for name, ratio in ratios.items() if ratio == best]
    return f" (did you mean {' or '.join(sorted(nearest)[:3])}?)" if best >= similarity else ""
