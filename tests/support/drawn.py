"""One plan drawn by OpenCV."""

from data.augment.draw import Drawer
from data.augment.records import Plan, Reader
from utils.images.letterbox import Image


def draw(plan: Plan, read: Reader) -> Image:
    """Return the sample of a plan, uint8 [H, W, 3] RGB."""
    return Drawer(read).draw(plan)
