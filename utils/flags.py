"""Command line parser that reports every mistake in one sentence."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from typing import Any, NoReturn

from utils import __version__
from utils.command_line.key_value_arguments import flags_meant, is_key_value
from utils.printable import did_you_mean
from utils.requirements import old_packages, requirements_error
from utils.startup import exit_with, has_launcher, is_first_process, require_address_space
from utils.terminal import report

# minimum similarity (difflib ratio, 0 to 1) at which a flag is suggested: epoch and epochs have
# 0.91
NEAR = 0.8
COMPLETION = "_ARGCOMPLETE"  # set by argcomplete's functions of bash and zsh

SMALLEST_IMAGE = 32  # pixels of a side, for --imgsz
LARGEST_IMAGE = 8192
IMAGE_SIZES = f"choose {SMALLEST_IMAGE} to {LARGEST_IMAGE} pixels"


class FlagParser(argparse.ArgumentParser):
    """ArgumentParser that accepts no abbreviated flags, and raises ValueError on a mistake.

    The error is one sentence; argparse itself would print its usage and exit.

    defaults: of flags that have none in the parser, for the help.
    """

    def __init__(
        self,
        description: str | None,
        *,
        argument_default: object = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            argument_default=argument_default,
        )
        self.defaults = defaults or {}
        self.refused_values: dict[str, str] = {}  # a flag and its value -> what to use instead
        # an unknown flag, with _ instead of - -> what to use instead
        self.hints: dict[str, str] = {}
        self.stray_file_hint = ""  # what to do if an unexpected argument is a file
        self.add_argument("--version", action=_Version, help="show the version of Kestrel and exit")

    def error(self, message: str) -> NoReturn:
        sentence = message.removeprefix("argument ")
        raise ValueError(sentence.replace("ignored explicit argument", "takes no value, not"))

    def format_help(self) -> str:
        """Return the help, with the default of each flag whose text does not say it."""
        for action in self._actions:
            shown = _default_text(self.defaults.get(action.dest, action.default))
            is_shown = action.help not in (None, argparse.SUPPRESS)
            if shown and is_shown and "(default" not in str(action.help):
                action.help = f"{action.help} (default: {shown})"
        return super().format_help()

    def print_help(self, file: Any = None) -> None:
        """Print the help, with several processes only in rank 0."""
        if is_first_process(os.environ):
            super().print_help(file)

    def read(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse `arguments`, or sys.argv if None.

        Raises ValueError for an unknown flag or a stray argument.
        """
        if COMPLETION in os.environ:
            self._complete()
        words = sys.argv[1:] if arguments is None else list(arguments)
        with_equals = [word.replace("=", " ", 1) for word in words]  # --flag=value
        pairs = [" ".join(pair) for pair in pairwise(words)]  # --flag value
        for given in (*with_equals, *pairs):
            if given in self.refused_values:
                raise ValueError(f"{given} is not supported: {self.refused_values[given]}")
        values, unknown = self.parse_known_args(arguments)
        if unknown:
            raise ValueError(f"{self._unknown(unknown)}; --help lists the flags")
        return values

    def read_known(
        self, arguments: Sequence[str] | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the flags that are known; return the other words too, for another parser."""
        return self.parse_known_args(arguments)

    def suggest(self, values: Mapping[str, Sequence[str]]) -> None:
        """Complete the value of a flag, by its name without dashes, with these words in a shell."""
        for action in self._actions:
            if action.dest in values:
                action.completer = _Completer(values[action.dest])  # type: ignore[attr-defined]

    def _complete(self) -> None:
        """Print the words that complete the command line of a shell, and exit.

        Does nothing if argcomplete is not installed, which asks for it.
        """
        with suppress(ImportError):
            completion = import_module("argcomplete")
            completion.autocomplete(self, always_complete_options="long")

    def _unknown(self, words: Sequence[str]) -> str:
        """Return what is wrong with the first of the words that were not expected."""
        word = words[0]
        if not word.startswith("-"):
            return f"unexpected argument {word!r}{self._stray_hint(words)}"
        flag = word.partition("=")[0]
        if hint := self.hints.get(flag.lstrip("-").replace("-", "_")):
            return f"unknown flag {flag} ({hint})"
        taken = [
            name
            for name, action in self._option_string_actions.items()
            if not isinstance(action, _Refused)
        ]
        return f"unknown flag {flag}{did_you_mean(flag, taken, NEAR)}"

    def _stray_hint(self, words: Sequence[str]) -> str:
        """Return what may be meant by arguments without dashes, such as epochs=3, or ""."""
        word = words[0]
        if is_key_value(word):
            meant = flags_meant(words, self._option_string_actions, self.hints)
            if meant:
                return f" ({meant})"
        if self.stray_file_hint and os.path.exists(word):
            return f" ({self.stray_file_hint})"
        return ""

    def hint(self, hints: Mapping[str, str]) -> None:
        """End the error about these unknown flags with a hint.

        They are given without dashes and with _ instead of -.
        """
        self.hints |= hints

    def refuse(self, instead: Mapping[str, str]) -> None:
        """Raise ValueError for each of these flags, with or without values.

        instead: flag -> what to use instead. A flag with one value, such as `--task study`, is
        refused with this value only.
        """
        for flag, sentence in instead.items():
            if " " in flag:
                self.refused_values[flag] = sentence
            else:
                self.add_argument(flag, nargs="*", action=_Refused, sentence=sentence, **_HIDDEN)


def _default_text(default: object) -> str:
    """Return a flag's default as the help shows it; "" for none that is worth showing."""
    if isinstance(default, bool) or default is argparse.SUPPRESS:
        return ""
    words = default if isinstance(default, list) else [default]
    shown = []
    for word in words:
        if not isinstance(word, (int, float, str)):
            return ""
        shown.append(f"{word:g}" if isinstance(word, float) else str(word))
    return " ".join(shown)


def add_tile_flags(add: Callable[..., Any]) -> None:
    """Add the flags of detection in tiles, by `add_argument` of a parser or of a group."""
    add(
        "--tile",
        type=int,
        help="detect in tiles of this side, in pixels; 0: whole images (default: as trained)",
    )
    add(
        "--tile-overlap",
        type=float,
        help="overlap of tiles as a fraction of their side (default: as trained, or 0.2)",
    )
    add(
        "--tile-whole",
        action="store_true",
        help="with tiles, detect in the whole image too, for large objects",
    )


def check_command_line(parse: Callable[[], object]) -> None:
    """Print the help, or the mistake in the command line, and exit.

    A script calls this before it imports torch. Processes of a launcher report a mistake later,
    together. Exits too if packages are too old, or `ulimit -v` leaves no room for torch.
    """
    try:
        parse()
    except ValueError as error:
        if not has_launcher(os.environ):
            sys.exit(report(f"error: {error}", 2))
    exit_with(requirements_error(old_packages(), "too old"))
    require_address_space()


class _Completer:
    """The words that a flag takes, for argcomplete."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words

    def __call__(self, *, prefix: str, **_: object) -> list[str]:
        return [word for word in self.words if word.startswith(prefix)]


_HIDDEN: dict[str, Any] = {
    "dest": argparse.SUPPRESS,
    "default": argparse.SUPPRESS,
    "help": argparse.SUPPRESS,
}


class _Version(argparse.Action):
    """Prints the version, with several processes only in rank 0, and exits."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"nargs": 0, "dest": argparse.SUPPRESS})

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> NoReturn:
        if is_first_process(os.environ):
            print(f"Kestrel {__version__}")
        raise SystemExit(0)


class _Refused(argparse.Action):
    def __init__(self, *, sentence: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.sentence = sentence

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        raise ValueError(f"{option_string} is not supported: {self.sentence}")


def check_image_size(sides: Sequence[int]) -> None:
    """Raise ValueError if there are more than two sides of --imgsz, or one is out of range."""
    if len(sides) > 2:
        given = " ".join(map(str, sides))
        raise ValueError(f"--imgsz {given}: give one side, or height and width")
    if not all(SMALLEST_IMAGE <= side <= LARGEST_IMAGE for side in sides):
        raise ValueError(f"--imgsz {' '.join(map(str, sides))}: {IMAGE_SIZES}")


def check_threshold(flag: str, value: float) -> None:
    """Raise ValueError if a threshold of scores or of IoU is out of range."""
    if not 0 <= value <= 1:
        raise ValueError(f"{flag} {value}: choose a threshold from 0 to 1")


def check_lowest(flag: str, value: int, lowest: int) -> None:
    """Raise ValueError if a number is below the lowest that is allowed."""
    if value < lowest:
        raise ValueError(f"{flag} {value}: choose {lowest} or more")
