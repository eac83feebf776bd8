"""Four simultaneous runs in one project folder, a damaged cache, and data in a read-only
folder.
"""

import csv
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from data.dataset_yaml import read_data_yaml
from data.scan import scan
from tests.data.test_scan import file_states
from tests.support.launching import Rank, forked, small_run_flags, unshare_command

NUM_RUNS = 4
UNSHARE_OPTIONS = (
    "--mount",
    "--user --map-root-user --mount",
)  # options of unshare for a private view of the file system


def run_simultaneously(arguments: Sequence[str], folder: Path, script: str = "train") -> list[Rank]:
    """Start four runs of the same command at once; return them when all have succeeded."""
    with forked([{}] * NUM_RUNS, arguments, folder, script=script) as runs:
        for run in runs:
            assert run.end(300) == 0, run.err
    return runs


def val_arguments(run: Path, data: Path, project: Path) -> list[str]:
    """The arguments of a validation that writes into the project's folder `val`."""
    words = (
        f"--weights {run}/weights/best.pt --img 64 --batch 4 --workers 0 --name val "
        f"--cache-dir {project}/cache"
    )
    return [*words.split(), "--data", str(data), "--project", str(project), "--device", "cpu"]


@pytest.fixture(scope="module")
def data(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tiny set that has not been scanned yet."""
    return (
        shutil.copytree(tiny_data.parent, tmp_path_factory.mktemp("simultaneous") / "data")
        / tiny_data.name
    )


@pytest.fixture(scope="module")
def project(data: Path) -> Path:
    return data.parents[1] / "runs"


@pytest.fixture(scope="module")
def trained(data: Path, micro_model: str, project: Path) -> list[Rank]:
    return run_simultaneously(small_run_flags(data, micro_model, project), project.parent / "io")


@pytest.fixture(scope="module")
def folders(trained: list[Rank], project: Path) -> list[Path]:
    return sorted(folder for folder in project.iterdir() if folder.name != "cache")


def contents(folder: Path) -> Any:
    """The contents of a run's files, by name, without what differs from run to run."""
    found: dict[str, Any] = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(file.relative_to(folder))
        if name == "report.html":  # has the times, and the folder's name
            continue
        if file.suffix == ".pt":
            found[name] = torch.load(file, weights_only=True)
        elif file.suffix == ".csv":
            found[name] = list(csv.DictReader(file.open()))
        else:
            found[name] = (
                json.loads(file.read_text()) if file.suffix == ".json" else file.read_bytes()
            )
    return without_times(found)


def without_times(value: Any) -> Any:
    """The value without its times and its messages on the cache."""
    if isinstance(value, Mapping):
        return {
            k: without_times(v)
            for k, v in value.items()
            if k not in ("time", "seconds", "milliseconds", "cache")
        }
    return [without_times(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def bitwise_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal, tensors to the bit."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(
            bitwise_equal(one[key], other[key]) for key in one
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(bitwise_equal, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and (one == other).all().item()
    return one == other


def single_cache_file(project: Path, data: Path) -> Path:
    """The only file in the cache folder. Raises AssertionError if there are more, or it is not
    valid.
    """
    (file,) = (project / "cache").iterdir()
    spec = read_data_yaml(data)
    assert (
        scan(spec.sources("train"), spec.names, cache_dir=project / "cache")[1].cache
        == "from cache"
    )
    return file


# ---------------------------------------------------------------------- trainings


@pytest.mark.slow
def test_simultaneous_runs_get_separate_folders(trained, folders):
    logged = [re.search(r"writing to (\S+)", run.out).group(1) for run in trained]
    assert sorted(logged) == [str(folder) for folder in folders]
    assert [folder.name for folder in folders] == [
        "exp",
        *(f"exp{number}" for number in range(2, NUM_RUNS + 1)),
    ]


@pytest.mark.slow
def test_simultaneous_runs_write_complete_identical_files(folders):
    first, *others = map(contents, folders)
    assert {
        "results.csv",
        "metrics.json",
        "args.yaml",
        "weights/last.pt",
        "weights/best.pt",
    } <= first.keys()
    assert len(first["results.csv"]) == 1
    for other in others:
        assert {
            name for name in first | other if not bitwise_equal(first.get(name), other.get(name))
        } == set()


@pytest.mark.slow
def test_simultaneous_runs_leave_one_cache_and_no_temporary_files(trained, project, data):
    single_cache_file(project, data)
    assert not list(project.rglob("*tmp*"))


# ------------------------------------------------------------------ validations, on a damaged cache


@pytest.mark.slow
def test_simultaneous_validations_rebuild_damaged_cache(folders, data, project):
    cache = single_cache_file(project, data)
    content = cache.read_bytes()
    cache.write_bytes(content[:1000] + b"damaged" + content[1007:])
    runs = run_simultaneously(
        val_arguments(folders[0], data, project), project.parent / "val-io", "val"
    )
    logged = [re.search(r"^val: .*\[(.*)\]$", run.out, re.MULTILINE).group(1) for run in runs]
    assert set(logged) <= {"damaged cache rebuilt: the checksum is wrong", "from cache"}
    assert logged.count("from cache") < NUM_RUNS
    assert cache.read_bytes() != content[:1000] + b"damaged" + content[1007:]
    single_cache_file(project, data)
    first, *others = (
        contents(project / f"val{number}") for number in ("", *range(2, NUM_RUNS + 1))
    )
    assert "PR_curve.png" in first
    assert all(bitwise_equal(first, other) for other in others)
    assert not list(project.rglob("*tmp*"))


# ---------------------------------------------------------------------- data that cannot be written


@pytest.fixture
def read_only_data(data: Path) -> Iterator[dict[str, str]]:
    """Environment variables for a process that cannot write to the data's folder."""
    folder = {"KESTREL_READ_ONLY": str(data.parent)}
    if unshare_command(*UNSHARE_OPTIONS):
        yield folder | {"KESTREL_FAULT": "tests.support.read_only:mount"}
    elif os.getuid() == 0:
        pytest.skip(
            "root can write everywhere, and this machine does not allow mounts (unshare --mount)"
        )
    else:
        folders = [data.parent, *(path for path in data.parent.rglob("*") if path.is_dir())]
        for path in folders:
            path.chmod(0o555)
        yield folder | {"KESTREL_FAULT": "tests.support.read_only:check"}
        for path in folders:
            path.chmod(0o755)


@pytest.mark.slow
def test_train_and_val_run_with_read_only_data(
    read_only_data, folders, data, micro_model, tmp_path
):
    before = file_states(data.parent)
    flags = small_run_flags(data, micro_model, tmp_path, "--workers", "1", "--name", "train")
    training = forked([read_only_data], flags, tmp_path / "train-io")
    validation = forked(
        [read_only_data],
        val_arguments(folders[0], data, tmp_path),
        tmp_path / "val-io",
        script="val",
    )
    with training as (train,), validation as (val,):
        for run in (train, val):
            assert run.end(300) == 0, run.err
    assert file_states(data.parent) == before
    assert (tmp_path / "train" / "metrics.json").exists()
    assert (tmp_path / "val" / "metrics.json").exists()
