"""BatchNorm's running statistics, which must follow the weights of a short run."""

from collections.abc import Iterable

from torch.nn.modules.batchnorm import _BatchNorm

SHARE_OF_RUN = 0.01
FEWEST_BATCHES = 3.0


def least_momentum(batches: int) -> float:
    """Return the momentum that averages over a hundredth of a run, and over at least 3 batches.

    batches: of the whole run.

    >>> least_momentum(1000), round(least_momentum(75), 3)
    (0.1, 0.333)
    """
    return 1 / max(SHARE_OF_RUN * batches, FEWEST_BATCHES)


def follow_short_run(layers: Iterable[_BatchNorm], batches: int) -> None:
    """Raise the momentum of BatchNorm layers so that the statistics follow the weights.

    Statistics with momentum m average over about 1 / m batches. The models' 0.03 are 33 batches: in
    a run of 75 they would be those of weights of long ago, and validation would collapse while the
    learning rate is high. The averaged model (training/ema.py) averages the statistics once more,
    with the weights, so that those of a few batches are enough here. Runs of 3,334 batches and more
    keep 0.03.

    layers: changed in place; a layer without a momentum averages over all batches, and is left.
    batches: of the whole run.
    """
    least = least_momentum(batches)
    for layer in layers:
        if layer.momentum is not None:
            layer.momentum = max(layer.momentum, least)
