"""Trainings that overfit eight drawn images with narrow tables.

What makes them quick and certain:

- All images are one batch, without augmentation, and all shapes are large. A box of a head with
  bins starts with 15 cells of a side, 120 px at the first level: shapes of 24 px have so small an
  IoU with it that some are never assigned anything.
- The last level has 8 cells. With 4, and 8 images, the unbiased variance that BatchNorm keeps is
  3 % above the variance that it trains with, which costs 0.05 of the mean IoU.
- What a model has learned is the median of the IoUs of ten shapes. Up to four shapes may be
  learned late, which ones depends on rounding, so on the processor: they do not move it far. With
  boxes that are 4 px off, every IoU is 0.7 or less.
- The model sees each image as it was trained, without the gray border of half a stride of val.py's
  canvas, which it has never seen.

The images are twice as wide as high, and most shapes are in their right half. On square images, a
model whose targets and predictions both have x and y swapped learns each shape at the mirrored
place; here, some families do so, too. The tests of heads and losses notice that.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import yaml
from torch import Tensor

from models import build_loss
from models.assign.targets import pad_targets
from models.detector import Detector
from models.nms import non_max_suppression
from models.tables.find import family_files, load_model_table
from training.global_batch import GlobalBatch
from training.schedule import Schedule
from training.settings.groups import loss_gains
from training.settings.hyperparameters import read_hyp
from training.start import start_model
from training.state import build_train_state
from utils.distributed.world import World

ROOT = Path(__file__).parents[2]
CPU = World(torch.device("cpu"))
NAMES = ("0", "1", "2")  # those of authors' checkpoints without names
SIZES = ((48, 36), (68, 28), (30, 54))  # width and height of each class, in pixels
SHAPES = (  # of each image: class, x and y of the top left corner
    [(0, 74, 26)],
    [(1, 58, 2), (0, 4, 28)],
    [(2, 94, 6)],
    [(0, 78, 2)],
    [(1, 6, 34)],
    [(2, 72, 4), (2, 16, 8)],
    [(2, 48, 6)],
    [(1, 56, 34)],
)
IMAGES = len(SHAPES)
WIDTH, HEIGHT = 128, 64  # pixels of an image
FEW = 3  # steps
LOW_LR = 0.0005
CHANNELS = 0.125  # of a narrow model, times those of the table


class Trained(NamedTuple):
    """A detector in eval mode, and the sum of its loss terms in each step of its training."""

    detector: Detector
    losses: list[float]


class Recipe(NamedTuple):
    """Steps, learning rate, and the gain of the box loss as a multiple of the usual one."""

    steps: int
    lr0: float
    box_gain: float = 1.0


# By what a family's name starts with; the first that fits.
RECIPES = {
    "rtmdet": Recipe(60, 0.02),
    "yolo11": Recipe(36, 0.01),
    "yolo26": Recipe(60, 0.01),
    "yolov3-tiny": Recipe(60, 0.02),
    "yolov3": Recipe(62, 0.02),
    "yolov5": Recipe(75, 0.02),
    "yolov9-c": Recipe(36, 0.01),
    "yolov9": Recipe(60, 0.01),
    "yolox-separable": Recipe(90, 0.01, box_gain=3.0),
    "yolox": Recipe(90, 0.005),
    "": Recipe(24, 0.01),
}
# Tables in models/ whose rows occur in others: the benchmark of full sizes alone trains them.
LEFT_OUT = {
    "yolo11-wide",
    "yolo26-wide",
    "yolov3-spp",
    "yolov5-p2",
    "yolov5-p6",
    "yolov5-u",
    "yolov9-m",
}
BACKBONES = {"convnext", "efficientnet", "mobilenet_v3", "regnet", "resnet"}
FAMILIES = sorted({file.stem for file in family_files()} - LEFT_OUT - BACKBONES)


def draw_image(shapes: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Return an image uint8 [H, W, 3] in BGR; each shape has the color of its class."""
    image = np.full((HEIGHT, WIDTH, 3), 110, np.uint8)
    for kind, x, y in shapes:
        width, height = SIZES[kind]
        place = slice(y, y + height), slice(x, x + width)
        image[place] = 0
        image[(*place, kind)] = 255
    return image


def write_narrow_table(folder: Path, family: str) -> Path:
    """Write a family's table with an eighth of the channels and without repeated blocks.

    Returns the path. family: a file of models/, without .yaml.
    """
    table, _ = load_model_table(ROOT / "models" / f"{family}.yaml")
    narrow = {key: value for key, value in table.items() if key not in ("scales", "source")}
    narrow |= {"depth_multiple": 0.01, "width_multiple": CHANNELS}
    file = folder / f"{family}.yaml"
    file.write_text(yaml.safe_dump(narrow))
    return file


