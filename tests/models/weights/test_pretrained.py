"""Published weights: the table, what a missing file answers, and fetching from a local server."""

import hashlib
import re
from pathlib import Path

import pytest

from models.tables.find import model_names
from models.weights.kestrel import load_detector
from models.weights.pretrained import (
    fetch_weights,
    published,
    require_named_digest,
    where_published,
)
from tests.support.scripted_server import file_answer
from utils.terminal import FaultError

CONTENT = b"weights" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def table(folder: Path, text: str) -> Path:
    (folder / "table.yaml").write_text(text)
    return folder / "table.yaml"


def test_every_published_file_is_of_a_model_with_that_name():
    for name, source in published().items():
        assert source.url.endswith(f"/{name}")
        if name.startswith("yolox_"):
            assert Path(name).stem in model_names()
            assert source.url.startswith("https://github.com/Megvii-BaseDetection/YOLOX/releases/")
            continue

        if name.startswith("v9-"):
            assert (
                name.replace("-", "").replace("v9", "yolov9").removesuffix(".pt") in model_names()
            )
            assert source.url.startswith("https://github.com/MultimediaTechLab/YOLO/releases/")
            assert source.sha256 == source.sha256_prefix == ""
            continue

        # The digits in the name are those in the table.
        assert re.fullmatch("rtmdet_(tiny|s|m|l)_8xb32-300e_coco_[0-9]{8}_[0-9]{6}-.{8}.pth", name)
        assert source.url.startswith(
            "https://download.openmmlab.com/mmdetection/v3.0/rtmdet/rtmdet_"
        )
        assert name.endswith(f"-{source.sha256_prefix}.pth")
        assert source.sha256 == ""


def test_missing_weights_answer_where_their_authors_publish_them(tmp_path):
    with pytest.raises(ValueError) as error:
        load_detector(tmp_path / "yolox_s.pth")
    url = published()["yolox_s.pth"].url
    assert str(error.value) == (
        f"{tmp_path}/yolox_s.pth: cannot be read as a checkpoint: No such file. Its authors "
        f"publish it at {url}: "
        "download it, and give its path"
    )
    assert where_published(tmp_path / "yolox_q.pth") == ""
    for name in ("yolox_s", "yolox_s.pt", "YOLOX_S.pth"):
        answer = f"Its authors publish yolox_s.pth at {url}: download it, and give its path"
        assert where_published(tmp_path / name) == answer


def test_download_without_a_digest_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"yolox_s\.pth: --download needs a sha256 in models/pretrained\.yaml"
    ):
        fetch_weights(str(tmp_path / "yolox_s.pth"))
    assert list(tmp_path.iterdir()) == []


def test_weights_are_fetched_once_and_checked(tmp_path, serve):
    server = serve(file_answer(CONTENT))
    file = table(tmp_path, f"a.pth:\n  url: {server.url}/a.pth\n  sha256: {DIGEST}\n")
    target = tmp_path / "own" / "a.pth"
    target.parent.mkdir()
    assert where_published(target, file) == (
        f"Its authors publish it at {server.url}/a.pth: train.py and val.py fetch it with "
        "--download"
    )
    for _ in range(2):
        fetch_weights(str(target), file)
        assert target.read_bytes() == CONTENT
    assert len(server.received) == 1
    assert [path.name for path in target.parent.iterdir()] == ["a.pth"]


def test_first_digits_are_enough_to_fetch_and_it_is_said(tmp_path, serve, capsys):
    server = serve(file_answer(CONTENT))
    entry = f"a.pth:\n  url: {server.url}/a.pth\n  sha256_prefix: {DIGEST[:8].upper()}\n"
    file = table(tmp_path, entry)
    fetch_weights(str(tmp_path / "a.pth"), file)
    assert (tmp_path / "a.pth").read_bytes() == CONTENT
    assert (
        "a.pth: only 8 digits of its SHA-256 are known and were compared: they guard against "
        "damage, not against forgery"
    ) in capsys.readouterr().out

    wrong = table(tmp_path, entry.replace(DIGEST[:8].upper(), "0" * 8))
    (tmp_path / "a.pth").unlink()
    with pytest.raises(FaultError, match=rf"is {DIGEST}, expected 00000000\.\.\.: it is not the"):
        fetch_weights(str(tmp_path / "a.pth"), wrong)
    assert not (tmp_path / "a.pth").exists()


