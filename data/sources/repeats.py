"""Notice that a stream gives the same frames in another connection: then it is a recording."""

import zlib

import numpy as np

MIN_FRAMES = 8  # fewer may be equal by chance, as the title that a camera shows first
MAX_FRAMES = 250  # pictures that do not change for so long say nothing


class Beginning:
    """The first frames of the first connection, with which those of later connections are compared.

    Frames of a camera are never equal to the bit, because of its noise; those of a recording always
    are. Pictures without any change, such as black ones, are no evidence.
    """

    def __init__(self) -> None:
        self._known: list[int] = []  # checksums
        self._is_first = True
        # frames of this connection so far; None once one of them differs
        self._matched: int | None = None

    def connect(self) -> None:
        """Go on with the frames of another connection."""
        self._is_first = not self._known
        self._matched = 0

    @property
    def wants_frame(self) -> bool:
        """Whether the next frame of this connection is to be given to `add`."""
        if self._is_first:
            is_enough = self._has_change and len(self._known) >= MIN_FRAMES
            return not is_enough and len(self._known) < MAX_FRAMES

        return self._has_change and self._matched is not None and not self.is_repeated

    @property
    def matched(self) -> int:
        """The number of frames of a later connection, if all so far are the known ones; else 0."""
        return 0 if self._is_first or self._matched is None else self._matched

    @property
    def is_repeated(self) -> bool:
        """Whether a later connection has given all known frames again, enough to be sure."""
        return self.matched >= MIN_FRAMES and self.has_ended_alike

    @property
    def has_ended_alike(self) -> bool:
        """Whether a later connection has given the known frames and no others so far.

        It is a recording, if it has ended.
        """
        return self._has_change and self.matched == len(self._known)

    def add(self, image: np.ndarray | None) -> None:
        """Take the next frame of this connection; None: a damaged one."""
        checksum = 0 if image is None else zlib.crc32(np.ascontiguousarray(image).data)
        if self._is_first:
            self._known.append(checksum)
        elif self._matched is not None:
            position = self._matched
            is_known = position < len(self._known) and checksum == self._known[position]
            self._matched = position + 1 if is_known else None

    @property
    def _has_change(self) -> bool:
        return len(set(self._known)) > 1
