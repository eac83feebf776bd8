"""BatchNorm's running statistics, which must follow the weights of a short run."""

from collections.abc import Iterable

from torch.nn.modules.batchnorm import _BatchNorm

from training.ema import averaging_window


def follow_short_run(layers: Iterable[_BatchNorm], batches: int) -> None:
    """Raise the momentum of BatchNorm layers so that a short run averages over a part of it.

    Statistics with momentum m average over about 1 / m batches. The models' 0.03 are 33 batches: in
    a run of 75 they would be those of weights of long ago, and validation would collapse while the
    learning rate is high. Here they average over at most a twentieth of the run, as the averaged
    weights do. Runs of 667 batches and more keep 0.03.

    layers: changed in place; a layer without a momentum averages over all batches, and is left.
    batches: of the whole run.
    """
    least_momentum = 1 / averaging_window(batches)
    for layer in layers:
        if layer.momentum is not None:
            layer.momentum = max(layer.momentum, least_momentum)
