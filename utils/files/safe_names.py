"""Relative paths made safe: they stay inside their folder and are one line."""

import unicodedata

# control characters, undecodable bytes, line and paragraph separators
UNSAFE_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")


def safe_name(name: str) -> str:
    r"""Return the relative path nearest to `name` that is one line and stays inside its folder.

    >>> safe_name("../a\\b\n.jpg"), safe_name("/etc/x.jpg"), safe_name("street/ä b.jpg")
    ('_/a_b_.jpg', 'etc/x.jpg', 'street/ä b.jpg')
    """
    clean = "".join(
        "_" if c == "\\" or unicodedata.category(c) in UNSAFE_CATEGORIES else c for c in name
    )
    return "/".join(part if part.strip(". ") else "_" for part in clean.split("/") if part) or "_"
