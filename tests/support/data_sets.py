"""Small data sets on the disk, and opening them as train.py does."""

from pathlib import Path

import cv2
import numpy as np
import torch

from data import Choices, Dataset, open_dataset
from utils.distributed.world import World


def opened(
    *paths: Path | str, cache: Path, said: list[str] | None = None, **choices: object
) -> Dataset:
    """Open a data set, and read its splits train and val."""
    dataset = open_dataset(
        [str(path) for path in paths],
        ("train", "val"),
        World(torch.device("cpu")),
        (said if said is not None else []).append,
        download=False,
        single_class=False,
        cache_dir=str(cache),
        choices=Choices(**choices),
    )
    for split in ("train", "val"):
        dataset.read(split)
    return dataset


def image_folder(
    root: Path, count: int = 10, row: str = "1 .5 .5 .5 .5", names: str = "cat\ndog\n"
) -> Path:
    """Draw different images with the same row in the label file of each, and a list of names."""
    root.mkdir(parents=True)
    for number in range(count):
        seed = sum(map(ord, root.name)) * 1000 + number
        noise = np.random.default_rng(seed).integers(0, 256, (8, 8, 3)).astype(np.uint8)
        cv2.imwrite(str(root / f"{number}.png"), noise)
        (root / f"{number}.txt").write_text(f"{row}\n")
    if names:
        (root / "classes.txt").write_text(names)
    return root


def class_names_by_image(dataset: Dataset) -> dict[str, list[str]]:
    """Return the names of the classes of the boxes in each image, by its path."""
    names = {}
    for labels in dataset.labels.values():
        for index in range(len(labels)):
            rows = slice(labels.offsets[index], labels.offsets[index + 1])
            classes = labels.classes[rows].tolist()
            names[labels.path(index)] = [dataset.names[number] for number in classes]
    return names
