"""Plain values as JSON that can stand inside an HTML page."""

import base64
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from utils.printable import printable

DIGITS = 6  # significant digits of a number, as in results.csv


def to_json(values: Any) -> str:
    r"""Return values as JSON text in ASCII that HTML cannot mistake for markup.

    Mappings, lists, tuples, arrays, numbers, texts, paths, booleans and None are allowed, and the
    content of a JPEG file as bytes, which becomes a URI that has all of it inside.

    Texts and keys become one printable line: control characters, and those that change the
    direction of the text around them, are escaped. `<`, `>` and `&` are written as JSON's escapes,
    so that no text ends the element that the JSON is in or begins a comment. A float has DIGITS
    significant digits; nan and infinity, which JSON does not have, become null.

    Raises TypeError for another value.

    >>> to_json({"a": [1, 0.123456789, float("nan")], "b": "</script>"})
    '{"a":[1,0.123457,null],"b":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(_plain(values), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _plain(value: Any) -> Any:
    """Return a value as what JSON has."""
    if isinstance(value, (str, os.PathLike)):
        return printable(value)
    if isinstance(value, bytes):
        return f"data:image/jpeg;base64,{base64.b64encode(value).decode()}"
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {printable(str(key)): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    raise TypeError(f"a page cannot show a {type(value).__name__}")
