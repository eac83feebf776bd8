"""What an output is, and several of them as one."""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Protocol

from utils.images.detections import Frame, ImageDetections
from utils.outputs.interrupts import delay_interrupt


class Output(Protocol):
    """Something that takes each frame and its detections, from one thread at a time, in order."""

    def write(self, frame: Frame, detections: ImageDetections) -> None: ...

    def close(self) -> None:
        """Finish what is open. May be called again, and after an error of `write`."""


class Outputs:
    """Several outputs as one."""

    def __init__(self, outputs: Iterable[Output]) -> None:
        self.outputs = list(outputs)

    def write(self, frame: Frame, detections: ImageDetections) -> None:
        """Write the frame to all outputs.

        Ctrl-C waits for the last of them, so that none lacks the frame.
        """
        with delay_interrupt():
            for output in self.outputs:
                output.write(frame, detections)

    def close(self) -> None:
        """Close each output, even if others raise, and raise one of these errors.

        Ctrl-C waits for the last of them.
        """
        with delay_interrupt(), ExitStack() as stack:
            for output in self.outputs:
                stack.callback(output.close)
