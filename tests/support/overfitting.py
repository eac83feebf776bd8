"""Trainings that overfit eight drawn images, by train.py's own `main`, with narrow tables.

What makes them quick and certain:

- All images are one batch, without augmentation, and all shapes are large. A box of a head with
  bins starts with 15 cells of a side, 120 px at the first level: shapes of 24 px have so small an
  IoU with it that some are never assigned anything.
- The running statistics of BatchNorm follow the last steps. At the usual momentum of 0.03 they are
  those of the weights of thirty steps ago.
- The last level has 8 cells. With 4, and 8 images, the unbiased variance that BatchNorm keeps is
  3 % above the variance that it trains with, which costs 0.05 of the mean IoU.
- AP is measured by val.py on the canvas of the training. Its usual canvas has half a stride of gray
  around the image, which a model has not seen that has learned eight images by heart.

The images are twice as wide as high, and most shapes are in their right half. On square images, a
model whose targets and predictions both have x and y swapped learns each shape at the mirrored
place.
"""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import cv2
import numpy as np
import torch
import yaml

import train
import val
from models.tables.find import load_model_table
from training.settings.hyperparameters import Hyp, read_hyp, write_hyp
from utils.distributed.world import World
from utils.images import letterbox

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


def write_narrow_table(folder: Path, family: str, width: float, momentum: float = 0.3) -> Path:
    """Write a family's table with one block wherever it repeats some; return the path.

    family: a file of models/, without .yaml. width: multiplies the channels. momentum: of all its
    batch normalizations, whose eps stays.
    """
    table, _ = load_model_table(ROOT / "models" / f"{family}.yaml")
    narrow = {key: value for key, value in table.items() if key not in ("scales", "source")}
    narrow |= {"depth_multiple": 0.01, "width_multiple": width}
    eps = narrow.get("batch_norm", {"eps": 0.001})["eps"]
    narrow["batch_norm"] = {"eps": eps, "momentum": momentum}
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


def ap_of(weights: Path, data: Path) -> float:
    """Return the mAP50-95 of a checkpoint on the training's canvas, by val.py's own `main`."""
    words = ["--weights", str(weights), "--data", str(data), "--imgsz", str(WIDTH)]
    words += ["--device", "cpu", "--workers", "0", "--cache-dir", str(weights.parent / "cache")]
    words += ["--project", str(weights.parent), "--name", "val", "--exist-ok"]
    without_gray = mock.patch.object(letterbox, "EVALUATION_PAD", 0)
    with without_gray, contextlib.redirect_stdout(io.StringIO()):
        evaluation = val.main(val.parse_args(words)[0], CPU)
    return evaluation.coco.stats["AP"]
