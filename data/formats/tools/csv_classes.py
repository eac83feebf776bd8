"""The lists of classes that lie beside CSV files with boxes."""

from pathlib import Path

from data.formats.tools.csv_rows import read_csv

CLASS_LISTS = ("_classes.csv", "classes.csv")  # of keras-retinanet: name, number from 0
DESCRIPTIONS = "*class-descriptions*.csv"  # of Open Images: LabelName, DisplayName
HEADER = "LabelName"  # may be absent


def class_list(file: Path) -> tuple[str, ...] | None:
    """Return the classes of a list beside a CSV file, in its order; None without one.

    Raises ValueError with the path of a list that cannot be read.
    """
    for name in CLASS_LISTS:
        beside = file.with_name(name)
        if beside.is_file():
            return _numbered(beside)
    return None


def class_lists_beside(file: Path) -> list[Path]:
    """Return the files beside a CSV file that may say what its classes are."""
    named = [file.with_name(name) for name in CLASS_LISTS]
    found = [beside for beside in named if beside.is_file()]
    return [*found, *sorted(file.parent.glob(DESCRIPTIONS))]


def _numbered(file: Path) -> tuple[str, ...] | None:
    """Return the names in a list of keras-retinanet, None if it is another one."""
    names = {}
    for row in read_csv(file):
        if len(row.values) != 2 or not row.values[1].isdecimal() or len(row.values[1]) > 6:
            return None
        names[int(row.values[1])] = row.values[0]
    if not names or sorted(names) != list(range(len(names))):
        return None
    return tuple(names[index] for index in range(len(names)))


def display_names(file: Path) -> dict[str, str]:
    """Return the names that people read, by the ids in a CSV file of Open Images; {} without any.

    Raises ValueError with the path of a list that cannot be read.
    """
    names: dict[str, str] = {}
    for beside in sorted(file.parent.glob(DESCRIPTIONS)):
        for row in read_csv(beside):
            if len(row.values) == 2 and row.values[0] != HEADER and all(row.values):
                names[row.values[0]] = row.values[1]
    return names
