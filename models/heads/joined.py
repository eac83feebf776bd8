"""Several heads of one kind as one: each has classes of its own, and all read the same maps.

B images, L levels, N predictions per image of all parts, C classes of all parts.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from models.heads.adapters import MapAdapters
from models.heads.base import CellPredictions, Head, Raw

OTHER_CLASSES = -30.0  # logit of another part's classes in `predict_cells`: a score of 1e-13


class JoinedHead(Head):
    """The heads `parts`, each of which predicts boxes of its own group of classes.

    A table with `class_groups` has it as its last row. The parts share nothing but the maps that
    they read, so what one of them predicts does not depend on the others.

    The maps were trained for the classes of the first part. If its kind is one layer, which can
    only weigh what they contain, each later part has an adapter, which turns them into maps for its
    own classes.

    parts: in the order of their classes, of one class, with equal arguments but for the number of
    classes. in_channels: of each map.
    """

    def __init__(self, parts: Sequence[Head], in_channels: Sequence[int]) -> None:
        first = parts[0]
        strides = [Fraction(stride) for stride in first.strides]
        super().__init__(sum(part.num_classes for part in parts), strides)
        self.parts = nn.ModuleList(parts)
        self.adapters = nn.ModuleList()
        for part in parts[1:]:
            adapter = MapAdapters(in_channels) if part.is_one_layer else nn.Identity()
            self.adapters.append(adapter)
        fitted: list[str] = []
        for number, part in enumerate(parts):
            fitted += [f"parts.{number}.{key}" for key in part.fitted]
        self.fitted = tuple(fitted)
        self.trains_alone = False  # whether training reads the newest part only: see `build_loss`
        self._read_output()

    @property
    def heads(self) -> list[Head]:
        """The parts."""
        return cast(list[Head], list(self.parts))

    @property
    def older(self) -> list[nn.Module]:
        """All parts and adapters but the newest, which are not trained."""
        return [*self.parts[:-1], *self.adapters[:-1]]

    @property
    def first_classes(self) -> list[int]:
        """The number of the first class of each part."""
        firsts = [0]
        for part in self.heads:
            firsts.append(firsts[-1] + part.num_classes)
        return firsts[:-1]

    def _read_output(self) -> None:
        """Take over what the parts say of their output, which is the same for all."""
        self.outputs = self.heads[0].outputs
        self.needs_nms = self.heads[0].needs_nms

    def forward(self, maps: list[Tensor]) -> tuple[Raw, ...]:
        """Return the raw predictions of each part; in training, if it `trains_alone`, the last."""
        first, *later = self.parts
        if self.training and self.trains_alone:
            return (later[-1](self.adapters[-1](maps)),)

        raw = [first(maps)]
        for part, adapter in zip(later, self.adapters, strict=True):
            raw.append(part(adapter(maps)))
        return tuple(raw)

    def decode(self, raw: Sequence[Raw]) -> tuple[Tensor, Tensor]:
        """Return boxes_xyxy [B, N, 4] in pixels and scores [B, N, C] in [0, 1], both float32.

        N runs over the parts, then as in each part. The scores of other parts' classes are 0.
        """
        return self._joined(raw, lambda part, of_part: part.decode(of_part))

    def decode_candidates(self, raw: Sequence[Raw], confidence: float) -> tuple[Tensor, Tensor]:
        """Return the candidates of each part, in the same order."""
        return self._joined(raw, lambda part, of_part: part.decode_candidates(of_part, confidence))

    def predict_cells(self, raw: Sequence[Raw]) -> list[CellPredictions]:
        """Return the predictions of all parts in each cell of each level, one after another."""
        parts = []
        for part, first, of_part in zip(self.heads, self.first_classes, raw, strict=True):
            after = self.num_classes - first - part.num_classes
            levels = []
            for boxes, logits in part.predict_cells(of_part):
                padded = pad(logits, (first, after), value=OTHER_CLASSES)
                levels.append(CellPredictions(boxes, padded))
            parts.append(levels)

        joined = []
        for of_level in zip(*parts, strict=True):
            boxes = torch.cat([part.boxes_xyxy for part in of_level], 3)
            logits = torch.cat([part.logits for part in of_level], 3)
            joined.append(CellPredictions(boxes, logits))
        return joined

    def _joined(
        self, raw: Sequence[Raw], decode: Callable[[Head, Raw], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Return the boxes and scores that `decode` returns for each part, one after another."""
        all_boxes = []
        all_scores = []
        for part, first, of_part in zip(self.heads, self.first_classes, raw, strict=True):
            boxes, scores = decode(part, of_part)
            after = self.num_classes - first - part.num_classes
            all_boxes.append(boxes)
            all_scores.append(pad(scores, (first, after)))
        return torch.cat(all_boxes, 1), torch.cat(all_scores, 1)

    def split_classes(self, key: str, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what the part does that has this tensor; the rows are of the part's classes."""
        kind, number, own_key = key.split(".", 2)
        if kind == "adapters":
            return values, None
        return self.heads[int(number)].split_classes(own_key, values)

    def choose_output(self, name: str) -> None:
        """Have all parts decode the predictions of this name."""
        for part in self.heads:
            part.choose_output(name)
        self._read_output()

    def fuse(self) -> None:
        """Remove from all parts what only training needs."""
        for part in self.heads:
            part.fuse()
        self._read_output()

    def table_entries(self) -> dict[str, Any]:
        """Return the entries of the first part, which are those of all."""
        return self.heads[0].table_entries()
