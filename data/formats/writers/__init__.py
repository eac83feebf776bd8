"""Writers of label formats."""

from data.formats.writers.base import LabelWriter, WrittenBox, WrittenImage
from data.formats.writers.registry import WRITERS

__all__ = ["WRITERS", "LabelWriter", "WrittenBox", "WrittenImage"]
