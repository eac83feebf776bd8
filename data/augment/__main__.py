"""Draw one image under each transform of a file for --augmentations.

    python -m data.augment my-augmentations.yaml --image photo.jpg

The picture shows the image, the image after each transform (whatever its probability), and three
samples after the whole file, with the boxes of the image's YOLO labels. docs/augmentations.md has
the format of the file.
"""

import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.augment.transforms import Transforms, read_transforms
from data.augment.transforms.pipeline import Targets
from data.formats.base import ListedImage
from data.formats.yolo_txt import YoloText, label_path
from utils.flags import FlagParser, check_image_size, check_lowest
from utils.images.decode import read_image
from utils.images.letterbox import Image, base_sizes, draw_letterboxed, place
from utils.images.opencv import cv2
from utils.printable import printable
from utils.terminal import print_lines, run_and_exit

WHOLE = 3  # samples after the whole file
CLASSES = 1000  # class numbers that a label file may have


def parse_args(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the flags. Raises ValueError, in one sentence, for a command line that is wrong."""
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("file", metavar="FILE", type=Path, help="YAML file, as train.py takes it")
    add("--image", required=True, type=Path, help="image file")
    add("--label", type=Path, help="its YOLO label file (default: where train.py looks for it)")
    add("--out", type=Path, default=Path("augmentations.jpg"), help="picture, .jpg or .png")
    add("--imgsz", "--img", type=int, default=640, help="image size of the training, in pixels")
    add("--seed", type=int, default=0, help="random seed")
    return parser.read(arguments)


def main(arguments: Sequence[str] | None = None) -> Path:
    """Draw the picture as the command line says, and return its path.

    Raises ValueError if a file cannot be read, or as Transforms does.
    """
    args = parse_args(arguments)
    check_args(args)
    file = read_transforms(args.file)
    transforms = Transforms(file.text, file.name)
    print_lines("\n".join([transforms.describe(), *transforms.notes]))
    transforms.check([(args.imgsz, args.imgsz)])

    image, targets = read_sample(args.image, args.label, args.imgsz)
    images, titles, rows = draw_samples(transforms, image, targets, args.seed)

    from utils.plots.batches import plot_batch  # imports matplotlib

    count = max(int(targets[:, 0].max(initial=-1)) + 1, 1)
    names = [str(number) for number in range(count)]
    plot_batch(images, rows, names, args.out, titles=titles, max_images=len(images))
    print_lines(f"{len(images)} images: {printable(args.out)}")
    return Path(args.out)


def check_args(args: Namespace) -> None:
    """Raise ValueError for a value that is not allowed."""
    check_image_size([args.imgsz])
    check_lowest("--seed", args.seed, 0)
    if args.out.suffix.lower() not in (".jpg", ".jpeg", ".png"):
        raise ValueError(f"--out {args.out}: choose a name that ends with .jpg or .png")
    if not args.out.parent.is_dir():
        raise ValueError(f"--out {args.out}: there is no folder {args.out.parent}")
    if os.path.realpath(args.out) == os.path.realpath(args.image):
        raise ValueError(f"--out {args.out}: is the image itself")


def read_sample(path: Path, label: Path | None, image_size: int) -> tuple[Image, Targets]:
    """Return the letterboxed image, uint8 [H, W, 3] RGB, and its targets [T, 5].

    label: of YOLO's format; by default the one that belongs to the path, if it exists. Raises
    ValueError if a file cannot be read.
    """
    source = read_image(str(path))
    height, width = source.shape[:2]
    base_width, base_height = base_sizes(np.array([[width, height]]), image_size)[0].tolist()
    canvas = np.empty((image_size, image_size, 3), np.uint8)
    draw_letterboxed(source, (base_width, base_height), canvas)

    # The boxes, from pixels of the image to those of the canvas.
    if label is not None and not label.exists():
        raise ValueError(f"--label {printable(label)}: does not exist")
    label_file = str(label) if label else label_path(path.absolute())
    names = [str(number) for number in range(CLASSES)]
    listed = ListedImage(str(path), label_file)
    found = YoloText().rows(listed, (width, height), names)
    if found.problems:
        raise ValueError(str(found.problems[0]))
    targets = np.zeros((len(found.rows), 5))
    for number, row in enumerate(found.rows):
        x, y, box_width, box_height = row.box_xywh
        targets[number] = row.class_index, x, y, x + box_width, y + box_height
    placement = place((width, height), (base_width, base_height), canvas.shape[:2])
    targets[:, 1:] = placement.to_canvas(targets[:, 1:])
    return cv2.cvtColor(canvas, cv2.COLOR_BGR2RGB), targets.astype(np.float32)


def draw_samples(
    transforms: Transforms, image: Image, targets: Targets, seed: int
) -> tuple[NDArray[np.uint8], list[str], NDArray[np.float32]]:
    """Return images [B, H, W, 3], their titles, and targets [T, 6] with the number of the image.

    The first one is unchanged; those after it show one transform each; the last ones all.
    """
    images = [image]
    titles = ["unchanged"]
    targets_of = [targets]
    for number, leaf in enumerate(transforms.leaves):
        changed = image.copy()
        targets_of.append(transforms.apply_one(leaf, changed, targets, seed + number))
        images.append(changed)
        titles.append(leaf.title)
    for number in range(WHOLE):
        changed = image.copy()
        targets_of.append(transforms.apply(changed, targets, seed + number))
        images.append(changed)
        titles.append(f"all, sample {number + 1}")

    numbered = [np.insert(own, 0, number, axis=1) for number, own in enumerate(targets_of)]
    return np.stack(images), titles, np.concatenate(numbered)


if __name__ == "__main__":
    run_and_exit(main)
