"""What a logger is, and what it receives: a run, and its records."""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from utils.files.writers import write_json
from utils.printable import one_line

STEPS = "steps"
EPOCH = "epoch"
PICTURE = "picture"
EVALUATION = "evaluation"


@dataclass(frozen=True)
class ClassResult:
    """One class of an evaluation: COCO's numbers, and its curves at confidences from 0 to 1."""

    class_id: int
    name: str
    instances: int
    values: dict[str, float]  # AP, AP50 ...
    confidence: Sequence[float]  # [S]
    precision: Sequence[float]  # [S], at IoU 0.5
    recall: Sequence[float]  # [S]


@dataclass(frozen=True)
class Record:
    """One thing to log.

    Args:
        number: of the record in its run, from 0.
        kind: STEPS (losses within an epoch), EPOCH (a row of results.csv), PICTURE (a file) or
            EVALUATION (of the final weights).
        time: when it was recorded, in seconds since 1970.
        step: trained batches of the run so far.
        epoch: for STEPS the epoch that trains, counted from 1; else trained epochs.
        values: finite numbers by name, such as `train/box_loss`.
        file: of a PICTURE, inside the run folder.
        digest: of its content.
        classes: of an EVALUATION, those with ground truth.
    """

    number: int
    kind: str
    time: float
    step: int
    epoch: int
    values: dict[str, float] = field(default_factory=dict)
    file: str = ""
    digest: str = ""
    classes: Sequence[ClassResult] = ()


@dataclass(frozen=True)
class LoggedRun:
    """The run that a logger receives records of.

    Args:
        folder: of the run.
        config: the flags, whose texts are valid UTF-8.
        hyp: the hyper-parameters.
        account: whose run it is, for loggers that have accounts (`--entity`); "" for the default.
        resumed: whether it goes on with what an earlier process has logged. A new run may stand in
            the folder of an earlier one.
        restarts: of a resumed run: the logger must begin anew, because it may hold records that
            the run has taken back. An older checkpoint was resumed, or there was none yet.
        recorded: how many records there were before this process; they are sent again.
        notes: the file in which `keep` stores values.
        say: shows a sentence to the user.
    """

    folder: Path
    config: dict[str, Any]
    hyp: dict[str, float]
    account: str
    resumed: bool
    restarts: bool
    recorded: int
    notes: Path
    say: Callable[[str], None]

    @property
    def name(self) -> str:
        """The name of the run folder, valid UTF-8."""
        return str(encodable(self.folder.name))

    def picture(self, record: Record) -> Path | None:
        """Return the path of a PICTURE; None for other records, or if the file was removed.

        The records of a run folder may come from somebody else: no other file is ever sent.
        """
        path = self.folder / record.file
        is_inside = record.kind == PICTURE and path.name == record.file
        return path if is_inside and path.is_file() and not path.is_symlink() else None

    def settings(self) -> dict[str, bool | int | float | str]:
        """Return flags, but --resume, and hyper-parameters by name; lists as text."""
        found: dict[str, bool | int | float | str] = {}
        for name, value in {**self.config, **self.hyp}.items():
            if name == "resume":
                continue
            if isinstance(value, (list, tuple)):
                found[name] = " ".join(map(str, value))
            elif isinstance(value, (bool, int, float)):
                found[name] = value
            else:
                found[name] = str(value)
        return found

    def keep(self, **values: str) -> None:
        """Store texts, such as the id of the logger's run, for `kept` after a resume."""
        write_json(self.notes, values)

    def kept(self) -> dict[str, str]:
        """Return what `keep` has stored; empty if there is nothing."""
        with suppress(OSError, ValueError):
            stored = json.loads(self.notes.read_text(encoding="utf-8"))
            if isinstance(stored, dict):
                return {str(name): str(value) for name, value in stored.items()}
        return {}


def encodable(value: Any) -> Any:
    r"""Return a text, or a list of texts, as valid UTF-8; any other value as it is.

    Paths may have bytes that are no UTF-8, which are escaped. Loggers cannot write them.

    >>> encodable(["\udcff.yaml", 1])
    ['\\udcff.yaml', 1]
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, (list, tuple)):
        return [encodable(entry) for entry in value]
    return value


def without_login(text: str) -> str:
    """Return a text on one line, its URLs without user and password.

    >>> without_login("no answer of https://me:secret@host:80/path")
    'no answer of https://host:80/path'
    """
    return one_line(re.sub(r"//[^/\s]*@", "//", text))


class Logger:
    """Base of all loggers. Its methods are called in a thread of its own, except for `prepare`.

    A logger may raise any exception or block: it is then left out, with one warning, and the
    training goes on.
    """

    title: ClassVar[str]  # in messages
    help: ClassVar[str]  # of its flag

    def prepare(self) -> str:
        """Import what the logger needs, before the slow parts of a run.

        Returns a sentence for the user, or "". Raises ValueError if a package is missing.
        """
        return ""

    def destination(self, account: str) -> str:
        """Return where the logger sends a run over the network; "" if it sends nothing.

        account: of `LoggedRun`. Call it after `prepare`.
        """
        return ""

    def start(self, run: LoggedRun) -> int:
        """Open the run, or continue it; return how many of its records the logger has already.

        Records are numbered, and these are not sent again.
        """
        raise NotImplementedError

    def log(self, records: Sequence[Record]) -> None:
        """Write records, in order, so that they are kept if the process is killed afterwards."""
        raise NotImplementedError

    def finish(self, status: str) -> None:
        """Close the run, which is FINISHED, INTERRUPTED (it may be resumed) or FAILED."""

    def restore(self) -> None:
        """Restore what the logger has changed in the process, for a next run in it.

        Called last, in the thread of the training, also if the logger has failed or hangs.
        """
