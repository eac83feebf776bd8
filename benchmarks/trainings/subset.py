"""A data set with fewer training images, to compare recipes and programs on small data.

    python benchmarks/trainings/subset.py --data bccd/dataset.yaml --images 50 --out bccd50.yaml

Draws the images at random, the same for the same seed, and writes a list of them beside the YAML,
with absolute paths. The other splits stay whole. YOLOv5 and Ultralytics read the YAML too. With
--overfit the only other split is val, of the same images. The data set must have image folders or
.txt lists, with the labels in YOLO's format.
"""

import argparse
import random
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data.images import find_images
from data.layouts import open_data
from utils.files.writers import write_text
from utils.printable import printable
from utils.terminal import run_and_exit


def draw(images: list[str], number: int, seed: int) -> list[str]:
    """Return `number` of the images, sorted. Raises ValueError if there are fewer.

    >>> draw(["d", "c", "b", "a"], 2, seed=0)
    ['b', 'd']
    """
    if not 0 < number <= len(images):
        raise ValueError(f"--images {number}: the training split has {len(images)} images")
    return sorted(random.Random(seed).sample(sorted(images), number))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", required=True, help="data YAML")
    add("--images", type=int, required=True, help="number of training images")
    add("--seed", type=int, default=0, help="(default: 0)")
    add("--overfit", action="store_true", help="the val split is the training images")
    add("--out", type=Path, required=True, help="the new data YAML")
    options = parser.parse_args()

    out = options.out.resolve()
    drawn = out.with_suffix(".txt")
    if out.suffix not in (".yaml", ".yml"):
        raise ValueError(f"--out {printable(options.out)}: choose a name that ends in .yaml")
    for file in (out, drawn):
        if file.exists():
            raise ValueError(f"{printable(file)} exists: choose another --out, or delete it")

    read = ["train"] if options.overfit else ["train", "val"]
    spec = open_data(options.data, splits=read)
    images = [path for source in spec.sources("train") for path in find_images(source).images]
    chosen = draw(images, options.images, options.seed)

    # The splits of the new data set: lists of images, or what the old one has.
    paths = {"train": [str(drawn)]}
    if options.overfit:
        paths["val"] = [str(drawn)]
    else:
        for split in ("val", "test"):
            sources = getattr(spec, split)
            if sources:
                paths[split] = [str(source) for source in sources]

    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(drawn, "".join(f"{path}\n" for path in chosen))
    values = {**paths, "names": dict(enumerate(spec.names))}
    write_text(out, yaml.safe_dump(values, sort_keys=False))
    print(f"{options.images} of {len(images)} training images: {options.out}")


if __name__ == "__main__":
    run_and_exit(main)
