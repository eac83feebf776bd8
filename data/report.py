"""The report of a data set scan: counts, and every problem with its file and line."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from data.labels import Labels
from utils.printable import counted, excerpt, plural

LISTED_PROBLEMS = 1000  # further ones are only counted: a faulty export can have one per box
ROW_DROPPED = "row dropped"
ROW_WITHOUT_IMAGE = "row of an image that its file does not list"
ROW_CLIPPED = "row clipped to the image"
ROW_DUPLICATE = "duplicate row dropped"
POLYGON_DROPPED = "polygon dropped, box kept"
IMAGE_DROPPED = "image left out"
IMAGE_DAMAGED = "damaged image kept"
NO_USABLE_ROW = "image without a usable label row left out"
IMAGES_NOT_FOUND = "label file whose images were not found"
NOTE = "note"
# the results of other runs, which lie inside a folder of the data
RUN_FOLDERS = "run folders left out"
REPEATED_LINES = "repeated lines of a list"
LABELS_RESIZED = "image with labels of another size, scaled"
LABELS_TURNED = "image with labels from before it was turned, turned"
VALUES_LEFT_OUT = "values after the box left out"
OTHER_LABELS = "image without a label file, but with one of another format"
UNMATCHED_LABELS = "label files without an image"
MOST_OF_ALL = 0.98  # the share of all boxes from which on one class has nearly all
FEW_BOXES = 100  # with so few boxes, one class may well have all


class Problem(NamedTuple):
    """One problem in the data."""

    kind: str  # one of the constants above
    where: str  # file and line
    reason: str  # what is wrong

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(frozen=True)
class Report:
    """The counts and problems of one scan; `as_dict()` returns the contents of `data_report.json`.

    Images that were left out are in the lists only, not in the counts.
    """

    images: int
    background: int  # images without rows
    without_label_file: int
    instances: int  # without crowd regions
    crowd: int
    polygons: int
    instances_per_class: tuple[tuple[str, int], ...]
    unreadable: tuple[str, ...]  # images that cannot be used, or whose label file cannot be read
    # images that have label rows, but none that can be used: they would count as background
    no_usable_row: tuple[str, ...]
    problem_counts: tuple[tuple[str, int], ...]  # of all, by kind
    problems: tuple[Problem, ...]  # the first LISTED_PROBLEMS
    cache: str = "no cache"
    sentences: tuple[str, ...] = ()  # sentences that say which results of runs were left out
    # sentences about what is wrong with label files as a whole
    label_warnings: tuple[str, ...] = ()
    # sentences about all labels of a source, which are stored with the scan
    source_warnings: tuple[str, ...] = ()
    source_notes: tuple[str, ...] = ()  # likewise, of what may be on purpose
    no_objects: str = ""  # why there is nothing to learn from, for which a training is refused
    long_rows: str = ""  # what rows of YOLO with more values than a box are
    # the number of boxes that were something else, by its name, such as "polygon"
    converted: tuple[tuple[str, int], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; `report_from_dict` reads them back."""
        result = asdict(self)
        result["instances_per_class"] = dict(self.instances_per_class)
        result["problem_counts"] = dict(self.problem_counts)
        result["problems"] = [problem._asdict() for problem in self.problems]
        result["unreadable"] = list(self.unreadable)
        result["no_usable_row"] = list(self.no_usable_row)
        result["sentences"] = list(self.sentences)
        result["label_warnings"] = list(self.label_warnings)
        result["source_warnings"] = list(self.source_warnings)
        result["source_notes"] = list(self.source_notes)
        result["converted"] = dict(self.converted)

        all_problems = sum(count for _, count in self.problem_counts)
        result["not_listed"] = all_problems - len(self.problems)
        return result

    def summary(self) -> str:
        """Return one line for the log."""
        background = f"{self.background:,} background"
        if self.without_label_file:
            background += f", {self.without_label_file:,} of them without a label file"

        used = sum(count > 0 for _, count in self.instances_per_class)
        classes = counted(len(self.instances_per_class), "class")
        line = (
            f"{counted(self.images, 'image')} ({background}), "
            f"{counted(self.instances, 'box')} in {used:,} of {classes}"
        )
        if self.converted:
            shapes = [f"{count:,} from {plural(shape)}" for shape, count in self.converted]
            line += f", {', '.join(shapes)}"
        if self.crowd:
            line += f", {counted(self.crowd, 'crowd region')}"

        problems = [f"{kind}: {count:,}" for kind, count in self.problem_counts if kind != NOTE]
        if problems:
            line += f"; {', '.join(problems)}"
        return f"{line} [{self.cache}]"

    def first_problem(self) -> str:
        """Return the first problem that is not a note, with its file and line; "" for none."""
        return first_of(self.problems)

    def about_label_files(self) -> list[str]:
        """Return the sentences about label files as a whole."""
        return [*self.label_warnings, *self.source_warnings, *self.source_notes]

    def warnings(self) -> list[str]:
        """Return a sentence for each thing that looks like a mistake in the data."""
        sentences = [*self.label_warnings, *self.source_warnings]
        other_labels = dict(self.problem_counts).get(OTHER_LABELS, 0)
        if other_labels:
            images = counted(other_labels, "image")
            sentences.append(f"{images} without a label file, but with one of another format")
        without_image = dict(self.problem_counts).get(ROW_WITHOUT_IMAGE, 0)
        if without_image:
            rows = counted(without_image, "annotation")
            sentences.append(f"not used: {rows} of images that their file does not list")
        if self.no_usable_row:
            images = counted(len(self.no_usable_row), "image")
            sentences.append(f"{images} left out, because none of their label rows can be used")
        if self.without_label_file > self.images / 2:
            without = f"{self.without_label_file:,} of {counted(self.images, 'image')}"
            sentences.append(
                f"{without} have no label file and teach that there is nothing to find"
            )

        largest = max(self.instances_per_class, key=lambda entry: entry[1], default=("", 0))
        name, count = largest
        is_most = count >= MOST_OF_ALL * self.instances and self.instances > FEW_BOXES
        if is_most and len(self.instances_per_class) > 1:
            share = count / self.instances
            sentences.append(f"{share:.0%} of the boxes are of class '{excerpt(name)}'")
        return sentences

    def with_cache(
        self,
        state: str,
        sentences: Iterable[Problem] = (),
        label_warnings: Iterable[Problem] = (),
    ) -> "Report":
        """Return the same report with the state of the label cache, such as "from cache".

        Args:
            state: of the cache.
            sentences: that were left out this time. A new one does not make the cache invalid.
            label_warnings: what is wrong with the label files as a whole, likewise.
        """
        return replace(
            self,
            cache=state,
            sentences=tuple(map(str, sentences)),
            label_warnings=tuple(map(str, label_warnings)),
        )


