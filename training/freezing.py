"""Freezing of layers: their weights and BatchNorm statistics stay unchanged in training."""

from collections.abc import Sequence

from torch import nn

from models.detector import Detector


def freeze(model: Detector, layers: Sequence[int]) -> list[nn.Module]:
    """Freeze layers and return them: the first N if `layers` is a single number N, else those with
    these indices.

    Raises ValueError for a layer that the model does not have, and if no parameter is left to
    train.
    """
    chosen = list(range(layers[0])) if len(layers) == 1 else list(layers)
    if chosen and max(chosen) >= len(model.layers):
        raise ValueError(
            f"--freeze {' '.join(map(str, layers))}: the model has layers 0 to "
            f"{len(model.layers) - 1}"
        )
    frozen = [model.layers[i] for i in chosen]
    for layer in frozen:
        layer.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"--freeze {' '.join(map(str, layers))}: no parameter is left to train")
    return frozen


def set_training(model: Detector, frozen: Sequence[nn.Module]) -> None:
    """Put the model in training mode and its frozen layers in eval mode, so that their BatchNorm
    statistics stay.
    """
    model.train()
    for layer in frozen:
        layer.eval()
