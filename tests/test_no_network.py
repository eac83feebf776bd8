"""Nothing uses the network without being asked to, in Python or in C, and no home folder is
needed.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import Job, launched, unshare_command
from tests.support.no_network import LOGGERS, UNWRITABLE_HOME

SCRIPT = Path(__file__).parent / "support" / "no_network.py"
UNKNOWN_USER_ID = 54321  # id of a user without a name and a home folder
EMPTY_NETWORK = (
    "--net",
    "--user --map-root-user --net",
)  # options of unshare for a network without an address or a route
WITHOUT_HOME = f"--user --map-user={UNKNOWN_USER_ID} --net"


@dataclass
class Offline:
    """A process that runs all commands, and whether it has an empty network and an unknown user."""

    job: Job
    empty_network: bool
    unknown_user: bool


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
def offline(
    named_data: Path, micro_model: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Offline]:
    """All commands without a network; the first by a user without a home folder if possible."""
    folder = tmp_path_factory.mktemp("offline")
    without_home = unshare_command(WITHOUT_HOME)
    prefix = without_home or unshare_command(*EMPTY_NETWORK)
    if without_home:
        prefix = ["env", "-u", "HOME", *without_home]

    own = {"HOME": UNWRITABLE_HOME, "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": ""}
    own |= {"KESTREL_LOGGER_WAIT": "200"}
    words = [*prefix, sys.executable, str(SCRIPT), str(named_data), micro_model, str(folder)]
    with launched(words, folder, **own) as job:
        yield Offline(job, empty_network=bool(prefix), unknown_user=bool(without_home))


@pytest.fixture(scope="module")
def found(offline: Offline) -> dict[str, Any]:
    job = offline.job
    assert job.end(300) == 0, job.err
    return json.loads((job.folder / "found.json").read_text())


@pytest.mark.slow
def test_all_commands_succeed_without_network(found, offline):
    commands = {"train", "resume", "logged", "val", "detect", "evolve", "models", "metrics"}
    commands.add("shapes")
    if find_spec("optuna"):
        commands.add("tune")
    assert found["codes"] == dict.fromkeys(commands, 0)
    assert "Traceback" not in offline.job.err


@pytest.mark.slow
def test_no_command_tries_to_use_the_network(found):
    assert found["attempts"] == ""


@pytest.mark.slow
def test_loggers_need_no_network(found, offline):
    if not LOGGERS:
        pytest.skip("no logger's package is installed")
    assert "it is left out" not in offline.job.err
    run = offline.job.folder / "logged"
    notes = {file.stem for file in (run / "loggers").glob("*.json")}
    assert notes == set(LOGGERS)


@pytest.mark.slow
def test_audit_hook_rejects_each_way_to_access_the_network(found):
    assert found["blocked_attempts"]
    assert all(found["blocked_attempts"].values()), found["blocked_attempts"]


@pytest.mark.slow
def test_native_code_sends_no_packets(found, offline):
    if not offline.empty_network:
        pytest.skip("this machine does not allow an empty network (unshare --net)")
    assert found["unsent from C"] == 1  # so it would have been noticed
    assert found["unsent"] == 0


@pytest.mark.slow
def test_commands_without_network_write_all_outputs(found, offline):
    folder = offline.job.folder
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
    assert (folder / "evolved" / "evolve.png").exists()
    assert all((folder / run / "report.html").exists() for run in ("trained", "validated"))
    assert "pycocotools" in offline.job.out
    assert len(list((folder / "detected").glob("*.png"))) == 8
    assert "clip.mp4" in offline.job.out


@pytest.mark.slow
def test_unwritable_home_only_disables_the_cache(found, offline):
    sentence = f"[not cached: {UNWRITABLE_HOME}/.cache/kestrel: Not a directory]"
    of_first_command = 0 if offline.unknown_user else 2
    of_searches = 4 if find_spec("optuna") else 2
    assert offline.job.out.count(sentence) == of_first_command + 5 + of_searches


@pytest.mark.slow
def test_training_works_for_user_without_home(found, offline):
    if not offline.unknown_user:
        pytest.skip("this machine does not allow an unknown user (unshare --user --map-user)")
    assert found["codes"]["train"] == 0
    assert offline.job.out.count("[not cached: no home folder, and no --cache-dir]") == 2
    assert (offline.job.folder / "trained" / "results.png").exists()
