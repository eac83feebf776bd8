"""Class names that are hardly meant as two classes, such as dog and Dog."""

import re
import shlex
import unicodedata
from collections.abc import Iterable

from utils.printable import excerpt, printable

SHOWN_PAIRS = 3


def alike_names_note(names: Iterable[str]) -> str:
    """Return a sentence about names that differ in capital letters or spaces only, "" without any.

    Hyphens and underscores are spaces, too.

    >>> alike_names_note(["dog", "cat", "Dog"])
    "classes 'dog' and 'Dog' differ in capital letters or spaces only: --merge Dog=dog joins them"
    >>> alike_names_note(["dog", "dogs"])
    ''
    """
    first_of: dict[str, str] = {}
    pairs = []
    for name in names:
        first = first_of.setdefault(_key(name), name)
        if first != name:
            pairs.append((first, name))
    if not pairs:
        return ""

    shown = pairs[:SHOWN_PAIRS]
    texts = [f"'{excerpt(first)}' and '{excerpt(name)}'" for first, name in shown]
    merged = " ".join(shlex.quote(f"{name}={first}") for first, name in shown)
    more = f" and {len(pairs) - SHOWN_PAIRS} more" if len(pairs) > SHOWN_PAIRS else ""
    return (
        f"classes {', '.join(texts)}{more} differ in capital letters or spaces only: "
        f"--merge {printable(merged)} joins them"
    )


def _key(name: str) -> str:
    """Return what is equal for two names that are alike."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    return " ".join(re.sub("[-_]", " ", plain).split()) or name
