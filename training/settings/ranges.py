"""In which range a search by mutation may move each hyper-parameter."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """The lowest and the highest value of a hyper-parameter in a search.

    by_factor: it is multiplied by a random number, otherwise one is added.
    """

    low: float
    high: float
    by_factor: bool = False


_PROBABILITY = Range(0.0, 1.0)

# Those of `Hyp`, in its order. Rates and gains are known by their magnitude only, so they change by
# a factor; a strength or a probability may be 0, which no factor would ever leave.
RANGES = {
    "lr0": Range(1e-5, 0.1, by_factor=True),
    "lrf": Range(0.001, 1.0, by_factor=True),
    "momentum": Range(0.6, 0.98),
    "weight_decay": Range(1e-6, 0.01, by_factor=True),
    "nominal_batch": Range(4.0, 256.0, by_factor=True),
    "warmup_epochs": Range(0.0, 5.0),
    "warmup_momentum": Range(0.0, 0.95),
    "warmup_bias_lr": Range(0.0, 0.2),
    "box": Range(0.01, 0.3, by_factor=True),
    "cls": Range(0.1, 4.0, by_factor=True),
    "cls_pw": Range(0.5, 2.0, by_factor=True),
    "obj": Range(0.2, 4.0, by_factor=True),
    "obj_pw": Range(0.5, 2.0, by_factor=True),
    "anchor_t": Range(2.0, 8.0, by_factor=True),
    "anchors": Range(2.0, 10.0, by_factor=True),
    "fl_gamma": Range(0.0, 2.0),
    "distillation": Range(0.1, 10.0, by_factor=True),
    "hsv_h": Range(0.0, 0.1),
    "hsv_s": Range(0.0, 0.9),
    "hsv_v": Range(0.0, 0.9),
    "degrees": Range(0.0, 45.0),
    "translate": Range(0.0, 0.9),
    "scale": Range(0.0, 0.9),
    "shear": Range(0.0, 10.0),
    "perspective": Range(0.0, 0.001),
    "flipud": _PROBABILITY,
    "fliplr": _PROBABILITY,
    "mosaic": _PROBABILITY,
    "mixup": _PROBABILITY,
    "copy_paste": _PROBABILITY,
}
