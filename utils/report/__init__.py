"""Pages of one file: report.html and compare.html, from plain values."""

from utils.report.page import begins_with_mark, build_page, is_page_of
from utils.report.values import to_json

__all__ = ["begins_with_mark", "build_page", "is_page_of", "to_json"]
