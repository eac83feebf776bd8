"""The frames that `detect.py --source` gives.

Images, videos, folders, lists, patterns, cameras and streams.
"""

from data.sources.base import FrameSource
from data.sources.containers import VIDEO_SUFFIXES
from data.sources.opening import is_live, open_source

__all__ = ["VIDEO_SUFFIXES", "FrameSource", "is_live", "open_source"]
