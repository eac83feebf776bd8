"""YOLOv9's models under the names of its authors' code, and what that code computed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.detector import Detector
from models.tables.find import load_model_table

FIXTURES = Path(__file__).parents[3] / "shared" / "fixtures" / "yolov9"
SIDES = {"sides": "anchor_conv", "classes": "class_conv"}
BINS = 16
# The rows of the channels of one of their layers, in models with a second backbone.
SPLIT = {24: (24, 25), 25: (26, 27, 28)}


def narrow_table(name: str, width: float) -> dict[str, Any]:
    """Return the table of a YOLOv9 with another width."""
    table, _ = load_model_table(name)
    one_size = {key: value for key, value in table.items() if key != "scales"}
    return one_size | {"depth_multiple": 1.0, "width_multiple": width, "channel_multiple": 1}


def to_authors_state(model: Detector) -> dict[str, Tensor]:
    """Return a detector's state as a published file has it, floats as float16."""
    split_rows = [row for rows in SPLIT.values() for row in rows]
    is_split = any(row.module == "CBFuse" for row in model.rows)
    heads = [model.head_position]
    if model.auxiliary_head is not None:
        heads.append(len(model.rows) - 1)

    state = {}
    for key, value in model.state_dict().items():
        _, number, rest = key.split(".", 2)
        row = int(number)
        if is_split and row in split_rows:
            continue
        if row in heads:
            _, branch, level, rest = rest.split(".", 3)
            rest = f"heads.{level}.{SIDES[branch]}.{rest}"
        elif model.rows[row].module == "SPPF":
            rest = rest.replace("cv1.", "conv1.").replace("cv2.", "conv5.")
        state[f"{layer_of(row, is_split)}.{rest}"] = value

    for row in heads:
        for level in range(3):
            name = f"{layer_of(row, is_split)}.heads.{level}.anc2vec.anc2vec.weight"
            state[name] = torch.arange(BINS).float().view(1, BINS, 1, 1, 1)
    if is_split:
        for layer, rows in SPLIT.items():
            for name in ("weight", "bias"):
                parts = [model.get_parameter(f"layers.{row}.conv.{name}") for row in rows]
                state[f"{layer}.conv.{name}"] = torch.cat([part.detach() for part in parts])
    return {
        key: value.half() if value.is_floating_point() else value for key, value in state.items()
    }


def layer_of(row: int, is_split: bool) -> int:
    """Return the number of a row's layer in their models."""
    return row - 3 if is_split and row > 28 else row


def stored_maps(stored: np.lib.npyio.NpzFile, which: str) -> list[Tensor]:
    """Return the raw maps of a head, `main` or `aux`, in our layout: sides' bins, then classes."""
    levels = []
    for level in range(3):
        classes = torch.from_numpy(stored[f"{which}_classes_{level}"]).permute(0, 2, 3, 1)
        bins = torch.from_numpy(stored[f"{which}_bins_{level}"]).permute(0, 3, 4, 2, 1)
        levels.append(torch.cat([bins.flatten(3), classes], -1))
    return levels


def stored_targets(padded: np.ndarray) -> Tensor:
    """Return targets [T, 6] from theirs by image, [B, M, 5]; rows of class -1 are padding."""
    by_image = torch.from_numpy(padded).float()
    images, rows, _ = by_image.shape
    image = torch.arange(images).float().view(-1, 1, 1).expand(images, rows, 1)
    return torch.cat([image, by_image], 2).flatten(0, 1)


def rows_and_scores(slots: Any, shape: Sequence[int], rows: int) -> tuple[Tensor, Tensor]:
    """Return the row in its image of each prediction's target, -1 for none, and its target score.

    slots: an assignment. shape: images and predictions. rows: of each image.
    """
    row = torch.full(tuple(shape), -1)
    score = torch.zeros(tuple(shape))
    row.view(-1)[slots.prediction[slots.valid]] = slots.target[slots.valid] % rows
    score.view(-1)[slots.prediction[slots.valid]] = slots.target_score[slots.valid].float()
    return row, score
