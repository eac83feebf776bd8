"""Files of run folders, the newest one first."""

import os
import tempfile
from pathlib import Path

import pytest

from utils.files.folders import (
    RUN_MARK,
    data_of_run,
    is_run_folder,
    make_folder,
    new_run_folder,
    newest_first,
    require_writable,
    temporary_cache_folder,
)


def test_newest_first_leaves_out_dangling_links(tmp_path):
    """Path.glob returns them on Python 3.13."""
    for number, name in enumerate(("old", "new", "linked")):
        folder = tmp_path / name
        folder.mkdir()
        if name == "linked":
            (folder / "a.json").symlink_to(tmp_path / "gone")
        else:
            (folder / "a.json").write_text("{}")
            os.utime(folder / "a.json", (number, number))

    assert newest_first(tmp_path, "*/a.json") == [
        tmp_path / "new" / "a.json",
        tmp_path / "old" / "a.json",
    ]


def test_newest_first_of_no_folder_is_empty(tmp_path):
    assert newest_first(tmp_path, "*/a.json") == []
    assert newest_first(tmp_path / "gone", "*/a.json") == []


def test_new_run_folders_are_marked(tmp_path):
    for number in range(2):
        folder = new_run_folder(tmp_path / "photos", "night", exist_ok=False)
        assert is_run_folder(str(folder), os.listdir(folder)), number
        assert "not read as data" in (folder / RUN_MARK).read_text()

    (tmp_path / "empty").mkdir()
    for name in ("empty", "new", "new"):
        folder = new_run_folder(tmp_path, name, exist_ok=True)
        assert os.listdir(folder) == [RUN_MARK]


def test_existing_folder_with_files_is_not_marked(tmp_path):
    """It may hold the user's images: a mark would hide them from a training on the folder above."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").touch()
    folder = new_run_folder(tmp_path, "images", exist_ok=True)
    assert os.listdir(folder) == ["a.jpg"]
    assert not is_run_folder(str(folder), os.listdir(folder))


def test_data_set_is_no_run_folder(tmp_path):
    """detect.py --save-txt would overwrite its labels, and train.py its data.yaml."""
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    sentence = "is a data set .* results would overwrite its files: choose another --project or"
    with pytest.raises(ValueError, match=sentence):
        new_run_folder(tmp_path.parent, tmp_path.name, exist_ok=True)
    (tmp_path / RUN_MARK).touch()
    assert new_run_folder(tmp_path.parent, tmp_path.name, exist_ok=True) == tmp_path


@pytest.mark.parametrize(
    ("folder", "names", "is_run"),
    [
        ("/data/night", ["args.yaml", "hyp.yaml", "labels.png"], True),  # train.py
        ("/data/night", ["opt.yaml", "hyp.yaml", "train_batch0.jpg"], True),  # YOLOv5's train.py
        (
            "/data/night",
            ["metrics.json", "confusion_matrix.png", "val_batch0_pred.jpg"],
            True,
        ),  # val.py
        ("/data/runs/detect/exp", ["a.jpg"], True),
        ("/data/runs/val/exp12", [], True),
        ("runs/train/exp3", [], True),
        ("/data/runs/detect/expert", ["a.jpg"], False),
        ("/data/runs/train/images", ["a.jpg"], False),
        ("/data/exp", ["a.jpg"], False),
        ("/data/xruns/train/exp", ["a.jpg"], False),
        ("/data/night", ["args.yaml", "a.jpg"], False),
        ("/data/night", [], False),
    ],
)
def test_runs_from_before_the_mark_are_recognized(folder, names, is_run):
    assert is_run_folder(folder, names) == is_run


def test_folder_that_cannot_be_made_is_refused_with_its_flag(tmp_path):
    (tmp_path / "file").write_text("")
    make_folder(tmp_path / "a" / "b", "--cache-dir")
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(ValueError) as refusal:
        make_folder(tmp_path / "file" / "x", "--cache-dir")
    assert str(refusal.value) == (
        f"{tmp_path}/file/x: cannot be created (Not a directory); --cache-dir names another folder"
    )


def test_folder_below_a_file_is_found_before_it_is_made(tmp_path):
    (tmp_path / "file").write_text("")
    require_writable(tmp_path / "runs" / "train", "--project")
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ValueError) as refusal:
        require_writable(tmp_path / "file" / "train", "--project")
    assert str(refusal.value) == f"--project {tmp_path}/file/train: {tmp_path}/file is not a folder"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission_is_found_before_it_is_made(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(ValueError, match=r"^--project .*runs: .* cannot be written$"):
        require_writable(tmp_path / "runs", "--project")


def test_data_of_moved_run_are_those_in_its_folder(tmp_path):
    best = tmp_path / "moved" / "weights" / "best.pt"
    best.parent.mkdir(parents=True)
    old = str(tmp_path / "exp" / "data.yaml")
    assert data_of_run(best, old) == old, "it has none"

    own = tmp_path / "moved" / "data.yaml"
    own.write_text("")
    assert data_of_run(best, old) == str(own)
    other = str(tmp_path / "exp" / "mydata.yaml")
    assert data_of_run(best, other) == other, "a YAML of the user"
    assert data_of_run(best, "data.yaml") == "data.yaml"
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "data.yaml").write_text("")
    assert data_of_run(best, old) == old, "it was copied, not moved"


def test_data_of_checkpoint_in_the_root_folder_are_those_that_it_names():
    assert data_of_run(Path("/best.pt"), "/gone/data.yaml") == "/gone/data.yaml"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder that stands in for the system's temporary one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


posix = pytest.mark.skipif(os.name != "posix", reason="only POSIX has a temporary folder of all")


@posix
def test_temporary_cache_is_written_by_its_user_only(temporary):
    folder = temporary_cache_folder()
    assert folder.parent == temporary
    assert folder.stat().st_mode & 0o077 == 0
    assert temporary_cache_folder() == folder, "it is used again"


@posix
@pytest.mark.parametrize("others", ["link", "writable", "file"])
def test_temporary_cache_that_others_prepared_is_refused(temporary, others):
    folder = temporary / f"kestrel-{os.getuid()}"
    if others == "link":
        (temporary / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(temporary / "elsewhere")
    elif others == "writable":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        folder.write_text("")
    with pytest.raises(ValueError, match=r"kestrel-\d+.* --cache-dir"):
        temporary_cache_folder()
