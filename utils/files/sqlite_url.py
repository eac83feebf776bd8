"""URLs of SQLite files, for packages that open databases with SQLAlchemy."""

from pathlib import Path
from urllib.parse import quote

from utils.optional_packages import import_optional


def sqlite_url(file: Path, purpose: str) -> str:
    """Return the URL with which SQLAlchemy opens a file.

    SQLAlchemy 2.1 decodes %20 and the like in a URL, and 2.0 does not. Before the options of a URL
    is a question mark.

    purpose: what needs SQLAlchemy, in the error if it is not installed. Raises ValueError if the
    installed SQLAlchemy has no URL for this path.
    """
    engine = import_optional("sqlalchemy.engine", purpose)
    path = file.absolute().as_posix()
    for written in (quote(path), path):
        url = f"sqlite:///{written}"
        if engine.make_url(url).database == path:
            return url
    raise ValueError(
        f"{path}: the installed SQLAlchemy cannot open a database under this path; choose a "
        "--project without ? and %, or install SQLAlchemy 2.1"
    )
