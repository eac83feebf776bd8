"""The terminal: messages, and a line for each epoch."""

import shutil
import sys

from utils.log import EpochEnded, Event, Message
from utils.printable import printable
from utils.terminal import print_lines


class TerminalSink:
    """Prints messages and one line per epoch."""

    def handle(self, event: Event) -> None:
        if isinstance(event, Message):
            text = event.text if event.table else printable(event.text)
            print_lines(text, warning=event.warning)
        elif isinstance(event, EpochEnded):
            text = printable(event.text)
            if sys.stdout is not None and sys.stdout.isatty():
                text = wrap_groups(text, shutil.get_terminal_size().columns)
            print_lines(text)


def wrap_groups(text: str, width: int) -> str:
    """Return the text as lines of at most `width` columns, if its groups allow that.

    Groups are separated by two spaces, and are not broken.

    >>> wrap_groups("1/3  box 0.1  P 0.2", 12)
    '1/3  box 0.1\\n     P 0.2'
    """
    stripped = text.lstrip()
    indent = text[: len(text) - len(stripped)]
    first, *groups = stripped.split("  ")
    lines = [indent + first]
    for group in groups:
        if len(lines[-1]) + 2 + len(group) <= width:
            lines[-1] += f"  {group}"
        else:
            lines.append(f"     {group}")
    return "\n".join(lines)
