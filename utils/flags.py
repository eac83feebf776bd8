"""A command line whose every fault is one sentence."""

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from utils.terminal import is_first_process


class FlagParser(argparse.ArgumentParser):
    """argparse without its habit of guessing: a flag is given in full, and what it does not know it refuses.

    A fault raises ValueError with a sentence, in place of a page of usage and an exit.
    """

    def __init__(self, description: str | None, *, argument_default: object = None) -> None:
        super().__init__(
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            argument_default=argument_default,
        )

    def error(self, message: str) -> NoReturn:
        raise ValueError(message.removeprefix("argument "))

    def print_help(self, file: Any = None) -> None:
        """Of several processes the first one's is enough."""
        if is_first_process(os.environ):
            super().print_help(file)

    def read(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """The values of `arguments`, or of the script's own. Raises ValueError for a word that is no flag's."""
        values, unknown = self.parse_known_args(arguments)
        if unknown:
            raise ValueError(f"{self._unknown(unknown[0])}; --help lists the flags")
        return values

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"{word!r} belongs to no flag"
        flag = word.partition("=")[0]
        like = difflib.get_close_matches(flag, [name for name in self._option_string_actions if name != "-h"], 1)
        return f"no flag {flag}" + (f" (did you mean {like[0]}?)" if like else "")

    def not_built(self, *flags: str) -> None:
        """Refuse a flag of YOLOv5 that has no like here yet."""
        self.add_argument(*flags, nargs=0, action=_Refused, **_NOWHERE)


def answer_help(parse: Callable[[], object]) -> None:
    """End here with the list of flags, if the command line asks for it: a script calls this before it loads torch.

    Whatever else is wrong with the command line is left for later, when all processes can refuse it together.
    """
    if {"-h", "--help"} & set(sys.argv[1:]):
        with suppress(ValueError):
            parse()


_NOWHERE: dict[str, Any] = {"dest": argparse.SUPPRESS, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}


class _Refused(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        raise ValueError(f"{option_string} is not built yet; leave it out")
