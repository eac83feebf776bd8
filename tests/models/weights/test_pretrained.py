"""Published weights: the table, what a missing file answers, and fetching from a local server."""

import hashlib
import re
from pathlib import Path

import pytest

from models.table import model_names
from models.weights.kestrel import load_detector
from models.weights.pretrained import fetch_weights, published, where_published
from tests.support.scripted_server import file_answer
from utils.terminal import FaultError

CONTENT = b"weights" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def table(folder: Path, text: str) -> Path:
    (folder / "table.yaml").write_text(text)
    return folder / "table.yaml"


def test_every_published_file_is_of_a_model_with_that_name():
    for name, source in published().items():
        assert Path(name).stem in model_names()
        assert source.url.startswith("https://github.com/Megvii-BaseDetection/YOLOX/releases/")
        assert source.url.endswith(f"/{name}")


def test_missing_weights_answer_where_their_authors_publish_them(tmp_path):
    with pytest.raises(ValueError) as error:
        load_detector(tmp_path / "yolox_s.pth")
    url = published()["yolox_s.pth"].url
    assert str(error.value) == (
        f"{tmp_path}/yolox_s.pth: cannot be read as a checkpoint: No such file. Its authors "
        f"publish it at {url}: "
        "download it, and give its path to --weights"
    )
    assert where_published(tmp_path / "yolox_q.pth") == ""
    for name in ("yolox_s", "yolox_s.pt", "YOLOX_S.pth"):
        answer = (
            f"Its authors publish yolox_s.pth at {url}: download it, and give its path to --weights"
        )
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
        ("a.pth: 7", "a.pth must have a url and may have a sha256"),
        ("a.pth: {sha256: 12}", "a.pth must have a url and may have a sha256"),
        ("a.pth: {url: [x]}", "a.pth must have a url and may have a sha256"),
        ("a.pth: {url: 'https://a.org/b', run: x}", "a.pth must have a url and may have a sha256"),
        ("a.pth: {url: 'http://a.org/b'}", "a.pth: http:// can be read and changed in transit"),
        (
            "a.pth: {url: 'https://a.org/b', sha256: 12}",
            "a.pth: a sha256 has 64 hexadecimal digits",
        ),
    ],
)
def test_malformed_tables_are_refused(text, reason, tmp_path):
    with pytest.raises(ValueError, match=re.escape(reason)):
        published(table(tmp_path, text))
