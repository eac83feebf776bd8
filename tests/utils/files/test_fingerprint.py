"""utils/files/fingerprint.py: what changes the digests of files, also if size and modification time
stay the same.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from utils.files import fingerprint
from utils.files.fingerprint import digest_of_contents, digest_of_states

FIXED = 315_532_800 * 10**9  # 1980-01-01, the earliest time that a zip can store, in ns
DIGESTS = (digest_of_contents, digest_of_states)


def write(file: Path, text: str) -> Path:
    """Write a file with the fixed time, as unpacking a zip or `cp -p` does."""
    file.write_text(text)
    os.utime(file, ns=(FIXED, FIXED))
    return file


@pytest.mark.parametrize("digest", DIGESTS)
def test_file_replaced_by_another_with_the_same_size_and_time_is_noticed(
    tmp_path: Path, digest: Callable[..., str]
) -> None:
    file, other = write(tmp_path / "a.txt", "0 .5"), write(tmp_path / "b.txt", "1 .5")
    before = digest([file])
    assert digest([file]) == before
    os.replace(shutil.copy2(other, tmp_path / "part"), file)  # as `rsync -t` does
    assert file.stat().st_mtime_ns == FIXED
    assert digest([file]) != before


def test_file_written_again_in_place_is_noticed_by_its_change_time(tmp_path: Path) -> None:
    file = write(tmp_path / "a.bmp", "0")
    before, status = digest_of_states([file]), file.stat()
    while (
        file.stat().st_ctime_ns == status.st_ctime_ns
    ):  # the system's clock has ticks of some milliseconds
        write(file, "1")
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == (FIXED, status.st_ino)
    assert digest_of_states([file]) != before


def test_contents_digest_does_not_depend_on_times(tmp_path: Path) -> None:
    """Disk images and some network disks store no change time, so it must not be needed; nor may
    `touch` matter.
    """
    file = write(tmp_path / "a.txt", "0 .5")
    before = digest_of_contents([file])
    os.utime(file)
    assert digest_of_contents([file]) == before
    assert digest_of_contents([write(file, "1 .5")]) != before


@pytest.mark.parametrize("digest", DIGESTS)
def test_digest_depends_on_path_order_and_existence(
    tmp_path: Path, digest: Callable[..., str]
) -> None:
    a, b = write(tmp_path / "a", "x"), write(tmp_path / "b", "x")
    gone = tmp_path / "c"
    found = [
        digest(paths)
        for paths in ([], [a], [b], [a, b], [b, a], [a, gone], [gone], [f"{a}\0"], [tmp_path])
    ]
    assert len(set(found)) == len(found)
    assert digest([str(a), gone]) == found[5]
    gone.touch()
    assert digest([a, gone]) != found[5]


@pytest.mark.parametrize("digest", DIGESTS)
def test_digest_of_several_chunks_notices_the_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: Callable[..., str]
) -> None:
    monkeypatch.setattr(fingerprint, "CHUNK", 3)
    monkeypatch.setattr(fingerprint, "BLOCK_BYTES", 2)
    paths = [write(tmp_path / f"{number}.txt", "abc") for number in range(10)]
    before = digest(paths)
    assert digest(paths) == before
    paths[-1].unlink()
    assert digest(paths) != before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_named_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for digest in DIGESTS:
        assert digest([tmp_path / "pipe"]) == digest([tmp_path / "pipe"])
