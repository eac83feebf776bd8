"""Trainings that overfit eight drawn images, by train.py's own `main`, with narrow tables.

What makes them quick and certain:

- All images are one batch, without augmentation, and all shapes are large. A box of a head with
  bins starts with 15 cells of a side, 120 px at the first level: shapes of 24 px have so small an
  IoU with it that some are never assigned anything.
- The last level has 8 cells. With 4, and 8 images, the unbiased variance that BatchNorm keeps is
  3 % above the variance that it trains with, which costs 0.05 of the mean IoU.
- What a model has learned is the median of the IoUs of ten shapes, and how many it finds. One or
  two shapes may be learned late, which ones depends on rounding, so on the processor: they move
  neither far. With boxes that are 2 px off, every IoU is 0.83 or less; ports that swap x and y find
  six shapes, those of the left half.
- The model sees each image as it was trained, without the gray border of half a stride of val.py's
  canvas, which it has never seen.

The images are twice as wide as high, and most shapes are in their right half. On square images, a
model whose targets and predictions both have x and y swapped learns each shape at the mirrored
place.
"""

import contextlib
import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
import yaml
from torch import Tensor
from torchvision.ops import box_iou

import train
from models.detector import Detector
from models.nms import non_max_suppression
from models.tables.find import family_files, load_model_table
from training.settings.hyperparameters import Hyp, read_hyp, write_hyp
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


class Recipe(NamedTuple):
    """Steps, learning rate, and the gain of the box loss as a multiple of the usual one."""

    steps: int
    lr0: float
    box_gain: float = 1.0


# By what a family's name starts with; the first that fits.
RECIPES = {
    "rtmdet": Recipe(80, 0.02),
    "yolo26": Recipe(75, 0.01),
    "yolov3": Recipe(90, 0.02),
    "yolov5-u": Recipe(50, 0.01),
    "yolov5-p2": Recipe(90, 0.01),
    "yolov5": Recipe(90, 0.02),
    "yolov9-c": Recipe(36, 0.01),
    "yolov9": Recipe(46, 0.01),
    "yolox-separable": Recipe(120, 0.01, box_gain=3.0),
    "yolox": Recipe(120, 0.005),
    "": Recipe(50, 0.01),
}
# Tables in models/ whose rows occur in others, so that the benchmark alone trains them.
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


def draw_shapes(root: Path, names: tuple[str, ...] = NAMES) -> Path:
    """Draw eight images with one or two shapes; return the data YAML, whose val split they are.

    names: in any order, which does not change the images.
    """
    for folder in ("images", "labels"):
        (root / folder).mkdir(parents=True)
    for number, shapes in enumerate(SHAPES):
        rows = []
        for kind, x, y in shapes:
            width, height = SIZES[kind]
            center_x = (x + width / 2) / WIDTH
            center_y = (y + height / 2) / HEIGHT
            size = f"{width / WIDTH:.6f} {height / HEIGHT:.6f}"
            class_id = names.index(NAMES[kind])
            rows.append(f"{class_id} {center_x:.6f} {center_y:.6f} {size}\n")
        cv2.imwrite(str(root / "images" / f"{number}.png"), draw_image(shapes))
        (root / "labels" / f"{number}.txt").write_text("".join(rows))
    file = root / "shapes.yaml"
    content = {"path": ".", "train": "images", "val": "images", "names": list(names)}
    file.write_text(yaml.safe_dump(content))
    return file


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


def write_plain_hyp(folder: Path, lr0: float, box_gain: float = 1.0) -> Path:
    """Write hyper-parameters without augmentation, weight decay and warm-up; return the path.

    box_gain: times the usual gain of the box loss.
    """
    _, hyp = read_hyp(ROOT / "data" / "hyps" / "hyp.no-augmentation.yaml")
    plain: Hyp = replace(
        hyp,
        lr0=lr0,
        lrf=0.05,
        nominal_batch=IMAGES,
        weight_decay=0,
        warmup_epochs=0,
        box=hyp.box * box_gain,
    )
    file = folder / f"plain-{lr0:g}.yaml"
    write_hyp(file, "Muon", plain)
    return file


def overfit(
    folder: Path, data: Path, *flags: str, steps: int, lr0: float, box_gain: float = 1.0
) -> Path:
    """Train in a run folder, with a step for each epoch; return the path of best.pt."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    hyp = write_plain_hyp(folder.parent, lr0, box_gain)
    words = ["--data", str(data), "--hyp", str(hyp)]
    words += ["--epochs", str(steps), "--batch-size", str(IMAGES)]
    words += ["--imgsz", str(WIDTH), "--rect"]  # on canvases of the images' shape
    words += ["--device", "cpu", "--amp", "fp32", "--workers", "0", "--noautoanchor"]
    words += ["--noval", "--nosave", "--noplots", "--cache-dir", str(folder.parent / "cache")]
    words += ["--project", str(folder.parent), "--name", folder.name]
    with contextlib.redirect_stdout(io.StringIO()):
        train.main(train.parse_args([*words, *flags])[0], CPU)
    return folder / "weights" / "best.pt"


def overfit_family(folder: Path, data: Path, family: str, seed: int = 0) -> Path:
    """Train a narrow model of a family from scratch, by its recipe; return the path of best.pt."""
    table = write_narrow_table(folder, family)
    flags = ("--cfg", str(table), "--seed", str(seed))
    return overfit(folder / f"seed{seed}", data, *flags, **recipe_of(family)._asdict())


def few_steps(folder: Path, data: Path, family: str, *flags: str) -> Path:
    """Train a few small steps, with the gains of a family's recipe; return the path of best.pt."""
    recipe = recipe_of(family)._replace(steps=FEW, lr0=LOW_LR)
    return overfit(folder, data, *flags, **recipe._asdict())


def recipe_of(family: str) -> Recipe:
    return next(RECIPES[start] for start in RECIPES if family.startswith(start))


def first_and_last_loss(weights: Path) -> tuple[float, float]:
    """Return the sum of the loss terms in the first and in the last step of a training.

    weights: its best.pt.
    """
    with open(weights.parents[1] / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    sums = []
    for row in (rows[0], rows[-1]):
        terms = [float(value) for name, value in row.items() if name.startswith("train/")]
        sums.append(sum(terms))
    return sums[0], sums[1]


def stacked_images() -> Tensor:
    """Return the eight images as a model takes them, RGB in [0, 1].  [8, 3, H, W]"""
    pixels_bgr = np.stack([draw_image(shapes) for shapes in SHAPES])
    return torch.from_numpy(pixels_bgr).flip(3).permute(0, 3, 1, 2) / 255


@torch.inference_mode()
def shape_ious(detector: Detector) -> list[float]:
    """Return the IoU of each of the ten shapes with what the detector finds.

    An image of n shapes has n chances: its n detections of the highest score. A shape that none of
    them finds in its class has the IoU 0.
    """
    boxes_xyxy, scores = detector.decode(detector(stacked_images()), confidence=0.001)
    ious = []
    for shapes, detections in zip(SHAPES, non_max_suppression(boxes_xyxy, scores), strict=True):
        best = detections[: len(shapes)]
        for kind, x, y in shapes:
            width, height = SIZES[kind]
            box_xyxy = torch.tensor([[x, y, x + width, y + height]]).float()
            of_class = best[best[:, 5] == kind, :4]
            found = box_iou(box_xyxy, of_class)[0].tolist()
            ious.append(max(found, default=0.0))
    return ious


def found_shapes(ious: Sequence[float]) -> int:
    """Return how many shapes have an IoU above 0.5."""
    return sum(iou > 0.5 for iou in ious)
