"""The flags of a script that are meant by arguments such as key=value, as Ultralytics has them."""

import argparse
import shlex
from collections.abc import Mapping, Sequence

# The words in front of them: what to do, and with which kind of model.
ACTIONS = ("yolo", "train", "val", "predict", "export", "detect", "segment", "classify", "pose")
# Keys that are not the name of a flag; mode and task are the script itself.
OTHER_NAMES = {
    "checkpoint": "weights",
    "format": "include",
    "line_width": "line-thickness",
    "show": "view-img",
    "split": "task",
}
TRUE, FALSE = "true", "false"


def is_key_value(word: str) -> bool:
    """Whether a word is key=value, or one of the words in front of such arguments.

    >>> is_key_value("epochs=3"), is_key_value("train"), is_key_value("a.yaml"), is_key_value("=3")
    (True, True, False, False)
    """
    key, assigns, _ = word.partition("=")
    return word in ACTIONS or (bool(assigns) and key.isidentifier())


def flags_meant(
    words: Sequence[str], options: Mapping[str, argparse.Action], hints: Mapping[str, str]
) -> str:
    """Return what is meant by such arguments: the flags, and what is said about keys without one.

    Args:
        words: of the command line; others than key=value are left out.
        options: the flags of the script.
        hints: what to say about a key that is not a flag.

    Returns "" if no key is known.
    """
    flags: list[str] = []
    remarks: list[str] = []
    without_flag: list[str] = []
    for word in words:
        key, assigns, value = word.partition("=")
        if not assigns or not key.isidentifier() or key in ("mode", "task"):
            continue
        flag = _flag_of(key, value, options)
        if flag:
            flags += _words_of(flag, value, options[flag])
        elif key in hints:
            remarks.append(hints[key])
        else:
            without_flag.append(key)

    if not flags and not remarks:
        return ""
    if without_flag:
        remarks.append(f"there is no flag for {', '.join(without_flag)}")
    question = f"did you mean {shlex.join(flags)}? " if flags else ""
    return f"{question}{'; '.join(dict.fromkeys(remarks))}".rstrip()


def _flag_of(key: str, value: str, options: Mapping[str, argparse.Action]) -> str:
    """Return the flag that has the meaning of a key; "" if there is none."""
    name = OTHER_NAMES.get(key, key)
    if key == "model":
        is_table = value.endswith((".yaml", ".yml")) and "--cfg" in options
        name = "cfg" if is_table else "weights"
    for flag in (f"--{name}", f"--{name.replace('_', '-')}"):
        if flag in options and options[flag].help != argparse.SUPPRESS:
            return flag
    return ""


def _words_of(flag: str, value: str, action: argparse.Action) -> list[str]:
    """Return the words of a flag with a value, which may be True, False or a list [a,b]."""
    if value.casefold() == FALSE:
        return []
    if value.casefold() == TRUE or action.nargs == 0:
        return [flag]
    values = value.strip("[]").split(",") if action.nargs in ("+", "*") else [value]
    return [flag, *(each.strip(" '\"") for each in values)]
