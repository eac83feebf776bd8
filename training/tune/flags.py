"""The flags of training.tune that are not those of train.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from training.settings.config import require
from training.tune.space import Parameter, read_space
from utils.flags import FlagParser

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

    require(values.space is not None, "--space: give a YAML file; docs/tuning.md describes it")
    require(values.trials >= 1, f"--trials {values.trials}: choose 1 training or more")
    known = values.pruner in PRUNERS
    require(known, f"--pruner {values.pruner}: choose one of {', '.join(PRUNERS)}")
    space = read_space(Path(values.space))
    return TuneFlags(space, values.trials, values.pruner, values.storage, values.study), rest
