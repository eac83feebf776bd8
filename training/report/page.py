"""Write report.html."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from training.report.facts import Rows
from utils import __version__
from utils.files.writers import write_text
from utils.log import Say
from utils.printable import one_line
from utils.report import build_page

REPORT = "report.html"  # in the run folder
State = Literal["running", "finished", "interrupted", "failed"]
Figure = tuple[str, str, str]  # label, value, meaning
SettingRow = tuple[str, str, bool]  # name, value, whether it differs from the default


@dataclass(frozen=True)
class ReportPage:
    """The values of a report.

    script: that writes it, train.py or val.py. status: as text. figures: shown beside the metrics.
    facts: lists with their titles. settings, hyp: all of them. unit: what a training sample is.
    epochs: columns of results.csv. advice: sentences on their curves.
    evaluation: as `result_values` returns it, None if there is none yet.
    """

    script: str
    state: State
    status: str
    figures: Sequence[Figure]
    facts: Sequence[tuple[str, Rows]]
    settings: Sequence[SettingRow]
    hyp: Sequence[SettingRow] = ()
    unit: str = "image"
    epochs: dict[str, list[float]] = field(default_factory=dict)
    advice: Sequence[str] = ()
    evaluation: dict[str, Any] | None = None

    def write(self, folder: Path) -> None:
        """Write the report into a run folder; a reader sees the old one or this one."""
        values = {
            "title": folder.name,
            "folder": str(folder),
            "script": self.script,
            "status": {"state": self.state, "text": self.status},
            "version": __version__,
            "written": time.strftime("%Y-%m-%d %H:%M:%S"),
            "figures": self.figures,
            "facts": [entry for entry in self.facts if entry[1]],
            "settings": self.settings,
            "hyp": self.hyp,
            "unit": self.unit,
            "epochs": self.epochs,
            "advice": self.advice,
            "evaluation": self.evaluation,
        }
        page = build_page("report", f"{folder.name}: Kestrel's report", values)
        write_text(folder / REPORT, page)


@contextmanager
def report_or_say(say: Say) -> Iterator[None]:
    """Say why a report could not be made in the block: a run does not end for want of one."""
    try:
        yield
    except Exception as error:
        reason = one_line(error) or type(error).__name__
        say(f"{REPORT} is not complete ({reason}): the run goes on without it")