def counts_of(labels: Labels, names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a `Report` that count images and boxes. names: of the classes."""
    counts = np.bincount(labels.classes[~labels.crowd], minlength=len(names)).tolist()
    rows_per_image = np.diff(labels.offsets)
    points_per_row = np.diff(labels.point_offsets)
    return {
        "images": len(labels),
        "background": int((rows_per_image == 0).sum()),
        "instances": sum(counts),
        "crowd": int(labels.crowd.sum()),
        "polygons": int((points_per_row > 0).sum()),
        "instances_per_class": tuple(zip(names, counts, strict=True)),
    }


def first_of(problems: Iterable[Problem]) -> str:
    """Return the first problem that is not a note, in at most 600 characters; "" for none.

    >>> note = Problem(NOTE, "a.jpg", "no label file")
    >>> first_of([note, Problem(ROW_DROPPED, "b.txt line 2", "4 values")])
    'b.txt line 2: 4 values'
    """
    for problem in problems:
        if problem.kind != NOTE:
            return excerpt(str(problem), 600)
    return ""


def report_from_dict(values: dict[str, Any]) -> Report:
    """Return the Report whose `as_dict` is `values`.

    Raises KeyError, TypeError or ValueError if they are invalid.
    """
    fields = {name: value for name, value in values.items() if name != "not_listed"}
    fields["instances_per_class"] = tuple(values["instances_per_class"].items())
    fields["problem_counts"] = tuple(values["problem_counts"].items())
    fields["problems"] = tuple(Problem(**problem) for problem in values["problems"])
    fields["unreadable"] = tuple(values["unreadable"])
    fields["no_usable_row"] = tuple(values["no_usable_row"])
    for name in ("sentences", "label_warnings", "source_warnings", "source_notes"):
        fields[name] = tuple(values[name])
    fields["converted"] = tuple(values["converted"].items())
    return Report(**fields)


@dataclass
class ProblemLog:
    """The first problems, and the number of each kind.

    A faulty export has millions, which would fill the memory.
    """

    first: list[Problem] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def extend(self, problems: Iterable[Problem]) -> None:
        """Count more problems, and keep them up to LISTED_PROBLEMS in total."""
        for problem in problems:
            self.counts[problem.kind] += 1
            if len(self.first) < LISTED_PROBLEMS:
                self.first.append(problem)
