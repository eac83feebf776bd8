"""Standard streams that never end a script: closed ones, and output that nobody reads any more."""

import errno
import io
import os
import stat
import sys
from typing import Any


def prepare_streams() -> None:
    """Open the standard streams that are closed, and discard what is written in vain.

    After it, a script also prints characters that the terminal cannot show, as escapes. A second
    call changes nothing.
    """
    _open_closed_streams()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue  # replaced by a test or a notebook

        stream.reconfigure(errors="backslashreplace")
        raw = getattr(stream.buffer, "raw", stream.buffer)  # the file itself, under `python -u`
        if type(raw) is io.FileIO and raw.fileno() in (1, 2):
            setattr(sys, name, _over_output(stream, is_buffered=stream.buffer is not raw))


class _Output(io.FileIO):
    """A standard stream that becomes the null device when nobody can read it any more.

    Its reader has ended (`| head`), or its terminal was closed. A command whose result is a file
    then still writes it, and a training that ignores SIGHUP goes on.

    replaced: the stream in whose place it is, which may close the file when it is deleted.
    """

    def __init__(self, replaced: io.TextIOWrapper) -> None:
        super().__init__(replaced.fileno(), "w", closefd=False)
        self._replaced = replaced
        self.name = replaced.name

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if not self._has_lost_reader(error):
                raise
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)
        return len(data)

    def _has_lost_reader(self, error: OSError) -> bool:
        """Whether a write has failed because nobody reads: not because a disk is full, for one."""
        if error.errno == errno.EPIPE:
            return True
        is_terminal = stat.S_ISCHR(os.fstat(self.fileno()).st_mode)
        return error.errno == errno.EIO and is_terminal


def _over_output(stream: io.TextIOWrapper, *, is_buffered: bool) -> io.TextIOWrapper:
    """Return a standard stream like this one, but over `_Output`."""
    output = _Output(stream)
    return io.TextIOWrapper(
        io.BufferedWriter(output) if is_buffered else output,  # type: ignore[arg-type]
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _open_closed_streams() -> None:
    """Open the null device in place of standard streams that are closed, for example by `2>&-`.

    Otherwise the next opened file gets file descriptor 2, and what libraries write to stderr ends
    up in that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # the lowest free descriptor is opened, which is this one
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, True)

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
