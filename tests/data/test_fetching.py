"""data/fetching.py: a data set is downloaded completely or not at all, and never without
--download.
"""

import hashlib
import os
import re
import shutil
import socket
import threading
from pathlib import Path

import pytest
import torch

import train
import val
from data import fetching
from data.dataset_yaml import read_data_yaml
from data.fetching import WORK, fetch_data
from data.layouts import open_data
from tests.support.launching import forked, free_port, rank_environment, small_run_flags
from tests.support.packing import make_tar, make_zip
from tests.support.scripted_server import delayed_answer, file_answer, fixed_answer
from utils.distributed.world import World
from utils.files import download
from utils.terminal import FaultError

FILES = {
    "images/train/a.jpg": b"1",
    "images/val/b.jpg": b"2",
    "labels/train/a.txt": b"3",
    "labels/val/b.txt": b"4",
}
SKIPPED_FILES = {
    "data.yaml": b"names: [z]",
    "run.py": b"print()",
    ".git/hooks.txt": b"",
    "README": b"",
}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(
        download.fetch, "__kwdefaults__", download.fetch.__kwdefaults__ | {"pauses_s": (0.0,)}
    )


@pytest.fixture
def yaml(tmp_path):
    """yaml(entry, path="set") writes a data YAML with that `download` entry."""

    def write(entry: str, path: str = "set", more: str = "") -> Path:
        (tmp_path / "home").mkdir(exist_ok=True)
        file = tmp_path / "home" / "data.yaml"
        file.write_text(
            f"path: {path}\ntrain: images/train\nval: images/val\ntest: images/test\nnames: [a]\n"
            f"download: {entry}\n{more}"
        )
        return file

    return write


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


# ---------------------------------------------------------------------- downloaded files


@pytest.mark.parametrize("top", ["", "set/"])
def test_dataset_is_downloaded_once(serve, yaml, top, capsys):
    server = serve(
        file_answer(make_zip({top + name: data for name, data in (FILES | SKIPPED_FILES).items()}))
    )
    file = yaml(f"{server.url}/a.zip")
    spec = open_data(str(file), download=True)
    assert files_in(spec.root) == FILES
    assert sorted(os.listdir(spec.root)) == ["images", "labels"]
    output = capsys.readouterr().out
    assert re.search(
        r"downloading a\.zip from 127\.0\.0\.1:\d+\n.*sha256 [0-9a-f]{64} \(not checked: the YAML "
        r"has no sha256",
        output,
    )
    skipped = output.split("lists: ")[1].splitlines()[0].split(", ")
    assert sorted(skipped) == ["1 .py", "1 .txt", "1 .yaml", "1 without suffix"]
    assert open_data(str(file), download=True) == spec == open_data(str(file))
    assert len(server.received) == 1


def test_listed_archives_form_one_dataset(serve, yaml):
    first, second = (dict(list(FILES.items())[a : a + 2]) for a in (0, 2))
    server = serve(file_answer(make_zip(first)), file_answer(make_tar(second)))
    digests = [hashlib.sha256(data).hexdigest() for data in (make_zip(first), make_tar(second))]
    entry = "".join(
        f"\n  - url: {server.url}/{i}\n    sha256: {digest}" for i, digest in enumerate(digests)
    )
    assert files_in(open_data(str(yaml(entry)), download=True).root) == FILES


