"""What a scan of a data set found: counts, and every problem with its file and line."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

LISTED_PROBLEMS = 1000  # more are counted, not listed: a wrong export can have one per box
ROW_DROPPED = "row dropped"
ROW_CLIPPED = "row clipped to the image"
ROW_DUPLICATE = "duplicate row dropped"
POLYGON_DROPPED = "polygon dropped, box kept"
IMAGE_DROPPED = "image left out"
IMAGES_NOT_FOUND = "COCO JSON whose images were not found"
NOTE = "note"


class Problem(NamedTuple):
    """One thing that was not as it should be: its kind (a constant above), where it is, and what is wrong."""

    kind: str
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(frozen=True)
class Report:
    """The counts and problems of one scan; `as_dict()` is what `data_report.json` holds.

    `instances` leaves crowd regions out. `problems` holds the first 1000, `problem_counts` counts all of them by kind.
    """

    images: int
    background: int
    without_label_file: int
    instances: int
    crowd: int
    polygons: int
    instances_per_class: tuple[tuple[str, int], ...]
    unreadable: tuple[str, ...]
    problem_counts: tuple[tuple[str, int], ...]
    problems: tuple[Problem, ...]
    cache: str = "no cache"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; `from_dict` reads them back."""
        result = asdict(self)
        result["instances_per_class"] = dict(self.instances_per_class)
        result["problem_counts"] = dict(self.problem_counts)
        result["problems"] = [problem._asdict() for problem in self.problems]
        result["unreadable"] = list(self.unreadable)
        result["not_listed"] = sum(count for _, count in self.problem_counts) - len(self.problems)
        return result

    def summary(self) -> str:
        """One line for the log."""
        used = sum(count > 0 for _, count in self.instances_per_class)
        line = (
            f"{self.images:,} images ({self.background:,} background), "
            f"{self.instances:,} boxes in {used:,} of {len(self.instances_per_class):,} classes"
        )
        if self.crowd:
            line += f", {self.crowd:,} crowd regions"
        if self.problem_counts:
            line += "; " + ", ".join(f"{kind}: {count:,}" for kind, count in self.problem_counts)
        return f"{line} [{self.cache}]"

    def with_cache(self, state: str) -> "Report":
        """The same report, saying where it comes from."""
        return replace(self, cache=state)


def report_from_dict(values: dict[str, Any]) -> Report:
    """The Report that `as_dict` made `values` from. Raises KeyError, TypeError or ValueError if they are incomplete."""
    fields = {name: value for name, value in values.items() if name != "not_listed"}
    fields["instances_per_class"] = tuple(values["instances_per_class"].items())
    fields["problem_counts"] = tuple(values["problem_counts"].items())
    fields["problems"] = tuple(Problem(**problem) for problem in values["problems"])
    fields["unreadable"] = tuple(values["unreadable"])
    return Report(**fields)


@dataclass
class ProblemLog:
    """The first problems, and how many there are of each kind: a wrong export has millions, which would fill memory."""

    first: list[Problem] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def extend(self, problems: Iterable[Problem]) -> None:
        """Count more problems, and keep them while there is room."""
        for problem in problems:
            self.counts[problem.kind] += 1
            if len(self.first) < LISTED_PROBLEMS:
                self.first.append(problem)
