"""What data.check and training.check share: flags, reading the data, and what they write."""

from argparse import Namespace
from pathlib import Path

from data.check.diagnosis import diagnose
from data.check.findings import Diagnosis
from data.check.page import page_of
from data.check.reading import Examined, read_data_set
from data.check.text import lines_of, summary
from data.layouts import Choices
from data.splits import Dataset
from utils.files.folders import cache_folder, require_writable
from utils.files.writers import write_json, write_text
from utils.flags import FlagParser, check_lowest
from utils.printable import printable
from utils.report import begins_with_mark
from utils.terminal import print_lines

MARKS = {"--json": b'{\n "format": ', "--html": b"<title>Data check: "}


def add_flags(parser: FlagParser) -> None:
    """Add the flags that both commands have."""
    add = parser.add_argument
    add("data", nargs="+", metavar="DATA", help="data sets, as train.py takes them as --data")
    add("--json", default="", metavar="FILE", help="write all that was found as JSON")
    add("--html", default="", metavar="FILE", help="write a page with pictures of what was found")
    add("--strict", action="store_true", help="exit code 2 if there is an error or a warning")
    add("--shown", type=int, default=3, metavar="N", help="places that are listed of each finding")
    add("--names", nargs="+", default=[], help="class names of data that have none, in order")
    add("--merge", nargs="+", default=[], help="OLD=NEW ...: rename classes, or join them")
    add("--cache-dir", default="", help="folder for cached labels and thumbnails")


def check_flags(args: Namespace) -> None:
    """Raise ValueError for a flag that is out of range, or a file that cannot be written."""
    check_lowest("--shown", args.shown, 0)
    for flag, name in (("--json", args.json), ("--html", args.html)):
        if not name:
            continue
        if Path(name).is_dir():
            raise ValueError(f"{flag} {printable(name)} is a folder: give the name of a file")
        require_writable(Path(name).absolute().parent, flag)
        _require_own_file(Path(name), flag)
    if args.json and Path(args.json).resolve() == Path(args.html).resolve():
        raise ValueError(f"--json and --html both name {printable(args.json)}: give two files")


def _require_own_file(path: Path, flag: str) -> None:
    """Raise ValueError if this would replace a file of the user, such as the data set's own YAML.

    A file that an earlier check has written begins with the mark of its kind.
    """
    if path.exists() and not begins_with_mark(path, MARKS[flag]):
        raise ValueError(f"{flag} {printable(path)}: exists, and is no earlier check; name another")


def choices_of(args: Namespace) -> Choices:
    """Return what the flags choose of the data. Nothing is held out: all images are looked at."""
    return Choices(0.0, "", tuple(args.names), tuple(args.merge))


def examine(dataset: Dataset, args: Namespace, image_size: int) -> tuple[Examined, Diagnosis]:
    """Return a data set that was read, and what is wrong with it.

    image_size: long side in training, in pixels. Raises ValueError as `Dataset.read` does.
    """
    examined = read_data_set(dataset, image_size)
    return examined, diagnose(examined, cache_folder(args.cache_dir), progress=True)


def show(diagnosis: Diagnosis, args: Namespace) -> None:
    """Print a diagnosis, write its files, and raise ValueError if --strict refuses it."""
    print_lines("\n".join(lines_of(diagnosis, args.shown)))
    print_lines(summary(diagnosis))
    if args.json:
        Path(args.json).absolute().parent.mkdir(parents=True, exist_ok=True)
        write_json(Path(args.json), diagnosis.as_dict())
    if args.html:
        Path(args.html).absolute().parent.mkdir(parents=True, exist_ok=True)
        write_text(Path(args.html), page_of(diagnosis))
    written = [printable(name) for name in (args.json, args.html) if name]
    if written:
        print_lines(f"written: {', '.join(written)}")

    faults = diagnosis.faults()
    if args.strict and faults:
        found = "; ".join(fault.heading for fault in faults[:3])
        more = f", and {len(faults) - 3} kinds more" if len(faults) > 3 else ""
        raise ValueError(f"--strict: {diagnosis.data}: {found}{more}")