def test_existing_files_are_never_overwritten_by_download(serve, yaml, tmp_path):
    """An existing file with the same bytes is allowed; with other bytes it is an error, and no file
    changes.
    """
    server = serve(file_answer(make_zip(FILES)))
    file = yaml(f"{server.url}/a.zip", path=".")
    existing = {"images/train/a.jpg": b"1", "labels/train/mine.txt": b"5"}
    for name, data in existing.items():
        (file.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (file.parent / name).write_bytes(data)
    spec = open_data(str(file), download=True)
    assert files_in(spec.root) == FILES | existing | {"data.yaml": file.read_bytes()}

    shutil.rmtree(file.parent / "images" / "val")
    (file.parent / "labels/train/a.txt").write_bytes(b"changed")
    before = files_in(file.parent)
    with pytest.raises(
        ValueError, match=r"data\.yaml: .*a\.txt exists and differs from the downloaded one"
    ):
        open_data(str(file), download=True)
    assert {k: v for k, v in files_in(file.parent).items() if not k.startswith(WORK)} == before
    (file.parent / "labels/train/a.txt").unlink()
    assert files_in(open_data(str(file), download=True).root) == FILES | existing | {
        "data.yaml": file.read_bytes()
    }
    assert len(server.received) == 2  # the second time it had been downloaded already


def test_download_conflicting_with_existing_folder_or_file_is_an_error(serve, yaml):
    file = yaml(f"{serve(file_answer(make_zip(FILES))).url}/a.zip", path=".")
    (file.parent / "labels/train/a.txt").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"a\.txt exists and"):
        open_data(str(file), download=True)
    shutil.rmtree(file.parent / "labels")
    (file.parent / "labels").write_text("")
    with pytest.raises(ValueError, match=r"labels/\w+ exists and|labels exists and"):
        open_data(str(file), download=True)


def test_archive_without_folders_named_in_yaml_is_rejected(serve, yaml):
    server = serve(file_answer(make_zip({"other/a.jpg": b""})))
    file = yaml(f"{server.url}/a.zip")
    with pytest.raises(
        ValueError, match=r"it names .*images/train, but the download contains only other$"
    ):
        open_data(str(file), download=True)
    file.write_text(
        file.read_text().replace("images/train", "other").replace("images/val", "other")
    )
    assert files_in(open_data(str(file), download=True).root) == {"other/a.jpg": b""}
    assert len(server.received) == 1


def test_archive_with_path_traversal_is_rejected_without_leftovers(serve, yaml):
    bad = make_zip(FILES | {"../../evil.txt": b""})
    file = yaml(f"{serve(file_answer(bad)).url}/a.zip")
    with pytest.raises(
        ValueError,
        match=r"a\.zip from 127\S+ was not unpacked: '../../evil.txt' leads out of its folder",
    ):
        open_data(str(file), download=True)
    assert os.listdir(file.parent) == ["data.yaml"]


@pytest.mark.parametrize("answer", [fixed_answer(404), fixed_answer(200, b"<html>")])
def test_failed_download_leaves_no_files(serve, yaml, answer):
    file = yaml(f"{serve(answer).url}/a.zip")
    with pytest.raises((FaultError, ValueError), match=r"answered 404|is not a zip or tar"):
        open_data(str(file), download=True)
    assert os.listdir(file.parent) == ["data.yaml"]


# ----------------------------------------------------------- stopped in the middle, several at once


@pytest.mark.parametrize(
    "step",
    ["unpack", "_require_sources", "os.replace", "os.rename 1", "os.rename 2", "os.rename 3"],
)
@pytest.mark.parametrize("path", ["set", "."])
def test_download_interrupted_at_any_step_is_finished_by_next_run(
    serve, yaml, monkeypatch, step, path
):
    """As the folder `images` exists already, files are moved one by one."""
    server = serve(file_answer(make_zip(FILES)))
    file = yaml(f"{server.url}/a.zip", path=path)
    root = file.parent / path
    (root / "images" / "train").mkdir(parents=True)
    name, _, number = step.partition(" ")
    left = [int(number or 1)]
    where = fetching.os if name.startswith("os.") else fetching
    real = getattr(where, name.removeprefix("os."))

    def stopping(*arguments, **keywords):
        work = str(root / WORK)
        if name != "os.replace" or str(arguments[0]) == f"{work}/unfinished":
            left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return real(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(where, name.removeprefix("os."), stopping)
        with pytest.raises(KeyboardInterrupt):
            open_data(str(file), download=True)
    with pytest.raises(
        ValueError, match=r"interrupted, or is still running: --download finishes it, or remove \S+"
    ):
        open_data(str(file))
    assert {
        k: v
        for k, v in files_in(open_data(str(file), download=True).root).items()
        if k != "data.yaml"
    } == FILES
    assert len(server.received) == 1
    assert not (root / WORK).exists()


def test_download_resumes_in_next_run(serve, yaml):
    data = make_zip(FILES)
    server = serve(file_answer(data, only=100, ETag='"1"'), fixed_answer(404))
    file = yaml(f"{server.url}/a.zip")
    with pytest.raises(FaultError, match="answered 404"):
        open_data(str(file), download=True)
    server.answers[:] = [file_answer(data, ETag='"1"')]
    assert files_in(open_data(str(file), download=True).root) == FILES
    assert server.ranges == [None, "bytes=100-", "bytes=100-"]


def test_damaged_archive_is_downloaded_again(serve, yaml):
    data = make_zip(FILES)
    server = serve(file_answer(data[:-30]), file_answer(data))
    file = yaml(f"{server.url}/a.zip")
    with pytest.raises(ValueError, match="was not unpacked: it is damaged or truncated"):
        open_data(str(file), download=True)
    assert files_in(open_data(str(file), download=True).root) == FILES


def test_concurrent_calls_download_only_once(serve, yaml, capsys):
    server = serve(delayed_answer(make_zip(FILES), 0.3))
    file = yaml(f"{server.url}/a.zip")
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(open_data(str(file), download=True).root))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [files_in(root) for root in found] == [FILES] * 3
    assert len(server.received) == 1
    assert capsys.readouterr().out.count("another process is working there") == 2


