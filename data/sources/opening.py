"""Open what the user gave as `--source`: the text says which kind of source it is."""

import glob
import os
import sys
from collections.abc import Callable
from typing import TextIO

from data.sources.addresses import ALLOWED, addresses_in, is_address, parse_address
from data.sources.base import FrameSource
from data.sources.live import LiveSource
from data.sources.paths import folder_or_list, pattern, single_file
from data.sources.standard_input import paths_on_input
from data.sources.stream_reader import ConnectionPolicy
from utils.printable import printable

KINDS = (
    "an image, a video, a folder, a pattern such as 'photos/*.jpg', a .txt list, a "
    f".streams file, -, {ALLOWED}"
)


def is_live(text: str) -> bool:
    """Whether a --source gives frames that do not wait for the reader.

    It does if it is a camera or an address, or a file of them.
    """
    return is_address(text) or _is_file_with_suffix(text, ".streams")


def open_source(
    text: str,
    *,
    say: Callable[[str], None],
    frame_step: int = 1,
    stdin: TextIO | None = None,
    open_timeout_s: float = 10.0,
    read_timeout_s: float = 10.0,
    reconnects: int = 10,
    pause_s: float = 1.0,
    settled_s: float = 10.0,
) -> FrameSource:
    """Return the frames of what the user gave as --source.

    An existing file or folder is preferred to a pattern of the same text. The network is used only
    for an address.

    Args:
        text: what the user gave.
        say: called with each problem, one sentence, in the thread that iterates.
        frame_step: use every n-th frame of a video or stream, from the first on.
        stdin: what `-` stands for, sys.stdin by default.
        open_timeout_s: seconds to open a stream.
        read_timeout_s: seconds to wait for a frame.
        reconnects: attempts in a row to reach a lost stream.
        pause_s: seconds before the first of them, doubled for each further one.
        settled_s: a connection that is lost sooner counts as a failed attempt, too.

    Raises ValueError, in one sentence, if `text` is none of the allowed kinds or has no image or
    video.
    """
    if frame_step < 1:
        raise ValueError(f"the frame step (--vid-stride) is {frame_step}, allowed are 1, 2, 3, ...")

    if text == "-":
        stream = sys.stdin if stdin is None else stdin
        return paths_on_input(stream, frame_step=frame_step, say=say)

    # Streams.
    policy = ConnectionPolicy(open_timeout_s, read_timeout_s, reconnects, pause_s, settled_s)
    if is_address(text):
        address = parse_address(text)
        return LiveSource([address], address.shown, policy, frame_step=frame_step, say=say)
    if _is_file_with_suffix(text, ".streams"):
        addresses = addresses_in(text)
        return LiveSource(addresses, printable(text), policy, frame_step=frame_step, say=say)

    # Files.
    if os.path.isdir(text) or _is_file_with_suffix(text, ".txt"):
        return folder_or_list(text, frame_step=frame_step, say=say)
    if os.path.lexists(text):
        return single_file(text, frame_step=frame_step, say=say)
    if glob.has_magic(text):
        return pattern(text, frame_step=frame_step, say=say)
    raise ValueError(_unknown(text))


def _is_file_with_suffix(text: str, suffix: str) -> bool:
    return text.lower().endswith(suffix) and os.path.isfile(text)


def _unknown(text: str) -> str:
    """Return why `text` is no source, in one sentence."""
    if text.lower() == "screen":
        return (
            "--source screen is not supported; record the screen to a video file, or give "
            "the address of a stream of it"
        )
    given = f"'{printable(text)}' does not exist" if text else "--source is empty"
    return f"{given}; allowed are {KINDS}"
