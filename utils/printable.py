"""Text from files and paths, made fit for a sentence: one line, no control characters, no more than one can read."""

from os import PathLike, fspath

LONGEST = 4096  # characters: a path's limit on most systems


def printable(text: str | bytes | PathLike[str]) -> str:
    r"""`text` on one printable line: newlines, control characters and undecodable bytes are escaped.

    Cut after 4096 characters, for a list or a JSON may hold a "path" of any length.

    >>> printable("a\nb \u00e9")
    'a\\nb é'
    """
    plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else fspath(text)
    if len(plain) > LONGEST:
        plain = plain[:LONGEST] + "..."
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in plain)


def excerpt(text: str | bytes, length: int = 40) -> str:
    """The first `length` characters of `text`, printable, for use inside a sentence.

    >>> excerpt("abcdef", 3)
    'abc...'
    """
    cut = printable(text[:length])
    return cut + "..." if len(text) > length else cut


def one_line(error: object, length: int = 300) -> str:
    r"""An error of another library in one sentence's length: its lines joined, cut where it goes on.

    >>> one_line(ValueError("bad\n  at 3"))
    'bad at 3'
    """
    return excerpt(" ".join(str(error).split()), length)
