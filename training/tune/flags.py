"""The flags of training.tune that are not those of train.py."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from training.settings.config import require
from training.tune.space import Parameter, read_space
from utils.flags import FlagParser
from utils.terminal import INDENT

STARTER = Path(__file__).with_name("space.yaml")  # to be copied
PRUNERS = ("median", "hyperband", "none")


@dataclass(frozen=True)
class TuneFlags:
    """What is searched, how, and where the study is. storage, study: "" for the default."""

    space: tuple[Parameter, ...]
    trials: int
    pruner: str
    storage: str
    study: str


def read_tune_flags(
    description: str | None, arguments: Sequence[str] | None
) -> tuple[TuneFlags, list[str]]:
    """Return the flags, and the words of the command line that are left.

    description: for the help. Raises ValueError for invalid values, and as `read_space`.
    """
    parser = FlagParser(description)
    add = parser.add_argument
    add("--space", help="YAML file with the range, or the choices, of each parameter")
    add("--trials", type=int, default=50, help="trainings in all, over all processes")
    add("--pruner", default="median", help="what ends bad trials early: median, hyperband or none")
    add(
        "--storage",
        default="",
        help="where the study is: a URL such as postgresql://HOST/DATABASE, or the path of a "
        "journal file (default: study.db in its folder)",
    )
    add("--study", default="", help="name of the study in the storage (default: that of --name)")
    values, rest = parser.read_known(arguments)

    require_space_file(values.space)
    require(values.trials >= 1, f"--trials {values.trials}: choose 1 training or more")
    known = values.pruner in PRUNERS
    require(known, f"--pruner {values.pruner}: choose one of {', '.join(PRUNERS)}")
    space = read_space(Path(values.space))
    return TuneFlags(space, values.trials, values.pruner, values.storage, values.study), rest


def require_space_file(given: str | None) -> None:
    """Raise ValueError, with the command that copies a file to begin with, if there is no --space.

    given: of the flag; None without it.
    """
    problem = ""
    if given is None:
        problem = "--space: give a YAML file of what is searched"
    elif not os.path.exists(given):
        problem = f"--space {given}: there is no such file"
    if problem:
        copy = shlex.join(["cp", os.path.relpath(STARTER), given or "space.yaml"])
        raise ValueError(
            f"{problem}. docs/tuning.md describes it; begin with a copy of ours, and change it:"
            f"\n{INDENT}{copy}"
        )
