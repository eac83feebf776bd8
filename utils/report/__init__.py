"""Pages of one file: report.html and compare.html, from plain values."""

from utils.report.page import build_page, is_page_of
from utils.report.values import to_json

__all__ = ["build_page", "is_page_of", "to_json"]
