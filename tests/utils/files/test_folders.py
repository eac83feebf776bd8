"""Files of run folders, the newest one first."""

import os

from utils.files.folders import newest_first


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

    assert newest_first(tmp_path, "*/a.json") == [tmp_path / "new" / "a.json", tmp_path / "old" / "a.json"]


def test_newest_first_of_no_folder_is_empty(tmp_path):
    assert newest_first(tmp_path, "*/a.json") == []
    assert newest_first(tmp_path / "gone", "*/a.json") == []
