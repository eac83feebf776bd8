# ruff: noqa: F401 - the imports are for type checkers
"""The pictures of a run.

The drawing modules load matplotlib, which takes longer than building a model: import late.
"""

from typing import TYPE_CHECKING

from utils.lazy_listing import lazy_listing

if TYPE_CHECKING:
    from utils.plots.annotate import draw_detections
    from utils.plots.pictures import Pictures

__all__, __getattr__ = lazy_listing(
    __name__,
    {
        "annotate": ["draw_detections"],
        "pictures": ["Pictures"],
    },
)
