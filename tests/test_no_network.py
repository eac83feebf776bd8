"""Nothing uses the network without being asked to, in Python or in C, and no home folder is
needed.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import ROOT, Job, launched, unshare_command
from tests.support.no_network import commands

SCRIPT = Path(__file__).parent / "support" / "no_network.py"
UNWRITABLE_HOME = "/dev/null"  # no folder can be created below it, not even by root
UNKNOWN_USER_ID = 54321  # id of a user without a name and a home folder
EMPTY_NETWORK = (
    "--net",
    "--user --map-root-user --net",
)  # options of unshare for a network without an address or a route
WITHOUT_HOME = f"--user --map-user={UNKNOWN_USER_ID} --net"


@dataclass
class NamespaceJob:
    """A job, and the command that enters its namespaces; empty if it has none."""

    job: Job
    enter_command: list[str]


@pytest.fixture(scope="module")
def named_data(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny set with class names that not every font can show."""
    file = tmp_path_factory.mktemp("named") / "named.yaml"
    text = f"path: {tiny_data.parent}\ntrain: images\nval: images\nnames: [圓, naïve, Привет]\n"
    file.write_text(text, encoding="utf-8")
    mixed = (
        file.parent / "with-playlist"
    )  # for detect.py: also a video that wants to read an address
    shutil.copytree(tiny_data.parent / "images", mixed)
    (mixed / "clip.mp4").write_text("#EXTM3U\n#EXTINF:1,\nhttp://192.0.2.1/a.ts\n#EXT-X-ENDLIST\n")
    return file


@pytest.fixture(scope="module")
def jobs(
    named_data: Path, micro_model: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, NamespaceJob]]:
    """All commands without a network, and a run of an unknown user, at the same time, since each
    takes seconds.
    """
    offline, unknown_user = (
        tmp_path_factory.mktemp("offline"),
        tmp_path_factory.mktemp("unknown_user"),
    )
    empty, unknown = unshare_command(*EMPTY_NETWORK), unshare_command(WITHOUT_HOME)
    with ExitStack() as stack:
        own = {"HOME": UNWRITABLE_HOME, "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": ""}
        words = [*empty, sys.executable, str(SCRIPT), str(named_data), micro_model, str(offline)]
        found = {
            "offline": NamespaceJob(stack.enter_context(launched(words, offline, **own)), empty)
        }
        if unknown:
            words = ["env", "-u", "HOME", *unknown, sys.executable, str(ROOT / "train.py")]
            words += commands(str(named_data), micro_model, unknown_user)["train"][1:]
            found["unknown_user"] = NamespaceJob(
                stack.enter_context(launched(words, unknown_user, **own)), unknown
            )
        yield found


@pytest.fixture(scope="module")
def found(jobs: dict[str, NamespaceJob]) -> dict[str, Any]:
    job = jobs["offline"].job
    assert job.end(300) == 0, job.err
    return json.loads((job.folder / "found.json").read_text())


@pytest.mark.slow
def test_all_commands_succeed_without_network(found, jobs):
    assert found["codes"] == dict.fromkeys(
        ("train", "resume", "val", "detect", "models", "metrics", "shapes"), 0
    )
    assert "Traceback" not in jobs["offline"].job.err


@pytest.mark.slow
def test_no_command_tries_to_use_the_network(found):
    assert found["attempts"] == ""


@pytest.mark.slow
def test_audit_hook_rejects_each_way_to_access_the_network(found):
    assert found["blocked_attempts"]
    assert all(found["blocked_attempts"].values()), found["blocked_attempts"]


@pytest.mark.slow
def test_native_code_sends_no_packets(found, jobs):
    if not jobs["offline"].enter_command:
        pytest.skip("this machine does not allow an empty network (unshare --net)")
    assert found["unsent from C"] == 1  # so it would have been noticed
    assert found["unsent"] == 0


@pytest.mark.slow
def test_commands_without_network_write_all_outputs(found, jobs):
    folder = jobs["offline"].job.folder
    pictures = {file.name for file in folder.glob("trained/*.png")} | {
        file.name for file in folder.glob("trained/*.jpg")
    }
    assert {
        "results.png",
        "labels.png",
        "PR_curve.png",
        "confusion_matrix.png",
        "train_batch0.jpg",
    } <= pictures
    assert (folder / "validated" / "val_batch0_pred.jpg").exists()
    assert "pycocotools" in jobs["offline"].job.out
    assert len(list((folder / "detected").glob("*.png"))) == 8
    assert "clip.mp4" in jobs["offline"].job.out


@pytest.mark.slow
def test_unwritable_home_only_disables_the_cache(found, jobs):
    assert (
        jobs["offline"].job.out.count(
            f"[not cached: {UNWRITABLE_HOME}/.cache/kestrel: Not a directory]"
        )
        == 5
    )


@pytest.mark.slow
def test_training_works_for_user_without_home(jobs):
    if "unknown_user" not in jobs:
        pytest.skip("this machine does not allow an unknown user (unshare --user --map-user)")
    job = jobs["unknown_user"].job
    assert job.end(300) == 0, job.err
    assert "Traceback" not in job.err
    assert job.out.count("[not cached: no home folder, and no --cache-dir]") == 2
    assert (job.folder / "trained" / "results.png").exists()
