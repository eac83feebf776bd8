"""Where a study is stored: an SQLite file in its folder, or any of Optuna's storages.

Users and passwords in a URL are never shown.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from utils.files.sqlite_url import sqlite_url
from utils.optional_packages import import_optional
from utils.printable import one_line, printable
from utils.terminal import FaultError

PURPOSE = "training.tune"
TRY_AGAIN_S = 1.0
SQLITE_WAIT_S = 60  # for another process that is writing
REDIS = ("redis", "rediss", "redis+unix")
# A journal is lines of JSON. What Optuna raises if a line is none, or has other entries.
NO_JSON = (json.JSONDecodeError, UnicodeDecodeError)
OTHER_ENTRIES = (LookupError, TypeError, AttributeError, AssertionError)
DATABASE_FILES = (".db", ".sqlite", ".sqlite3")


class Storage:
    """The value of --storage: a URL, or the path of a journal file.

    "" stands for an SQLite file in the folder of the study. Raises ValueError for a value that
    cannot be one.
    """

    def __init__(self, given: str, folder: Path) -> None:
        if not given:
            given = sqlite_url(folder / "study.db", PURPOSE)
            # Optuna fills in its version for {SCHEMA_VERSION}.
            given = given.replace("{", "{{").replace("}", "}}")
        self.url = given
        self.scheme, separator, self.rest = given.partition("://")
        if not separator:
            self.scheme = "journal"
            self.rest = given
            if given.endswith(DATABASE_FILES):
                raise ValueError(
                    f"--storage {printable(given)}: for an SQLite file give sqlite:///{given}; "
                    "other names are journal files"
                )

    @property
    def has_journal(self) -> bool:
        """Return whether the storage is a list of what was done."""
        return self.scheme == "journal" or self.scheme in REDIS

    @property
    def shown(self) -> str:
        """The storage without user, password and options, which may be secret."""
        if self.scheme == "journal":
            return printable(self.rest)
        place = self.rest.rpartition("@")[2].partition("?")[0]
        return printable(f"{self.scheme}://{place}")

    def open(self, tries: int = 3) -> Any:
        """Return Optuna's storage. Raises ValueError if it cannot be opened.

        It tries again after a second: in an empty database of a server, processes of two machines
        may be creating the same tables, and then one of them fails.
        """
        storages = import_optional("optuna.storages", PURPOSE)
        try:
            return self._open(storages)
        except Exception as error:  # of any database driver
            if tries == 1 or isinstance(error, ImportError):
                sentence = f"--storage {self.shown}: {self.without_secrets(error)}"
                raise ValueError(sentence) from None
        time.sleep(TRY_AGAIN_S)
        return self.open(tries - 1)

    def _open(self, storages: Any) -> Any:
        if self.scheme == "journal":
            journal = import_optional("optuna.storages.journal", PURPOSE)
            backend = journal.JournalFileBackend(self.rest)
            require_whole_lines(self.rest)
            return storages.JournalStorage(backend)
        if self.scheme in REDIS:
            journal = import_optional("optuna.storages.journal", PURPOSE)
            return storages.JournalStorage(journal.JournalRedisBackend(self.url))
        if self.scheme == "grpc":
            host, _, port = self.rest.partition(":")
            if not port.isdecimal() and port:
                raise ValueError(f"the port is {port}, expected a number")
            proxy = storages.GrpcStorageProxy(host=host, port=int(port or 13000))
            proxy.get_all_studies()  # whether the server answers
            return proxy

        options: dict[str, Any] = {}
        if self.scheme == "sqlite":
            options = {"connect_args": {"timeout": SQLITE_WAIT_S}}
        return storages.RDBStorage(self.url, engine_kwargs=options)

    @contextmanager
    def errors_in_a_sentence(self) -> Iterator[None]:
        """Raise FaultError in place of an error of the storage in the block.

        It does not contain the original one, in which there may be a password.
        """
        try:
            yield
        except self._kinds_of_errors() as error:
            raise FaultError(f"--storage {self.shown}: {self.without_secrets(error)}") from None

    @contextmanager
    def readable_entries(self) -> Iterator[None]:
        """Raise FaultError if an entry of the storage, read in the block, is not one of a search.

        The block does nothing else: any error of a value in it is one of an entry.
        """
        with self.errors_in_a_sentence():
            try:
                yield
            except (ValueError, *OTHER_ENTRIES) as error:
                cause = self.without_secrets(error)
                raise FaultError(f"--storage {self.shown}: an entry is damaged ({cause})") from None

    def _kinds_of_errors(self) -> tuple[type[Exception], ...]:
        """Return what a storage that fails may raise. Other exceptions are bugs."""
        exceptions = import_optional("optuna.exceptions", PURPOSE)
        kinds: list[type[Exception]] = [exceptions.StorageInternalError, OSError]
        if self.scheme == "grpc":
            return (*kinds, import_optional("grpc", PURPOSE).RpcError)
        if self.scheme in REDIS:
            kinds.append(import_optional("redis.exceptions", PURPOSE).RedisError)
        if self.has_journal:
            return (*kinds, *NO_JSON)
        return (*kinds, import_optional("sqlalchemy.exc", PURPOSE).SQLAlchemyError)

    def without_secrets(self, error: BaseException) -> str:
        """Return the text of an error without the user and password of the URL."""
        text = one_line(error, 2000)
        if details := getattr(error, "details", None):  # of gRPC, whose text is a page
            text = one_line(str(details()), 2000)
        if self.has_journal and isinstance(error, (*NO_JSON, *OTHER_ENTRIES)):
            text = f"a line of the journal is damaged ({text})"
        if error.__cause__ is not None:
            text += f" ({one_line(error.__cause__, 2000)})"
        if self.scheme == "journal":
            return one_line(text)
        login, at, _ = self.rest.rpartition("@")
        _, _, options = self.rest.partition("?")
        secrets = [self.url, self.rest, options]
        if at:
            secrets += [login, login.partition(":")[2]]
        secrets += [entry.partition("=")[2] for entry in options.split("&")]
        for secret in [*secrets, *map(unquote, secrets)]:
            if secret:
                text = text.replace(secret, "***")
        return one_line(text)


def require_whole_lines(file: str) -> None:
    """Raise ValueError if the last line of a journal was cut off.

    A process was killed while it wrote, or the disk was full. Optuna would append to this line, so
    that no process could read the journal any more.
    """
    with open(file, "rb") as stream:
        if stream.seek(0, os.SEEK_END) == 0:
            return
        stream.seek(-1, os.SEEK_END)
        if stream.read() != b"\n":
            raise ValueError("its last line was cut off; remove this line from the file")
