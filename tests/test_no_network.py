"""Nothing uses the network without being asked to, in Python or in C, and no home folder is needed."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import ROOT, Job, launched, unshare_command
from tests.support.no_network import commands

PLAY = Path(__file__).parent / "support" / "no_network.py"
NOWHERE = "/dev/null"  # no folder can be created below it, not even by root
UNKNOWN = 54321  # id of a user without a name and a home folder
EMPTY = ("--net", "--user --map-root-user --net")  # options of unshare for a network without an address or a route
WITHOUT_HOME = f"--user --map-user={UNKNOWN} --net"


@dataclass
class Scene:
    """A job, and the command that enters its namespaces; empty if it has none."""

    job: Job
    way: list[str]


@pytest.fixture(scope="module")
def named_data(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny set with class names that not every font can show."""
    file = tmp_path_factory.mktemp("named") / "named.yaml"
    text = f"path: {tiny_data.parent}\ntrain: images\nval: images\nnames: [圓, naïve, Привет]\n"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def scenes(named_data: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Scene]]:
    """All commands without a network, and a run of an unknown user, at the same time, since each takes seconds."""
    played, lonely = tmp_path_factory.mktemp("played"), tmp_path_factory.mktemp("lonely")
    empty, unknown = unshare_command(*EMPTY), unshare_command(WITHOUT_HOME)
    with ExitStack() as stack:
        own = {"HOME": NOWHERE, "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": ""}
        words = [*empty, sys.executable, str(PLAY), str(named_data), tiny_model, str(played)]
        found = {"played": Scene(stack.enter_context(launched(words, played, **own)), empty)}
        if unknown:
            words = ["env", "-u", "HOME", *unknown, sys.executable, str(ROOT / "train.py")]
            words += commands(str(named_data), tiny_model, lonely)["train"][1:]
            found["lonely"] = Scene(stack.enter_context(launched(words, lonely, **own)), unknown)
        yield found


@pytest.fixture(scope="module")
def found(scenes: dict[str, Scene]) -> dict[str, Any]:
    job = scenes["played"].job
    assert job.end(120) == 0, job.err
    return json.loads((job.folder / "found.json").read_text())


@pytest.mark.slow
def test_every_command_ends_well_without_a_network(found, scenes):
    assert found["codes"] == dict.fromkeys(("train", "resume", "val", "models", "metrics", "shapes"), 0)
    assert "Traceback" not in scenes["played"].job.err


@pytest.mark.slow
def test_nothing_tries_to_reach_the_network(found):
    assert found["attempts"] == ""


@pytest.mark.slow
def test_each_way_to_the_network_would_have_been_noticed(found):
    assert found["bitten"]
    assert all(found["bitten"].values()), found["bitten"]


@pytest.mark.slow
def test_neither_does_anything_written_in_c(found, scenes):
    if not scenes["played"].way:
        pytest.skip("this machine does not allow an empty network (unshare --net)")
    assert found["unsent from C"] == 1  # so it would have been noticed
    assert found["unsent"] == 0


@pytest.mark.slow
def test_what_the_commands_write_is_all_there(found, scenes):
    folder = scenes["played"].job.folder
    pictures = {file.name for file in folder.glob("trained/*.png")} | {
        file.name for file in folder.glob("trained/*.jpg")
    }
    assert {"results.png", "labels.png", "PR_curve.png", "confusion_matrix.png", "train_batch0.jpg"} <= pictures
    assert (folder / "validated" / "val_batch0_pred.jpg").exists()
    assert "pycocotools" in scenes["played"].job.out


@pytest.mark.slow
def test_a_home_that_cannot_be_written_costs_the_cache_and_no_more(found, scenes):
    assert scenes["played"].job.out.count(f"[not cached: {NOWHERE}/.cache/kestrel: Not a directory]") == 5


@pytest.mark.slow
def test_a_user_without_a_home_trains(scenes):
    if "lonely" not in scenes:
        pytest.skip("this machine does not allow an unknown user (unshare --user --map-user)")
    job = scenes["lonely"].job
    assert job.end(120) == 0, job.err
    assert "Traceback" not in job.err
    assert job.out.count("[not cached: no home folder, and no --cache-dir]") == 2
    assert (job.folder / "trained" / "results.png").exists()
