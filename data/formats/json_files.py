"""Read JSON files as data: every fault is one sentence with the file and the line."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from data.formats.text.encoding import not_utf_8
from utils.images.decode import read_bytes
from utils.printable import excerpt, printable

EXACT = 2**53  # from here on programs that read numbers as floats may change them


def read_json(file: Path) -> Any:
    """Return the contents of a JSON file.

    Raises ValueError with its path if it cannot be read, is not JSON, is nested too deeply, or has
    an object with the same key twice, because readers disagree on its value.
    """
    return parse_json(read_bytes(file), file)


def parse_json(data: bytes, file: Path | str) -> Any:
    """Return the contents of a JSON file with these bytes.

    Raises ValueError as `read_json`, EncodingError if it is neither UTF-8 nor, by its mark, UTF-16.
    """
    try:
        text = data.decode(json.detect_encoding(data), "surrogatepass")
    except UnicodeDecodeError as error:
        raise not_utf_8(data, error, str(file)) from None
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ValueError(f"{printable(file)} line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError(f"{printable(file)}: nested too deeply") from None
    except ValueError as error:
        reason = str(error)
        if printable(file) not in reason:
            reason = f"{printable(file)}: not JSON: {excerpt(reason, 200)}"
        raise ValueError(reason) from None


def brief(value: Any) -> str:
    """Return a short text of a JSON value for an error message.

    >>> brief({"a": 1}), brief([1, [2], "b"]), brief("text")
    ('an object', "[1, ..., 'b']", "'text'")
    """
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        inner = []
        for entry in value[:5]:
            is_nested = isinstance(entry, (list, dict))
            inner.append("..." if is_nested else excerpt(repr(entry), 20))
        if len(value) > 5:
            inner.append("...")
        return f"[{', '.join(inner)}]"
    return excerpt(repr(value))


def whole_number(value: Any) -> int | None:
    """Return the value if it is a whole number that every JSON reader keeps exactly, else None.

    7.0 counts as 7.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_exact = isinstance(value, int) and not isinstance(value, bool) and abs(value) < EXACT
    return value if is_exact else None


def no_whole_number(value: Any) -> str:
    """Return what is said of a value for which `whole_number` returns None.

    >>> no_whole_number("7")
    "the text '7', must be a whole number"
    """
    if isinstance(value, str):
        return f"the text {brief(value)}, must be a whole number"
    if isinstance(value, (int, float)) and abs(value) >= EXACT:
        return f"{brief(value)}, larger than 2**53: other programs do not keep it exactly"
    return f"{brief(value)}, must be a whole number"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated = next(key for key in counts if counts[key] > 1)
        raise ValueError(
            f"the object with the id {brief(entries.get('id'))} has the key '{excerpt(repeated)}' "
            "twice"
        )
    return entries
