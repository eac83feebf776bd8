"""What detect.py writes: pictures, videos, label files, tables, crops; and the window it shows."""

from utils.outputs.base import Output, Outputs
from utils.outputs.interrupts import end_on_signals
from utils.outputs.run_folder import open_outputs
from utils.outputs.window import WindowClosed, require_display

__all__ = [
    "Output",
    "Outputs",
    "WindowClosed",
    "end_on_signals",
    "open_outputs",
    "require_display",
]
