"""Errors by kind, after TIDE: what they are, what they cost, and the pictures that show them."""

from utils.metrics.errors.kinds import ERROR_KINDS, ErrorKinds, error_kinds
from utils.metrics.errors.pictures import ErrorPicture, worst_pictures

__all__ = ["ERROR_KINDS", "ErrorKinds", "ErrorPicture", "error_kinds", "worst_pictures"]
