"""How data sets lie on the disk: what a folder, an archive or a file is, and its splits."""

from data.layouts.base import Choices, Layout
from data.layouts.opening import images_to_detect_in, is_other_path, open_data
from data.layouts.recognize import recognize

__all__ = ["Choices", "Layout", "images_to_detect_in", "is_other_path", "open_data", "recognize"]
