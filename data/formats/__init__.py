"""The label formats of data sets."""

from data.formats.base import LabelFormat
from data.formats.registry import FORMATS, format_of

__all__ = ["FORMATS", "LabelFormat", "format_of"]
