"""models/predict.py: boxes in pixels of images of any shape, equal to those of val.py."""

from functools import partial

import cv2
import numpy as np
import pytest
import torch

from data import build_evaluation_loader
from data.dataset_yaml import read_data_yaml
from data.labels import Labels
from data.scan import scan
from models import build_model
from models.backends import Backend, Prediction
from models.backends.combined import AugmentedViews, Ensemble
from models.backends.in_torch import TorchBackend
from models.detector import Detector
from models.predict import Predictor
from models.tiled import TiledPredictor
from tests.data.test_loader import write_data
from training.evaluation import predict_split
from utils.distributed.host_copies import to_device
from utils.distributed.world import World
from utils.images.decode import read_image
from utils.images.detections import ImageDetections
from utils.images.letterbox import LETTERBOXES
from utils.images.tiles import Tiling
from utils.metrics.records import Detections

CPU = World(torch.device("cpu"))
SIZES = [
    (200, 100),
    (100, 200),
    (96, 96),
    (641, 479),
    (61, 20),
    (30, 20),
    (20000, 10),
    (1, 1),
]  # width, height


class BrightSpot(torch.nn.Module):
    """Predicts one box around all pixels brighter than 0.9: class 1 of 3, score 0.75; no box
    without such pixels.
    """

    strides = (16, 32)
    num_classes = 3
    needs_nms = True
    dtype = torch.float32
    letterbox = "center"

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen: list[tuple[int, ...]] = []

    def forward(self, images):
        self.seen.append(tuple(images.shape))
        return images

    def decode(self, images, confidence=0.0):
        boxes, scores = torch.zeros(len(images), 1, 4), torch.zeros(len(images), 1, 3)
        for i, bright in enumerate((images > 0.9).all(1)):
            ys, xs = bright.nonzero(as_tuple=True)
            if len(xs):
                boxes[i, 0] = torch.stack([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
                scores[i, 0, 1] = 0.75
        return boxes, scores


def image_with_box(size: tuple[int, int], box: tuple[int, int, int, int]) -> np.ndarray:
    """Return a black image with a white box."""
    image = np.zeros((size[1], size[0], 3), np.uint8)
    image[box[1] : box[3], box[0] : box[2]] = 255
    return image


@pytest.fixture(scope="module")
def odd_data(tmp_path_factory: pytest.TempPathFactory) -> Labels:
    return write_data(tmp_path_factory.mktemp("odd"), SIZES)


@pytest.fixture(scope="module")
def drawn_data(tiny_data) -> Labels:
    spec = read_data_yaml(tiny_data)
    return scan(spec.sources("val"), spec.names)[0]


@pytest.fixture(scope="module")
def model(tiny_model):
    torch.manual_seed(0)
    return build_model(tiny_model, 3)


def detect_with_val(backend: Backend, labels: Labels, **settings) -> list[ImageDetections]:
    loader = build_evaluation_loader(
        labels,
        batch_size=1,
        image_size=96,
        stride=backend.stride,
        letterbox=backend.letterbox,
        canvas=settings.pop("canvas", None),
    )
    return by_image(
        predict_split(backend, loader, CPU, active=False, **settings).detections, labels
    )


def by_image(found: Detections, labels: Labels) -> list[ImageDetections]:
    """Return the detections of each image."""
    images = []
    for image_id in labels.image_ids:
        own = found.image_ids == image_id
        low, size = np.split(found.boxes_xywh[own], 2, axis=1)
        images.append(
            ImageDetections(
                np.concatenate([low, low + size], 1), found.scores[own], found.class_ids[own]
            )
        )
    return images


def assert_detections_close(
    found: list[ImageDetections], expected: list[ImageDetections], atol: float
) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.boxes_xyxy, other.boxes_xyxy, rtol=0, atol=atol)
        np.testing.assert_allclose(one.scores, other.scores, rtol=0, atol=atol)
        assert one.class_ids.tolist() == other.class_ids.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("data", ["drawn_data", "odd_data"])
@pytest.mark.parametrize("views", [TorchBackend, lambda model: AugmentedViews(TorchBackend(model))])
def test_predictor_boxes_equal_those_of_val(request, model, data, views):
    """For any image shape. val.py reads the images by another path: planner, drawing and loader."""
    labels = request.getfixturevalue(data)
    limits = {"confidence": 0.0, "iou": 0.6, "max_detections": 40}
    expected = detect_with_val(views(model), labels, **limits)
    predictor = Predictor(views(model), image_size=96, multi_label=True, batch_size=1, **limits)
    images = [read_image(labels.path(i)) for i in range(len(labels))]
    found = predictor(images, channel_order="bgr")
    assert sum(map(len, found)) > 10 * len(images)
    assert_detections_close(found, expected, 1e-9)
    assert_detections_close(
        [predictor(image, channel_order="bgr") for image in images], expected, 1e-9
    )
    reversed_channels = [image[..., ::-1] for image in images]  # views with a negative stride
    assert_detections_close(predictor(reversed_channels, channel_order="rgb"), expected, 1e-9)


@pytest.mark.parametrize("views", [TorchBackend, lambda model: AugmentedViews(TorchBackend(model))])
@pytest.mark.parametrize("canvas", [None, (64, 128)])
def test_boxes_of_images_at_the_top_left_equal_those_of_val(model, odd_data, canvas, views):
    backend = views(Detector(model.table | {"letterbox": "top_left"}))
    limits = {"confidence": 0.0, "iou": 0.6, "max_detections": 40, "canvas": canvas}
    expected = detect_with_val(backend, odd_data, **limits)
    predictor = Predictor(backend, image_size=96, multi_label=True, batch_size=1, **limits)
    images = [read_image(odd_data.path(i)) for i in range(len(odd_data))]
    assert_detections_close(predictor(images, channel_order="bgr"), expected, 1e-9)


def test_pixels_on_a_fixed_canvas_are_those_of_val(tmp_path):
    """The height of the canvas limits the images, whose long side is then below image_size."""
    labels = write_data(tmp_path, [(400, 300), (300, 400), (301, 211)])
    loader = build_evaluation_loader(
        labels, batch_size=1, image_size=128, stride=32, letterbox="center", canvas=(64, 128)
    )
    of_val = {int(batch.indices[0]): batch.images.numpy() for batch in loader}  # RGB
    model = BrightSpot()
    pixels: list[torch.Tensor] = []
    model.register_forward_pre_hook(lambda _, inputs: pixels.append(inputs[0]))
    predictor = Predictor(TorchBackend(model), image_size=128, canvas=(64, 128), batch_size=1)
    for index in range(len(labels)):
        predictor(read_image(labels.path(index)), channel_order="bgr")
    found = [(255 * each).round().byte().permute(0, 2, 3, 1).numpy() for each in pixels]
    assert [each.shape for each in found] == [(1, 64, 128, 3)] * 3
    assert all(np.array_equal(found[index], of_val[index]) for index in range(3))


@pytest.mark.parametrize("letterbox", LETTERBOXES)
@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_predicted_boxes_match_drawn_boxes(batch_size, letterbox):
    """Resizing moves edges between pixels: the error is at most one pixel of the image or of the
    canvas.
    """
    boxes = [
        (round(w * 0.25), round(h * 0.25), round(w * 0.75), round(h * 0.75)) for w, h in SIZES[:5]
    ]
    images = [image_with_box(size, box) for size, box in zip(SIZES, boxes, strict=False)]
    spot = BrightSpot()
    spot.letterbox = letterbox
    found = Predictor(TorchBackend(spot), image_size=320, batch_size=batch_size)(
        images, channel_order="rgb"
    )
    for size, box, one in zip(SIZES, boxes, found, strict=False):
        assert (one.scores.tolist(), one.class_ids.tolist()) == ([0.75], [1])
        assert np.abs(one.boxes_xyxy[0] - box).max() <= max(1, max(size) / 320)


def test_predicted_boxes_are_exact_without_resizing():
    found = Predictor(TorchBackend(BrightSpot()), image_size=128)(
        image_with_box((128, 72), (10, 20, 30, 60)), channel_order="rgb"
    )
    assert found.boxes_xyxy.tolist() == [[10, 20, 30, 60]]
    assert (found.boxes_xyxy.dtype, found.scores.dtype, found.class_ids.dtype) == (
        np.float64,
        np.float64,
        np.int64,
    )
    assert len(found) == 1


def test_images_with_the_same_canvas_are_batched_together():
    model = BrightSpot()
    images = [
        image_with_box(size, (0, 0, 1, 1))
        for size in [(64, 64), (64, 32), (64, 64), (60, 60), (64, 64)]
    ]
    found = Predictor(TorchBackend(model), image_size=64, batch_size=3)(images, channel_order="rgb")
    # Square: ceil(2 + 0.5) = 3 strides; 64 x 32: ceil(1 + 0.5) = 2 strides high.
    assert model.seen == [(3, 3, 96, 96), (1, 3, 96, 96), (1, 3, 64, 96)]
    assert [one.boxes_xyxy.shape for one in found] == [(1, 4)] * 5


def test_predictor_with_no_images_and_no_detections():
    predictor = Predictor(TorchBackend(BrightSpot()), image_size=64)
    assert predictor([], channel_order="rgb") == []
    found = predictor(np.zeros((50, 70, 3), np.uint8), channel_order="bgr")
    assert (len(found), found.boxes_xyxy.shape, found.boxes_xyxy.dtype) == (0, (0, 4), np.float64)
    assert (found.scores.shape, found.class_ids.shape) == ((0,), (0,))


def test_predicted_boxes_are_clipped_to_the_image(model, odd_data):
    predictor = Predictor(TorchBackend(model), image_size=96, confidence=0.0, max_detections=300)
    images = [read_image(odd_data.path(i)) for i in range(len(odd_data))]
    for (width, height), one in zip(SIZES, predictor(images, channel_order="bgr"), strict=True):
        assert len(one) > 0
        assert (one.boxes_xyxy >= 0).all()
        assert (one.boxes_xyxy <= [width, height, width, height]).all()
        assert (np.diff(one.scores) <= 0).all()


def test_gray_images_are_predicted_like_rgb_images(model):
    gray = np.random.default_rng(0).integers(0, 256, (70, 90), dtype=np.uint8)
    predictor = Predictor(TorchBackend(model), image_size=64, confidence=0.0, max_detections=20)
    expected = [predictor(cv2.cvtColor(gray, cv2.COLOR_GRAY2RGB), channel_order="rgb")]
    assert_detections_close([predictor(gray, channel_order="rgb")], expected, 0)
    assert_detections_close([predictor(gray[..., None], channel_order="bgr")], expected, 0)


def test_predictor_respects_channel_order():
    """A model with one class per channel detects red or blue in a red image, depending on
    channel_order.
    """

    class Channels(BrightSpot):
        def decode(self, images, confidence=0.0):
            return torch.tensor([[[0.0, 0, 9, 9]]]).expand(len(images), 1, 4), images.amax((2, 3))[
                :, None
            ] * 0.9

    image = np.zeros((96, 96, 3), np.uint8)
    image[..., 0] = 255
    predictor = Predictor(TorchBackend(Channels()), image_size=96, confidence=0.5)
    assert predictor(image, channel_order="rgb").class_ids.tolist() == [0]
    assert predictor(image, channel_order="bgr").class_ids.tolist() == [2]


class TwoBoxes(TorchBackend):
    """Predicts two boxes with IoU 0.8, of classes 0 and 2; the first also has score 0.5 for class
    1.
    """

    def predict(self, images, confidence=0.0):
        boxes = torch.tensor([[[10.0, 10, 20, 20], [10, 10, 20, 18]]])
        return Prediction(boxes, torch.tensor([[[0.9, 0.5, 0.0], [0.0, 0.1, 0.8]]]))


@pytest.mark.parametrize(
    ("settings", "class_ids"),
    [
        ({}, [0, 2]),
        ({"multi_label": True}, [0, 2, 1]),
        ({"agnostic": True}, [0]),
        ({"agnostic": True, "iou": 0.9}, [0, 2]),
        ({"agnostic": True, "class_ids": [2]}, []),  # suppressed by class 0, as without class_ids
        ({"class_ids": [2]}, [2]),
        ({"class_ids": [1]}, []),  # the best class of neither box
        ({"class_ids": [1], "multi_label": True}, [1]),
        ({"class_ids": [2], "max_detections": 1}, [2]),  # the best of this class
        ({"class_ids": []}, []),
        ({"confidence": 0.85}, [0]),
        ({"max_detections": 1}, [0]),
    ],
)
def test_predictor_settings_select_detections(settings, class_ids):
    predictor = Predictor(TwoBoxes(BrightSpot()), image_size=64, **settings)
    assert (
        predictor(np.zeros((64, 64, 3), np.uint8), channel_order="rgb").class_ids.tolist()
        == class_ids
    )


@pytest.mark.slow
@pytest.mark.parametrize("tiling", [None, Tiling(64, 0.25)])
@pytest.mark.parametrize("settings", [{}, {"agnostic": True}, {"multi_label": True}])
def test_chosen_classes_are_rows_of_the_whole_result(model, drawn_data, settings, tiling):
    """The same boxes, fewer of them: a box of another class must not become one of a chosen
    class.
    """
    images = [read_image(drawn_data.path(i)) for i in range(2)]
    limits = {"image_size": 96, "confidence": 0.0, "iou": 0.3, "max_detections": 3000, **settings}
    make = partial(TiledPredictor, tiling=tiling) if tiling else Predictor
    every = make(TorchBackend(model), **limits)(images, channel_order="bgr")
    assert len(set(np.concatenate([each.class_ids for each in every]).tolist())) > 1

    for class_ids in ([0], [2, 1], [1, 1], []):
        found = make(TorchBackend(model), class_ids=class_ids, **limits)(
            images, channel_order="bgr"
        )
        for one, whole in zip(found, every, strict=True):
            rows = [k for k, own in enumerate(whole.class_ids.tolist()) if own in class_ids]
            np.testing.assert_array_equal(one.boxes_xyxy, whole.boxes_xyxy[rows])
            np.testing.assert_array_equal(one.scores, whole.scores[rows])
            np.testing.assert_array_equal(one.class_ids, whole.class_ids[rows])
            assert one.left_out == 0

    # A limit counts the chosen classes.
    found = make(TorchBackend(model), class_ids=[2], **{**limits, "max_detections": 2})(
        images, channel_order="bgr"
    )
    for one, whole in zip(found, every, strict=True):
        scores = whole.scores[whole.class_ids == 2].tolist()
        assert (one.scores.tolist(), one.left_out) == (scores[:2], len(scores[2:]))


def test_detections_above_the_limit_are_counted(model, drawn_data):
    image = read_image(drawn_data.path(0))
    limits = {"image_size": 96, "confidence": 0.0, "iou": 0.3}
    every = Predictor(TorchBackend(model), **limits, max_detections=10**6)(
        image, channel_order="bgr"
    )
    assert (every.left_out, every.capped, len(every) > 9) == (0, False, True)
    for most in (1, 9, len(every) - 1, len(every)):
        found = Predictor(TorchBackend(model), **limits, max_detections=most)(
            image, channel_order="bgr"
        )
        assert (len(found), found.left_out) == (most, len(every) - most)
        assert found.scores.tolist() == every.scores[:most].tolist()


def test_limit_of_the_model_itself_is_noticed():
    """The two boxes are all that the model returns, so there may be more."""
    backend = TwoBoxes(BrightSpot())
    backend.max_detections = 2
    image = np.zeros((64, 64, 3), np.uint8)
    found = [
        Predictor(backend, image_size=64, **settings)(image, channel_order="rgb")
        for settings in ({}, {"max_detections": 1}, {"class_ids": [1]}, {"confidence": 0.85})
    ]
    assert [each.capped for each in found] == [True, True, True, False]
    assert [each.left_out for each in found] == [0, 1, 0, 0]


def test_predictor_uses_ensemble_and_its_largest_stride():
    model = BrightSpot()
    wide = TorchBackend(model)
    wide.stride = 64
    predictor = Predictor(Ensemble([TorchBackend(model), wide]), image_size=100, iou=1.0)
    assert predictor.image_size == 128
    found = predictor(image_with_box((128, 128), (32, 32, 64, 64)), channel_order="rgb")
    assert found.boxes_xyxy.tolist() == [[32, 32, 64, 64]] * 2
    assert model.seen == [(1, 3, 192, 192)] * 2


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_predictor_runs_in_given_precision(model, precision):
    types = set()
    hook = model.layers[0].conv.register_forward_hook(
        lambda module, inputs, output: types.add(output.dtype)
    )
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    predictor = Predictor(
        TorchBackend(model.train(), precision=precision), image_size=64, confidence=0.0
    )
    found = predictor(image, channel_order="rgb")
    hook.remove()
    assert types == {precision}
    assert (found.scores.dtype, model.training) == (np.float64, False)


@pytest.mark.parametrize(
    ("images", "text"),
    [
        (
            np.zeros((8, 8, 3), np.float32),
            r"the image is float32 \[8, 8, 3\]; it must be a NumPy array, uint8 \[H, W",
        ),
        ([np.zeros((8, 8), np.uint16)], r"image 0 is uint16 \[8, 8\]; it must be"),
        (
            [np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8, 4), np.uint8)],
            r"image 1 is uint8 \[8, 8, 4\]; it must be",
        ),
        (np.zeros((2, 8, 8, 3), np.uint8), r"the image is uint8 \[2, 8, 8, 3\]; it must be"),
        (
            np.zeros((3, 8, 8), np.uint8)[None, None],
            r"the image is uint8 \[1, 1, 3, 8, 8\]; it must be",
        ),
        (np.zeros(8, np.uint8), r"the image is uint8 \[8\]; it must be"),
        (
            [torch.zeros(8, 8, 3, dtype=torch.uint8)],
            r"image 0 is a Tensor; it must be a NumPy array",
        ),
        (np.zeros((0, 8, 3), np.uint8), r"the image has shape \[0, 8, 3\], so it has no pixels"),
    ],
)
def test_predictor_rejects_invalid_images(images, text):
    model = BrightSpot()
    with pytest.raises(ValueError, match=text):
        Predictor(TorchBackend(model))(images, channel_order="rgb")
    assert model.seen == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"confidence": 1.5}, "confidence 1.5: choose a threshold from 0 to 1"),
        ({"iou": -0.1}, "iou -0.1: choose a threshold from 0 to 1"),
        ({"max_detections": 0}, "max_detections 0: choose 1 or more"),
        ({"image_size": 0}, "image_size 0: choose 1 or more"),
        ({"batch_size": 0}, "batch_size 0: choose 1 or more"),
        ({"class_ids": [0, 3]}, r"class 3: the model has 3 classes \(0-2\)"),
        ({"class_ids": [-1]}, r"class -1: the model has 3 classes \(0-2\)"),
    ],
)
def test_predictor_rejects_settings_out_of_range(settings, text):
    with pytest.raises(ValueError, match=text):
        Predictor(TorchBackend(BrightSpot()), **settings)


def test_predictor_rejects_unknown_channel_order():
    with pytest.raises(ValueError, match="channel_order is 'RGB': choose 'rgb' or 'bgr'"):
        Predictor(TorchBackend(BrightSpot()))([], channel_order="RGB")


def test_to_device_scales_and_permutes_images():
    pixels = torch.randint(0, 256, (2, 5, 7, 3), dtype=torch.uint8)
    images = to_device(pixels, torch.device("cpu"))
    assert images.shape == (2, 3, 5, 7)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert images.equal(pixels.permute(0, 3, 1, 2) / 255)