def new_model(table: str, weights: str, names: Sequence[str], seed: int = 0) -> Detector:
    """Return the model that train.py starts from a table, or from a checkpoint."""
    torch.manual_seed(seed)
    model, _ = start_model(
        table,
        weights,
        names,
        anchors_per_level=0,
        fit=False,
        box_sizes=lambda size: np.zeros((0, 2)),
        image_size=WIDTH,
        anchor_t=4.0,
        seed=seed,
        download=False,
        world=CPU,
        say=lambda _: None,
    )
    return model


def overfit(model: Detector, names: Sequence[str], recipe: Recipe) -> Trained:
    """Train on the eight images as train.py does, without its data path.

    model: its averaged weights are the result. names: of its classes.
    """
    _, hyp = read_hyp(ROOT / "data" / "hyps" / "hyp.no-augmentation.yaml")
    gains = loss_gains(replace(hyp, box=hyp.box * recipe.box_gain), label_smoothing=0.0)
    criterion = build_loss(model.head, gains, auxiliary=model.auxiliary_head)
    criterion.start_epoch(0, 1, without_mosaic=True)

    batch = GlobalBatch(IMAGES, nominal=IMAGES)
    schedule = Schedule(
        total_batches=recipe.steps,
        epochs=1,
        batch_size=IMAGES,
        nominal_batch=IMAGES,
        lr0=recipe.lr0,
        lrf=0.05,
        warmup_epochs=0,
    )
    state = build_train_state(
        model.train(),
        CPU,
        batch,
        schedule,
        precision=torch.float32,
        optimizer="Muon",
        weight_decay=0.0,
        loss_terms=criterion.terms,
        say=lambda _: None,
    )

    images = stacked_images()
    targets = pad_targets(stacked_targets(names))
    sums = []
    for step in range(recipe.steps):
        schedule.apply(state.optimizer, step)
        losses = criterion(state.replica(images), targets)
        loss = criterion.weighted_sum(losses) * batch.loss_scale
        loss.backward()
        state.step()
        sums.append(sum(value.item() for value in losses.values()))
    return Trained(state.ema.model.eval(), sums)


def overfit_family(folder: Path, family: str, seed: int = 0) -> Trained:
    """Train a narrow model of a family from scratch, by its recipe. folder: for its table."""
    table = write_narrow_table(folder, family)
    model = new_model(str(table), "", NAMES, seed)
    return overfit(model, NAMES, recipe_of(family))


def few_steps(model: Detector, names: Sequence[str], family: str) -> Trained:
    """Train a few small steps, with the gains of a family's recipe."""
    recipe = recipe_of(family)._replace(steps=FEW, lr0=LOW_LR)
    return overfit(model, names, recipe)


def recipe_of(family: str) -> Recipe:
    return next(RECIPES[start] for start in RECIPES if family.startswith(start))


def stacked_images() -> Tensor:
    """Return the eight images as a model takes them, RGB in [0, 1].  [8, 3, H, W]"""
    pixels_bgr = np.stack([draw_image(shapes) for shapes in SHAPES])
    return torch.from_numpy(pixels_bgr).flip(3).permute(0, 3, 1, 2) / 255


def stacked_targets(names: Sequence[str]) -> Tensor:
    """Return the shapes as image, class, and corners in pixels.  [10, 6]

    names: of the classes, in any order.
    """
    rows = []
    for image, shapes in enumerate(SHAPES):
        for kind, x, y in shapes:
            width, height = SIZES[kind]
            rows.append([image, names.index(NAMES[kind]), x, y, x + width, y + height])
    return torch.tensor(rows, dtype=torch.float32)


@torch.inference_mode()
def shape_ious(detector: Detector) -> list[float]:
    """Return the IoU of each of the ten shapes with what the detector finds.

    An image of n shapes has n chances: its n detections of the highest score. A shape that none of
    them finds in its class has the IoU 0.
    """
    from torchvision.ops import box_iou

    boxes_xyxy, scores = detector.decode(detector(stacked_images()), confidence=0.001)
    targets = stacked_targets(NAMES)
    ious = []
    for image, detections in enumerate(non_max_suppression(boxes_xyxy, scores)):
        shapes = targets[targets[:, 0] == image, 1:]
        best = detections[: len(shapes)]
        for kind, *box_xyxy in shapes.tolist():
            of_class = best[best[:, 5] == kind, :4]
            found = box_iou(torch.tensor([box_xyxy]), of_class)[0].tolist()
            ious.append(max(found, default=0.0))
    return ious
