"""The file of --teacher: its detector, and its digest, which is a setting of the run.

A run resumes with the same teacher.

A run's setting is (path, digest). The path may differ between machines, the digest may not.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from models.detector import Detector
from models.weights.kestrel import fetch_detector, load_detector, require_checkpoint
from training.checkpoints.contents import Checkpoint
from training.settings.config import TrainConfig
from utils.files import sha256_of
from utils.printable import printable

DIGITS = 16  # of the SHA-256


@dataclass(frozen=True)
class TeacherFile:
    """The detector in the file of --teacher; None without the flag.

    checkpoint: the other entries of the file, with the class names.
    """

    path: str = ""
    detector: Detector | None = None
    checkpoint: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stride(self) -> int:
        """Image sides must be multiples of it: the detector's largest stride, or 1."""
        return max(self.detector.strides) if self.detector else 1


def read_teacher(path: str) -> TeacherFile:
    """Return the file of --teacher. path: "" without the flag.

    Raises ValueError as `load_detector` does.
    """
    if not path:
        return TeacherFile()
    with naming_the_flag():
        detector, checkpoint = load_detector(Path(path))
    return TeacherFile(path, detector, checkpoint)


def with_teacher_digest(flags: TrainConfig) -> TrainConfig:
    """Return the flags with the digest of the file that --teacher names, if it names one.

    Raises ValueError if it cannot be read as a checkpoint, or if the flags are those of a search,
    with its digest, and the file has changed.
    """
    if not flags.teacher:
        return flags
    name, *known = flags.teacher
    with naming_the_flag():
        require_checkpoint(Path(name))
    digest = _digest(Path(name))
    if known and known != [digest]:
        raise ValueError(f"--teacher {printable(name)}: has changed since the search began")
    return replace(flags, teacher=(name, digest))


def with_teacher_of_search(flags: TrainConfig) -> TrainConfig:
    """Return the flags of a new search as `with_teacher_digest`; download the teacher if asked.

    All trainings of a search learn from the same file.
    """
    if flags.teacher and flags.download:
        with naming_the_flag():
            fetch_detector(flags.teacher[0])
    return with_teacher_digest(flags)


def check_new_teacher(flags: TrainConfig) -> None:
    """Raise ValueError if --teacher cannot be used as a model; download it if asked.

    Called before time is spent on the data set.
    """
    if not flags.teacher:
        return
    file = flags.teacher[0]
    with naming_the_flag():
        if flags.download:
            fetch_detector(file)
        load_detector(Path(file))


@contextmanager
def naming_the_flag() -> Iterator[None]:
    """Put --teacher in front of the sentence of a ValueError in the block, which names the file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"--teacher {error}") from None


def with_moved_teacher(flags: TrainConfig, saved: Checkpoint) -> TrainConfig:
    """Return the flags of --resume; --teacher may name another place of the run's teacher.

    Raises ValueError if it names another teacher.
    """
    flags = with_teacher_digest(flags)
    stored = saved.description.config.get("teacher")
    own = stored if isinstance(stored, list) else []
    if flags.teacher and flags.teacher[1:] != tuple(own[1:]):
        file = printable(flags.teacher[0])
        raise ValueError(f"--teacher {file}: {_why_another(own, flags.resume)}")
    return flags


def _why_another(own: list[str], run: str) -> str:
    """Return why a file is not the teacher of a run, as text.

    own: the setting of the run, empty without a teacher. run: its checkpoint.
    """
    if not own:
        return f"the run of {run} has no teacher; leave the flag out"
    return f"its contents differ from {printable(str(own[0]))}, the teacher of the run of {run}"


def require_unchanged_teacher(cfg: TrainConfig) -> None:
    """Raise ValueError if the teacher of a resumed run is missing or has changed."""
    if not cfg.teacher:
        return
    path = cfg.teacher[0]
    problem = ""
    if not Path(path).is_file():
        problem = "is missing"
    elif _digest(Path(path)) != digest_of_teacher(cfg):
        problem = "has changed since the run began"
    if problem:
        raise ValueError(
            f"{cfg.resume}: its teacher {printable(path)} {problem}; say with --teacher where "
            "that file is now"
        )


def digest_of_teacher(cfg: TrainConfig) -> str:
    """Return the digest of the teacher, the same on all machines; "" without one."""
    return "".join(cfg.teacher[1:])


def _digest(path: Path) -> str:
    """Return the digest of a file. Raises ValueError if it cannot be read."""
    try:
        return sha256_of(path)[:DIGITS]
    except OSError as error:
        raise ValueError(f"--teacher {printable(path)}: cannot be read: {error.strerror}") from None
