"""What the checks return: findings with examples, tables, suggestions, and all of them together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from utils.printable import counted

FORMAT = 1  # of the JSON file; increase it when an entry changes its meaning
# Levels of findings, the most serious first. --strict refuses the first two.
ERROR = "error"  # the training learns something wrong, or its metrics are wrong
WARNING = "warning"  # often a mistake: look at it
NOTE = "note"  # good to know
LEVELS = (ERROR, WARNING, NOTE)

# What a box in a picture is.
LABEL = "label"
DETECTION = "detection"

Box = tuple[float, float, float, float]  # left, top, width, height in pixels of the upright image


class Mark(NamedTuple):
    """A box in a picture."""

    box_xywh: Box
    kind: str  # LABEL or DETECTION


class Picture(NamedTuple):
    """An image that a finding shows, and the boxes in it."""

    path: str
    marks: tuple[Mark, ...] = ()


class Example(NamedTuple):
    """One place of a finding."""

    where: str  # file, and line if there is one, ready to print
    what: str  # what is there, ready to print
    path: str = ""  # of the image, "" if it is none
    box_xywh: Box | None = None
    score: float | None = None  # how sure it is, in [0, 1]
    pictures: tuple[Picture, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values: dict[str, Any] = {"where": self.where, "what": self.what}
        if self.path:
            values["image"] = self.path
        if self.box_xywh is not None:
            values["box_xywh"] = [round(value, 2) for value in self.box_xywh]
        if self.score is not None:
            values["score"] = round(self.score, 4)
        return values


@dataclass(frozen=True)
class Finding:
    """One kind of fault.

    check: its name, which stays the same between versions. count: of all places. examples: the
    first of them, or the surest.
    """

    check: str
    level: str
    noun: str  # what was counted, such as "image"
    title: str  # what is wrong with it, after the noun
    count: int
    advice: str  # what to do
    examples: tuple[Example, ...] = ()

    @property
    def heading(self) -> str:
        """What was found, with the number."""
        return f"{counted(self.count, self.noun)} {self.title}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "check": self.check,
            "level": self.level,
            "title": self.heading,
            "count": self.count,
            "advice": self.advice,
            "examples": [example.as_dict() for example in self.examples],
        }


class Table(NamedTuple):
    """Numbers in rows; the first column is text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


class Suggestion(NamedTuple):
    """A flag of train.py, its value, and why."""

    flag: str
    value: str  # "" to leave the flag out
    reason: str


@dataclass
class Diagnosis:
    """All that was found in a data set."""

    data: str
    splits: dict[str, int]  # the number of images of each
    image_size: int
    tables: list[Table] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    suggestions: list[Suggestion] = field(default_factory=list)
    weights: str = ""  # of the model whose detections were compared, "" for none
    # the images in the order in which to look at them, each with the score of its surest fault
    ranked_images: list[tuple[str, float]] = field(default_factory=list)
    folder: str = ""  # that all images are in, ready to print: texts leave it out

    def short(self, text: str) -> str:
        """Return a text without the folder that all images are in."""
        return text.replace(f"{self.folder}/", "") if len(self.folder) > 1 else text

    def by_level(self) -> list[Finding]:
        """Return the findings, the most serious first."""
        return sorted(self.findings, key=lambda finding: LEVELS.index(finding.level))

    def faults(self) -> list[Finding]:
        """Return the findings that --strict refuses."""
        return [finding for finding in self.by_level() if finding.level != NOTE]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "format": FORMAT,
            "data": self.data,
            "folder": self.folder,
            "weights": self.weights or None,
            "splits": self.splits,
            "image_size": self.image_size,
            "findings": [finding.as_dict() for finding in self.by_level()],
            "suggestions": [suggestion._asdict() for suggestion in self.suggestions],
            "ranked_images": [
                {"image": path, "score": round(score, 4)} for path, score in self.ranked_images
            ],
            "tables": [table._asdict() for table in self.tables],
        }


def share(part: float, whole: float) -> str:
    """Return a share in percent, with a digit where it is small.

    >>> share(1, 3), share(1, 300), share(0, 0)
    ('33%', '0.3%', '0%')
    """
    percent = 100 * part / whole if whole else 0.0
    digits = 1 if 0 < percent < 10 else 0
    return f"{percent:.{digits}f}%"


def first_names(names: Sequence[str], most: int = 5) -> str:
    """Return the first names of a list, and how many there are more.

    >>> first_names(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = len(names) - most
    shown = ", ".join(names[:most])
    return f"{shown} and {more:,} more" if more > 0 else shown