def test_file_with_a_published_name_and_other_content_is_damaged(tmp_path):
    """It may be so damaged that no reader knows it, or have been cut off by a browser."""
    name = next(name for name, source in published().items() if source.sha256_prefix)
    (tmp_path / name).write_bytes(b"half")
    found = hashlib.sha256(b"half").hexdigest()[:8]
    with pytest.raises(ValueError, match=f"begins with {found}: the file is damaged"):
        load_detector(tmp_path / name)


def test_digits_that_may_be_a_date_are_not_compared(tmp_path):
    for name in ("a-20261127.pth", "a-27112026.pth", "a.pth", "a-78e30dcc.pt", "78e30dcc.pth"):
        (tmp_path / name).write_bytes(b"x")
        require_named_digest(tmp_path / name)
    require_named_digest(tmp_path / "missing-78e30dcc.pth")  # its reader says so
    with pytest.raises(ValueError, match="begins with 78e30dcc, but it begins with 2d711642"):
        require_named_digest((tmp_path / "a.pth").rename(tmp_path / "resnet18-78e30dcc.pth"))


def test_other_content_is_refused_and_removed(tmp_path, serve):
    server = serve(file_answer(CONTENT + b"!"))
    file = table(tmp_path, f"a.pth:\n  url: {server.url}/a.pth\n  sha256: {DIGEST}\n")
    with pytest.raises(FaultError, match="it is not the expected file, and was removed"):
        fetch_weights(str(tmp_path / "a.pth"), file)
    assert [path.name for path in tmp_path.iterdir()] == ["table.yaml"]


def test_unknown_names_and_existing_files_are_left_alone(tmp_path):
    (tmp_path / "yolox_s.pth").write_bytes(b"mine")
    fetch_weights(str(tmp_path / "yolox_s.pth"))
    fetch_weights(str(tmp_path / "best.pt"))
    assert (tmp_path / "yolox_s.pth").read_bytes() == b"mine"
    assert not (tmp_path / "best.pt").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1]", "expected entries"),
        ("", "expected entries"),
        ("a.pth: 7", "a.pth must have a url and may have a sha256 or a sha256_prefix"),
        ("a.pth: {sha256: 12}", "a.pth must have a url and may have a sha256 or a sha256_prefix"),
        ("a.pth: {url: [x]}", "a.pth must have a url and may have a sha256 or a sha256_prefix"),
        (
            "a.pth: {url: 'https://a.org/b', run: x}",
            "a.pth must have a url and may have a sha256 or a sha256_prefix",
        ),
        ("a.pth: {url: 'http://a.org/b'}", "a.pth: http:// can be read and changed in transit"),
        (
            "a.pth: {url: 'https://a.org/b', sha256: 12}",
            "a.pth: a sha256 has 64 hexadecimal digits",
        ),
        (
            "a.pth: {url: 'https://a.org/b', sha256_prefix: 1234567}",
            "a.pth: a sha256_prefix has 8 hexadecimal digits",
        ),
        (
            f"a.pth: {{url: 'https://a.org/b', sha256: {'a' * 64}, sha256_prefix: {'b' * 8}}}",
            "a.pth: its sha256 does not begin with its sha256_prefix",
        ),
    ],
)
def test_malformed_tables_are_refused(text, reason, tmp_path):
    with pytest.raises(ValueError, match=re.escape(reason)):
        published(table(tmp_path, text))
