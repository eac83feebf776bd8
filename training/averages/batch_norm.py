"""BatchNorm's running statistics, which must follow the weights of a short run."""

from torch import nn
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


def follow_short_run(model: nn.Module, batches: int) -> None:
    """Raise the momentum of a model's BatchNorm layers so that statistics follow the weights.

    Statistics with momentum m average over about 1 / m batches. The models' 0.03 are 33 batches: in
    a run of 75 they would be those of weights of long ago, and validation would collapse while the
    learning rate is high. The averaged model averages the statistics once more, with the weights,
    so that those of a few batches are enough here. Runs of 3,334 batches and more keep 0.03.
    Backbones of other libraries, some with 0.01, lag most.

    model: changed in place; its table is not. A layer without a momentum averages over all batches,
    and is left. batches: of the whole run.
    """
    least = least_momentum(batches)
    for layer in model.modules():
        if isinstance(layer, _BatchNorm) and layer.momentum is not None:
            layer.momentum = max(layer.momentum, least)
