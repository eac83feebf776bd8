"""How data sets lie on the disk: what a folder, an archive or a file is, and its splits."""

from data.layouts.base import Layout
from data.layouts.recognize import recognize

__all__ = ["Layout", "recognize"]
