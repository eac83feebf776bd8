"""Texts and attributes of XML that is written."""

import re
from collections.abc import Iterable, Mapping
from xml.sax.saxutils import escape, quoteattr

from utils.printable import excerpt

# what XML 1.0 has no way to write
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def require_xml_names(names: Iterable[str]) -> None:
    """Raise ValueError for a name that XML cannot hold."""
    for name in names:
        if FORBIDDEN.search(name):
            raise ValueError(
                f"the class '{excerpt(name)}' has a character that XML cannot hold: rename it, or "
                "choose coco"
            )


def element(tag: str, text: object) -> str:
    """Return an element with a text.

    >>> element("name", "a<b")
    '<name>a&lt;b</name>'
    """
    return f"<{tag}>{escape(FORBIDDEN.sub('_', str(text)))}</{tag}>"


def attributes(values: Mapping[str, object]) -> str:
    """Return the attributes of an element.

    >>> attributes({"label": 'a "b"', "xtl": 1})
    'label=\\'a "b"\\' xtl="1"'
    """
    cells = []
    for name, value in values.items():
        text = FORBIDDEN.sub("_", str(value))
        cells.append(f"{name}={quoteattr(text)}")
    return " ".join(cells)
