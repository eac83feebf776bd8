"""Where a study is stored: an SQLite file in its folder, or any of Optuna's storages.

Users and passwords in a URL are never shown.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from utils.optional_packages import import_optional
from utils.printable import one_line, printable
from utils.terminal import FaultError

PURPOSE = "training.tune"
TRY_AGAIN_S = 1.0
SQLITE_WAIT_S = 60  # for another process that is writing
DATABASE_FILES = (".db", ".sqlite", ".sqlite3")


class Storage:
    """The value of --storage: a URL, or the path of a journal file.

    "" stands for an SQLite file in the folder of the study. Raises ValueError for a value that
    cannot be one.
    """

    def __init__(self, given: str, folder: Path) -> None:
        if not given:
            given = f"sqlite:///{(folder / 'study.db').absolute().as_posix()}"
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
            return storages.JournalStorage(backend)
        if self.scheme in ("redis", "rediss", "redis+unix"):
            journal = import_optional("optuna.storages.journal", PURPOSE)
            return storages.JournalStorage(journal.JournalRedisBackend(self.url))
        if self.scheme == "grpc":
            host, _, port = self.rest.partition(":")
            return storages.GrpcStorageProxy(host=host, port=int(port or 13000))

        options: dict[str, Any] = {}
        if self.scheme == "sqlite":
            options = {"connect_args": {"timeout": SQLITE_WAIT_S}}
        return storages.RDBStorage(self.url, engine_kwargs=options)

    @contextmanager
    def errors_in_a_sentence(self) -> Iterator[None]:
        """Raise FaultError in place of an error of the storage in the block.

        It does not contain the original one, in which there may be a password.
        """
        exceptions = import_optional("optuna.exceptions", PURPOSE)
        alchemy = import_optional("sqlalchemy.exc", PURPOSE)
        kinds = (exceptions.StorageInternalError, alchemy.SQLAlchemyError, OSError)
        try:
            yield
        except kinds as error:
            raise FaultError(f"--storage {self.shown}: {self.without_secrets(error)}") from None

    def without_secrets(self, error: BaseException) -> str:
        """Return the text of an error without the user and password of the URL."""
        text = one_line(error, 2000)
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
