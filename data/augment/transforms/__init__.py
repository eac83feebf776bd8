"""Users' own augmentations: transforms of Albumentations that a YAML file names."""

from data.augment.transforms.file import TransformFile, read_transforms
from data.augment.transforms.pipeline import Transforms, TransformsError

__all__ = ["TransformFile", "Transforms", "TransformsError", "read_transforms"]