# ------------------------------------------------------------ only with --download, only data files


@pytest.fixture
def no_network(monkeypatch):
    """Fail the test if anything creates a socket."""

    def refuse(*arguments, **keywords):
        raise RuntimeError(f"network: {arguments}")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)


@pytest.mark.usefixtures("no_network")
def test_no_network_access_without_download_flag(yaml):
    file = yaml("{url: https://a.org/sets/b.zip, sha256: " + "0" * 64 + "}")
    before = list(file.parent.iterdir())
    with pytest.raises(ValueError) as refusal:
        open_data(str(file)).sources("train")
    assert str(refusal.value) == (
        f"{file}: 'train' is {file.parent}/set/images/train, which does not exist; "
        "--download would fetch b.zip from a.org"
    )
    assert list(file.parent.iterdir()) == before
    for split in ("train", "val"):
        (file.parent / "set" / "images" / split).mkdir(parents=True)
    assert open_data(str(file), download=True).sources("val")  # exists: nothing to download
    with pytest.raises(ValueError, match=r"images/test, which does not exist$"):
        open_data(str(file)).sources("test")


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "bash data/scripts/get_set.sh",
            "line 6: 'download' is 'bash data/scripts/get_set.sh': it is not an https:// or file:",
        ),
        (
            "|\n  import os\n  os.system('touch x')\n",
            "'download' is 'import os\\nos.system('touch x')\\n': it is not an https://",
        ),
        (
            "http://a.org/b.zip",
            "'http://a.org/b.zip': http:// can be read and changed in transit; use https://",
        ),
        ("{url: https://a.org/b, sha256: 12}", "'sha256' is '12', not 64 hexadecimal digits"),
        (
            "{url: https://a.org/b, md5: 12}",
            "'download' has the keys 'url, md5', allowed are url and sha256",
        ),
        ("{sha256: " + "0" * 64 + "}", "'download' has the keys 'sha256'"),
        ("[https://a.org/b, ftp://a.org/c]", "'download' is 'ftp://a.org/c'"),
        ("[[https://a.org/b]]", "'download' must be text"),
        ("{url: https://a.org/b, url: https://a.org/c}", "the key 'url' appears twice"),
        ("", "has no 'download' URL to get its data from"),
        ("[]", "has no 'download'"),
    ],
)
def test_bad_download_entry_is_an_error_only_if_data_is_missing(yaml, entry, message):
    file = yaml(entry)
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        open_data(str(file), download=True)
    assert str(refusal.value).startswith(str(file))
    assert os.listdir(file.parent) == ["data.yaml"]
    for split in ("train", "val"):
        (file.parent / "set" / "images" / split).mkdir(parents=True)
    assert open_data(str(file)).sources("train") == open_data(str(file), download=True).sources(
        "train"
    )


def test_dataset_with_only_a_test_split_is_downloaded(serve, tmp_path):
    server = serve(file_answer(make_zip({"images/a.jpg": b"1"})))
    file = tmp_path / "data.yaml"
    file.write_text(f"path: set\ntest: images\nnames: [a]\ndownload: {server.url}/a.zip\n")
    assert open_data(str(file), download=True).sources("test") == (tmp_path / "set" / "images",)


