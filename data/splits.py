"""A data set by its name, and the labels of its splits."""

import os
from collections.abc import Sequence
from pathlib import Path

from data import shapes
from data.dataset_yaml import DataSpec, find_yaml, read_data_yaml
from data.fetching import fetch_data, require_finished
from data.labels import Labels
from data.report import Report
from data.scan import scan

FOLDER = Path(__file__).parent


def find_data(name: str) -> Path:
    """A data set's YAML, given by its path or by its name in data/."""
    return find_yaml(name, FOLDER, "data set")


def open_data(name: str, *, download: bool = False) -> DataSpec:
    """The data set of a YAML that `find_data` finds; the generated one is drawn if need be.

    download: fetch what is not there from where the YAML says. Nothing else may use the network.
    """
    file = find_data(name)
    spec = read_data_yaml(file)
    if file.samefile(FOLDER / "shapes.yaml"):
        shapes.generate(spec.root)
    if download:
        fetch_data(spec)
    require_finished(spec)
    return spec


def read_split(spec: DataSpec, split: str, *, single: bool, cache_dir: str, progress: bool) -> tuple[Labels, Report]:
    """The labels of a split, all of one class if `single`, and what was found in reading them."""
    cache = cache_folder(cache_dir)
    threads = os.cpu_count() or 1
    labels, report = scan(spec.sources(split), spec.names, cache_dir=cache, threads=threads, progress=progress)
    return labels.with_single_class() if single else labels, report


def cache_folder(given: str) -> Path | None:
    """Where scans of labels and decoded images are kept: the place given, else the user's own.

    None for a user without a home folder: containers run as users that the system has never heard of.
    """
    if given:
        return Path(given)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kestrel"
    except RuntimeError:
        return None


def class_names(names: Sequence[str], *, single: bool) -> list[str]:
    """The names, or one for all.

    >>> class_names(["cat", "dog"], single=True), class_names(["cat"], single=True)
    (['object'], ['cat'])
    """
    return ["object"] if single and len(names) > 1 else list(names)
