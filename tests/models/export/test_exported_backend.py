"""models/export/exported.py: batches of a fixed size, detections as boxes and scores, outputs of
wrong shapes.
"""

import pytest
import torch

from models.export.exported import ExportedBackend
from models.export.metadata import ExportedModel, Suppression
from utils.terminal import FaultError

CPU = torch.device("cpu")
NMS = Suppression(0.25, 0.45, 2, False)


class Doubling(ExportedBackend):
    """Its only box is the first pixel of each image, its scores twice that; it remembers the sizes
    of its batches.
    """

    def __init__(self, **fields):
        super().__init__(ExportedModel(("a", "b"), 32, 64, **fields), CPU)
        self.sizes = []

    def run(self, images):
        self.sizes.append(len(images))
        first = images[:, :1, :1, 0]
        return [first.repeat(1, 1, 4), first.repeat(1, 1, 2) * 2]


class Fixed(ExportedBackend):
    """Returns the given outputs."""

    def __init__(self, *outputs, **fields):
        super().__init__(ExportedModel(("a", "b"), 32, 64, **fields), CPU)
        self.outputs = outputs

    def run(self, images):
        return self.outputs


def numbered(count, height=32, width=64):
    return (
        torch.arange(count, dtype=torch.float32).view(-1, 1, 1, 1).expand(count, 3, height, width)
    )


@pytest.mark.parametrize(
    ("batch", "count", "sizes"), [(4, 1, [4]), (4, 4, [4]), (4, 9, [4, 4, 4]), (None, 5, [5])]
)
def test_batches_are_split_and_padded(batch, count, sizes):
    backend = Doubling(batch_size=batch)
    boxes, scores, raw = backend.predict(numbered(count))
    assert (backend.sizes, raw) == (sizes, None)
    assert boxes[:, 0, 0].tolist() == list(range(count))
    assert scores[:, 0, 1].tolist() == [2 * number for number in range(count)]


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match="images are 64 x 32, the file is for 96 x 64 only"):
        Doubling(canvas=(64, 96)).predict(numbered(1))
    with pytest.raises(ValueError, match="images are 64 x 33, both sides must be multiples of 32"):
        Doubling().predict(numbered(1, height=33))


def test_failure_of_a_runtime_is_one_sentence():
    class Failing(Fixed):
        def run(self, images):
            raise RuntimeError("bad\nnode")

    with pytest.raises(
        FaultError, match=r"^the exported file fails on images \[1, 3, 32, 64\]: bad node$"
    ):
        Failing().predict(numbered(1))


def test_detections_become_boxes_and_scores_of_one_class():
    rows = torch.tensor([[[1.0, 2, 3, 4, 0.9, 1], [0, 0, 0, 0, 0, 0]]])
    backend = Fixed(rows, nms=NMS)
    boxes, scores, _ = backend.predict(numbered(1))
    assert backend.min_confidence == 0.25
    assert boxes.tolist() == [[[1, 2, 3, 4], [0, 0, 0, 0]]]
    torch.testing.assert_close(scores, torch.tensor([[[0, 0.9], [0, 0]]]))


def test_classes_out_of_range_do_not_fail():
    rows = torch.tensor([[[1.0, 2, 3, 4, 0.9, 1e30], [0, 0, 0, 0, 0.5, float("nan")]]])
    assert Fixed(rows, nms=NMS).predict(numbered(1)).scores.shape == (1, 2, 2)


@pytest.mark.parametrize(
    "shapes",
    [((1, 5, 4), (1, 5, 3)), ((1, 5, 4), (1, 6, 2)), ((1, 5), (1, 5, 2)), ((9, 5, 4), (9, 5, 3))],
)
def test_outputs_of_wrong_shapes_are_refused(shapes):
    with pytest.raises(
        ValueError, match="the outputs of the file do not fit its metadata: their shapes are"
    ):
        Fixed(*map(torch.zeros, shapes)).predict(numbered(1))
    with pytest.raises(ValueError, match="do not fit its metadata"):
        Fixed(torch.zeros(1, 5, 7), nms=NMS).predict(numbered(1))
