"""URLs of SQLite files: SQLAlchemy opens the file, whatever its path is called."""

import types
from importlib.util import find_spec
from pathlib import Path

import pytest

from utils.files import sqlite_url as module
from utils.files.sqlite_url import sqlite_url

pytestmark = pytest.mark.skipif(not find_spec("sqlalchemy"), reason="an optional package")


@pytest.mark.parametrize("name", ["plain", "a%20b", "{x}", "me@home", "a b#é"])
def test_url_opens_the_file_of_the_path(tmp_path, name):
    from sqlalchemy import create_engine

    file = tmp_path / name / "a.db"
    file.parent.mkdir()
    engine = create_engine(sqlite_url(file, "a test"))
    with engine.connect() as connection:
        connection.exec_driver_sql("create table t (x)")
    engine.dispose()
    assert file.stat().st_size > 0


def without_decoding(url):
    """As SQLAlchemy 2.0."""
    return types.SimpleNamespace(database=url.removeprefix("sqlite:///").partition("?")[0])


def test_a_path_that_cannot_be_a_url_is_refused(monkeypatch):
    old = types.SimpleNamespace(make_url=without_decoding)
    monkeypatch.setattr(module, "import_optional", lambda *_: old)
    file = Path("/a%20b/x.db")
    assert sqlite_url(file, "a test") == "sqlite:////a%20b/x.db"
    with pytest.raises(ValueError, match=r"/a\?b/x\.db: the installed SQLAlchemy cannot open"):
        sqlite_url(Path("/a?b/x.db"), "a test")