def test_archive_top_folder_is_kept_if_yaml_refers_to_it(serve, tmp_path):
    server = serve(file_answer(make_zip({"set/a.jpg": b"1"})))
    file = tmp_path / "data.yaml"
    file.write_text(f"path: set\ntrain: set\nval: set\nnames: [a]\ndownload: {server.url}/a.zip\n")
    assert files_in(open_data(str(file), download=True).root) == {"set/a.jpg": b"1"}


# ---------------------------------------------------------------------- through the scripts


@pytest.fixture
def tiny(serve, tiny_data, tmp_path):
    """Return a server of the tiny data set, and a YAML with its URL."""
    files = {
        f"tiny/{p.relative_to(tiny_data.parent)}": p.read_bytes()
        for p in tiny_data.parent.rglob("*.*")
    }
    server, file = serve(file_answer(make_zip(files))), tmp_path / "tiny.yaml"
    file.write_text(
        "path: tiny\ntrain: images\nval: images\nnames: [a, b, c]\ndownload: "
        f"{server.url}/tiny.zip\n"
    )
    return server, file


@pytest.mark.slow
def test_train_and_val_download_missing_data(tiny, tmp_path, tiny_model):
    server, file = tiny
    flags, world = small_run_flags(file, tiny_model, tmp_path / "runs"), World(torch.device("cpu"))
    with pytest.raises(ValueError, match=r"--download would fetch tiny\.zip from 127\.0\.0\.1"):
        train.main(train.parse_args(flags)[0], world)
    assert server.received == []
    train.main(train.parse_args([*flags, "--download"])[0], world)
    assert len(server.received) == 1

    shutil.rmtree(tmp_path / "tiny")
    best = str(tmp_path / "runs" / "exp" / "weights" / "best.pt")
    again = [
        "--weights",
        best,
        "--imgsz",
        "64",
        "--workers",
        "0",
        "--device",
        "cpu",
        "--project",
        str(tmp_path),
    ]
    with pytest.raises(ValueError, match="--download would fetch"):
        val.main(val.parse_args(again)[0], world)
    assert val.main(val.parse_args([*again, "--download"])[0], world).images == 8
    assert len(server.received) == 2


@pytest.mark.slow
def test_resume_does_not_inherit_download_flag(tiny, tmp_path, tiny_model):
    server, file = tiny
    flags, world = (
        small_run_flags(file, tiny_model, tmp_path / "runs", "--download"),
        World(torch.device("cpu")),
    )
    train.main(train.parse_args(flags)[0], world)
    shutil.rmtree(tmp_path / "tiny")
    (tmp_path / "runs" / "exp" / "metrics.json").unlink()  # as if it had been interrupted
    resume = ["--resume", str(tmp_path / "runs" / "exp" / "weights" / "last.pt"), "--device", "cpu"]
    with pytest.raises(ValueError, match="--download would fetch"):
        train.main(train.parse_args(resume)[0], world)
    assert len(server.received) == 1
    train.main(train.parse_args([*resume, "--download"])[0], world)
    assert len(server.received) == 2


@pytest.mark.slow
def test_only_one_process_of_a_run_downloads(tiny, tmp_path, tiny_model):
    server, file = tiny
    port = free_port()
    environments = [rank_environment(rank, 2, port) for rank in range(2)]
    with forked(
        environments,
        small_run_flags(file, tiny_model, tmp_path / "runs", "--download"),
        tmp_path / "io",
    ) as ranks:
        assert [rank.end(300) for rank in ranks] == [0, 0], ranks[0].err
    assert len(server.received) == 1
    assert ["downloading tiny.zip" in rank.out for rank in ranks] == [True, False]
    assert "another process is working there" not in ranks[1].out


def test_repeated_fetch_data_gives_the_same_files(serve, yaml):
    spec = read_data_yaml(yaml(f"{serve(file_answer(make_zip(FILES))).url}/a.zip"))
    for _ in range(2):
        fetch_data(spec)
        assert files_in(spec.root) == FILES
