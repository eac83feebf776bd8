"""Text that is safe to print in a message: one line, no control characters, of limited length."""

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable
from difflib import SequenceMatcher
from os import PathLike, fspath

MAX_CHARS = 4096  # characters: the path length limit on most systems


def printable(text: str | bytes | PathLike[str]) -> str:
    r"""Return `text` as one printable line.

    Newlines, control characters and undecodable bytes are escaped. Text is cut after 4096
    characters, because a "path" read from a list or a JSON file can have any length.

    >>> printable("a\nb \u00e9")
    'a\\nb é'
    """
    plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else fspath(text)
    if len(plain) > MAX_CHARS:
        plain = plain[:MAX_CHARS] + "..."
    if plain.isprintable():
        return plain

    shown = []
    for letter in plain:
        if not letter.isprintable():
            letter = letter.encode("unicode_escape").decode("ascii")
        shown.append(letter)
    return "".join(shown)


def utf_16_hint(data: bytes) -> str:
    r"""Return the end of the sentence "not UTF-8 text" for data that begin as UTF-16 does, else "".

    UTF-16 begins with its mark, or with an ASCII character, of which one of two bytes is zero.

    >>> utf_16_hint("a".encode("utf-16")), utf_16_hint("a".encode("utf-16-le"))
    (', but UTF-16: save the file as UTF-8', ', but UTF-16: save the file as UTF-8')
    >>> utf_16_hint(b"\xff")
    ''
    """
    has_mark = data.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
    is_ascii = len(data) > 1 and (data[0] == 0) != (data[1] == 0)
    if has_mark or is_ascii:
        return ", but UTF-16: save the file as UTF-8"
    return ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "class"), counted(2, "box"), counted(0, "image")
    ('1 class', '2 boxes', '0 images')
    """
    return f"1 {noun}" if number == 1 else f"{number:,} {plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of a noun.

    The word before a preposition gets the ending.

    >>> plural("class"), plural("image"), plural("batch"), plural("copy"), plural("key")
    ('classes', 'images', 'batches', 'copies', 'keys')
    >>> plural("set of keypoints"), plural("box without size"), plural("epoch")
    ('sets of keypoints', 'boxes without size', 'epochs')
    """
    head, preposition, rest = re.split(r"( (?:of|in|with|without) |$)", noun, maxsplit=1)
    if re.search("[^aeiou]y$", head):
        head = f"{head[:-1]}ies"
    elif head.endswith(("s", "x", "z", "ch", "sh")) and not head.endswith("epoch"):
        head = f"{head}es"
    else:
        head = f"{head}s"
    return f"{head}{preposition}{rest}"


def excerpt(text: str | bytes, length: int = 40) -> str:
    """Return the first `length` characters of `text`, printable, for use in a message.

    >>> excerpt("abcdef", 3)
    'abc...'
    """
    cut = printable(text[:length])
    return cut + "..." if len(text) > length else cut


def one_line(error: object, length: int = 300) -> str:
    r"""Return the message of another library's error on one line, cut after `length` characters.

    >>> one_line(ValueError("bad\n  at 3"))
    'bad at 3'
    """
    words = str(error).split()
    return excerpt(" ".join(words), length)


def did_you_mean(word: str, known: Iterable[str], similarity: float = 0.6) -> str:
    """Return a question with the known words nearest to `word`, which ends an error's sentence.

    It is "" if none is near.

    similarity: difflib's ratio, 0 to 1, from which a word is near. Upper and lower case and leading
    dashes make no difference.

    >>> did_you_mean("adamw", ["Adam", "AdamW"]), did_you_mean("lr", ["lr0", "lrf", "box"])
    (' (did you mean AdamW?)', ' (did you mean lr0 or lrf?)')
    >>> did_you_mean("x", ["SGD"])
    ''
    """
    # How similar each known word is.
    matcher = SequenceMatcher()
    matcher.set_seq2(word[:100].lstrip("-").casefold())
    ratios: dict[str, float] = {}
    for name in known:
        matcher.set_seq1(name.lstrip("-").casefold())
        ratios[name] = matcher.ratio()

    best = max(ratios.values(), default=0.0)
    if best < similarity:
        return ""
    nearest = sorted(name for name, ratio in ratios.items() if ratio == best)
    return f" (did you mean {' or '.join(nearest[:3])}?)"
