"""training/tune/storage.py: where a study is, and that no password is shown."""

import re
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest

from training.tune import storage as storage_module
from training.tune.__main__ import hide_storage
from training.tune.storage import Storage
from utils.terminal import FaultError

pytestmark = pytest.mark.skipif(not find_spec("optuna"), reason="an optional package")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(storage_module, "TRY_AGAIN_S", 0.0)


def test_storage_is_tried_again(tmp_path, monkeypatch):
    """Two machines may create the tables of an empty database at once."""
    storage = Storage("", tmp_path)
    answers = iter([RuntimeError("exists"), RuntimeError("exists"), "opened"])

    def answer(storages):
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(storage, "_open", answer)
    assert storage.open() == "opened"


SECRETS = ("kestrel", "p%40ss:word", "p@ss:word", "hush", "sslpassword")
URL = "postgresql://kestrel:p%40ss:word@db.example:5432/studies?sslpassword=hush"


def test_default_is_a_database_in_the_folder(tmp_path):
    storage = Storage("", tmp_path)
    assert storage.shown == f"sqlite:///{tmp_path}/study.db"
    storage.open()
    assert (tmp_path / "study.db").exists()


@pytest.mark.parametrize("name", ["a?b", "a%20b", "{x}", "me@home", "a b#é"])
def test_default_database_is_in_a_folder_of_any_name(tmp_path, name):
    from sqlalchemy.engine import make_url

    folder = tmp_path / name
    folder.mkdir()
    (tmp_path / "a b").mkdir()  # what a%20b must not become
    if "?" in name and make_url("sqlite:///a%3Fb").database != "a?b":  # SQLAlchemy 2.0
        with pytest.raises(ValueError, match="the installed SQLAlchemy cannot open a database"):
            Storage("", folder)
        return
    Storage("", folder).open()
    assert list(tmp_path.glob("**/*.db")) == [folder / "study.db"]


def test_path_is_a_journal_file(tmp_path):
    from optuna.storages import JournalStorage

    storage = Storage(str(tmp_path / "study.log"), tmp_path)
    assert storage.shown == str(tmp_path / "study.log")
    assert isinstance(storage.open(), JournalStorage)
    assert (tmp_path / "study.log").exists()


def test_path_of_a_database_is_refused(tmp_path):
    sentence = "--storage a.db: for an SQLite file give sqlite:///a.db; other names are journal"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        Storage("a.db", tmp_path)


def test_password_is_never_shown(tmp_path):
    from optuna.exceptions import StorageInternalError

    storage = Storage(URL, tmp_path)
    assert storage.shown == "postgresql://db.example:5432/studies"
    said = storage.without_secrets(RuntimeError(f"cannot parse {URL!r}: p@ss:word is wrong, hush"))
    with pytest.raises(ValueError, match=r"^--storage postgresql://db\.example") as no:
        storage.open()  # there is no driver, or no such host
    with pytest.raises(FaultError) as fault, storage.errors_in_a_sentence():
        raise StorageInternalError(f"no answer from {URL}")
    for error in (no.value, fault.value):
        assert error.__cause__ is None
        assert error.__suppress_context__
        said += str(error)
    for secret in SECRETS:
        assert secret not in said


@pytest.mark.parametrize(
    "url",
    ["nothing://user:secret@host/x", "sqlite:////proc/no/folder/x.db", "postgresql://:secret@"],
)
def test_storage_that_cannot_be_opened_is_reported(tmp_path, url):
    with pytest.raises(ValueError, match=r"^--storage \w+://") as error:
        Storage(url, tmp_path).open()
    assert "secret" not in str(error.value)


WHOLE = b'{"op_code":0,"worker_id":"a","study_name":"exp","directions":[2]}\n'
DAMAGED = {
    "a garbage line": (WHOLE + b"garbage\n" + WHOLE, "a line of the journal is damaged ("),
    "other entries": (WHOLE + b"{}\n", "a line of the journal is damaged ('op_code')"),
    "no text": (b"\xff\xfe\n" + WHOLE, "a line of the journal is damaged ("),
    # Optuna would append to it, and could not read the file any more
    "a line that was cut off": (WHOLE + WHOLE[:-9], "its last line was cut off; remove this line"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_journal_is_reported(tmp_path, what):
    content, problem = DAMAGED[what]
    file = tmp_path / "study.log"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(f'--storage {file}: {problem}')}"):
        Storage(str(file), tmp_path).open()
    assert file.read_bytes() == content


def test_journal_that_is_damaged_later_is_a_fault(tmp_path):
    file = tmp_path / "study.log"
    storage = Storage(str(file), tmp_path)
    opened = storage.open()
    file.write_bytes(b"garbage\n" + WHOLE)
    sentence = f"^{re.escape(f'--storage {file}: a line of the journal is damaged (')}"
    with pytest.raises(FaultError, match=sentence), storage.errors_in_a_sentence():
        opened.get_all_studies()
    with pytest.raises(ValueError, match="other flags"), storage.errors_in_a_sentence():
        raise ValueError("other flags")


def test_server_that_does_not_answer_is_reported(tmp_path):
    grpc = pytest.importorskip("grpc", reason="a part of Optuna's optional requirements")
    storage = Storage("grpc://127.0.0.1:1", tmp_path)
    with pytest.raises(ValueError, match=r"^--storage grpc://127\.0\.0\.1:1: failed to connect"):
        storage.open()
    with pytest.raises(ValueError, match=r"^--storage grpc://host:x: the port is x, expected a n"):
        Storage("grpc://host:x", tmp_path).open()
    with pytest.raises(FaultError, match="no answer"), storage.errors_in_a_sentence():
        raise grpc.RpcError("no answer")


def test_redis_that_fails_later_is_a_fault(tmp_path, monkeypatch):
    class RedisError(Exception):
        pass

    package = ModuleType("redis")
    package.exceptions = ModuleType("redis.exceptions")
    package.exceptions.RedisError = RedisError
    monkeypatch.setitem(sys.modules, "redis", package)
    monkeypatch.setitem(sys.modules, "redis.exceptions", package.exceptions)
    storage = Storage("redis://user:secret@host/0", tmp_path)
    with (
        pytest.raises(FaultError, match=r"^--storage redis://host/0: \*\*\* is wrong$"),
        storage.errors_in_a_sentence(),
    ):
        raise RedisError("secret is wrong")


def test_other_errors_pass(tmp_path):
    with pytest.raises(KeyError), Storage("", tmp_path).errors_in_a_sentence():
        raise KeyError("a bug")


@pytest.mark.parametrize("words", [["--storage", "{url}"], ["--storage={url}"]])
def test_password_is_not_in_the_command_that_loggers_record(monkeypatch, words):
    url = "postgresql://kestrel:secret@db/studies"
    monkeypatch.setattr("sys.argv", ["tune", *(word.format(url=url) for word in words)])
    hide_storage(url)
    assert "secret" not in " ".join(sys.argv)
    before = list(sys.argv)
    hide_storage("")
    assert sys.argv == before
