"""What the reader of the files found: rows and images that it left out or changed."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from data import report as kinds
from data.check.findings import ERROR, NOTE, WARNING, Example, Finding
from data.check.reading import Examined
from data.report import Report


class Kind(NamedTuple):
    """What is said of one kind of problem."""

    check: str
    level: str
    noun: str
    title: str
    advice: str


KINDS = {
    kinds.IMAGE_DROPPED: Kind(
        "images-unreadable",
        ERROR,
        "image",
        "left out as unusable",
        "copy the files again from their source, or remove them",
    ),
    kinds.IMAGE_DAMAGED: Kind(
        "images-damaged",
        WARNING,
        "image",
        "damaged, but decoded",
        "look at them: parts may be gray or shifted; copy them again from their source",
    ),
    kinds.NO_USABLE_ROW: Kind(
        "images-without-usable-row",
        ERROR,
        "image",
        "left out, with label rows that are all unusable",
        "correct their label files",
    ),
    kinds.ROW_DROPPED: Kind(
        "rows-dropped",
        ERROR,
        "label row",
        "dropped as unusable",
        "correct them: their objects count as background",
    ),
    kinds.ROW_WITHOUT_IMAGE: Kind(
        "rows-of-unlisted-images",
        ERROR,
        "annotation",
        "of images that the file does not list",
        "export again: if the ids of images were renumbered, all boxes may be on other images",
    ),
    kinds.ROW_CLIPPED: Kind(
        "rows-clipped",
        WARNING,
        "box",
        "clipped to the image",
        "nothing if it is little; else look whether the labels are those of another size",
    ),
    kinds.ROW_DUPLICATE: Kind(
        "rows-twice",
        WARNING,
        "label row",
        "dropped as a repetition",
        "remove them from the label files: other programs may train on both",
    ),
    kinds.POLYGON_DROPPED: Kind(
        "polygons-dropped",
        NOTE,
        "polygon",
        "dropped as unusable, with the box kept",
        "correct them if you cut out objects (--copy_paste)",
    ),
    kinds.IMAGES_NOT_FOUND: Kind(
        "label-files-without-images",
        WARNING,
        "label file",
        "whose images were not found",
        "copy the images beside them, or remove the label files",
    ),
    kinds.LABELS_RESIZED: Kind(
        "labels-resized",
        NOTE,
        "image",
        "with labels of another size, scaled",
        "look at some of them, whether the boxes fit",
    ),
    kinds.LABELS_TURNED: Kind(
        "labels-turned",
        NOTE,
        "image",
        "with labels from before a turn, turned",
        "look at some of them, whether the boxes fit",
    ),
    kinds.OTHER_LABELS: Kind(
        "labels-of-another-format",
        ERROR,
        "image",
        "without a label file, but with one of another format, which is not read",
        "convert these labels (python -m data.convert), or give that format alone",
    ),
}
SUSPICIONS = Kind(
    "labels-suspicious",
    WARNING,
    "warning",
    "about label files as a whole",
    "see each sentence",
)
NOTES = Kind(
    "files-left-out",
    NOTE,
    "note",
    "about files or values that are left out on purpose",
    "nothing, if it is what you want",
)


def check_files(examined: Examined) -> list[Finding]:
    """Return a finding for each kind of problem that reading the splits has met.

    A report lists the first problems of all kinds only (LISTED_PROBLEMS); the counts are of all.
    """
    findings = []
    for kind, words in KINDS.items():
        count = 0
        examples = []
        for split in examined.splits:
            count += dict(split.report.problem_counts).get(kind, 0)
            for problem in split.report.problems:
                if problem.kind == kind:
                    examples.append(Example(problem.where, problem.reason))
        if count:
            findings.append(_finding(words, count, examples))

    suspicions = _said(examined, Report.about_label_files)
    if suspicions:
        findings.append(_finding(SUSPICIONS, len(suspicions), suspicions))
    notes = _said(examined, lambda report: report.sentences)
    if notes:
        findings.append(_finding(NOTES, len(notes), notes))
    return findings


def _said(examined: Examined, sentences: Callable[[Report], Iterable[str]]) -> list[Example]:
    """Return each sentence about a split as an example, with the first split of which it is."""
    said: dict[str, Example] = {}
    for split in examined.splits:
        for sentence in sentences(split.report):
            said.setdefault(sentence, Example(split.name, sentence))
    return list(said.values())


def _finding(words: Kind, count: int, examples: Iterable[Example]) -> Finding:
    return Finding(
        words.check, words.level, words.noun, words.title, count, words.advice, tuple(examples)
    )
