"""Turn data set files into batches: labels, augmentation plans, drawing, sampling, loading."""

from data.augment import Augmentation
from data.augment.transforms import Transforms, read_transforms
from data.balance.draws import Draws
from data.balance.image_weights import weights_after
from data.cache import open_base_images
from data.labels import Labels
from data.layouts import Choices, open_data
from data.loader import Loader
from data.loaders import (
    Images,
    Loaders,
    build_evaluation_loader,
    build_loaders,
    build_train_loader,
    trial_drawing,
)
from data.multi_scale import MultiScale
from data.sampler import EvaluationSampler, TrainSampler
from data.splits import Dataset, open_dataset

__all__ = [
    "Augmentation",
    "Choices",
    "Dataset",
    "Draws",
    "EvaluationSampler",
    "Images",
    "Labels",
    "Loader",
    "Loaders",
    "MultiScale",
    "TrainSampler",
    "Transforms",
    "build_evaluation_loader",
    "build_loaders",
    "build_train_loader",
    "open_base_images",
    "open_data",
    "open_dataset",
    "read_transforms",
    "trial_drawing",
    "weights_after",
]
