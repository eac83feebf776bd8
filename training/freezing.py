"""Freezing of layers: their weights and BatchNorm statistics stay unchanged in training."""

from collections.abc import Sequence

from torch import nn

from models.detector import Detector
from models.heads import JoinedHead


def freeze(model: Detector, layers: Sequence[int]) -> list[nn.Module]:
    """Freeze layers and return them.

    Of a model with a joined head (--add-classes) all are frozen but the newest head, and its
    adapter if it has one.

    layers: their indices, or a single number N for the first N. Raises ValueError for a layer that
    the model does not have, and if no parameter is left to train.
    """
    if isinstance(model.head, JoinedHead):
        frozen = [*model.layers[: model.head_position], *model.head.older]
        for layer in frozen:
            layer.requires_grad_(False)
        return frozen

    flag = f"--freeze {' '.join(map(str, layers))}"
    indices = list(range(layers[0])) if len(layers) == 1 else list(layers)
    last = len(model.layers) - 1
    if indices and max(indices) > last:
        raise ValueError(f"{flag}: the model has layers 0 to {last}")

    frozen = [model.layers[index] for index in indices]
    for layer in frozen:
        layer.requires_grad_(False)

    # Projections and an auxiliary branch do not count: they detect nothing.
    detecting = model.layers[: model.head_position + 1]
    if not any(parameter.requires_grad for parameter in detecting.parameters()):
        raise ValueError(f"{flag}: no parameter is left to train")
    return frozen


def set_training(model: Detector, frozen: Sequence[nn.Module]) -> None:
    """Put the model in training mode and its frozen layers in eval mode.

    In eval mode their BatchNorm statistics stay unchanged.
    """
    model.train()
    for layer in frozen:
        layer.eval()
