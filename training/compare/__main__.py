"""Compare runs: a table here, and a page with their curves and the settings that differ.

    # all runs
    python -m training.compare runs/train/exp*

    # two of them
    python -m training.compare runs/train/exp runs/train/exp2 --out nano_or_small.html

The page is one file without external requests.
"""

from argparse import Namespace
from collections.abc import Sequence
from glob import glob
from pathlib import Path

from training.compare.comparison import comparison_values, labels_of, problems_of, table_text
from training.compare.run_files import MARKS, RunFiles, is_run, read_run
from utils.files.folders import make_folder
from utils.files.writers import write_text
from utils.flags import FlagParser
from utils.printable import counted, printable
from utils.report import build_page, is_page_of
from utils.terminal import print_lines, run_and_exit

KIND = "compare"  # of page
PAGE = Path("runs/compare.html")


def parse_args(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the flags. Raises ValueError, in one sentence, for a command line that is wrong."""
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", type=Path, help="run folders of train.py or val.py")
    add("--out", type=Path, default=PAGE, help="page that is written")
    return parser.read(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare as the command line says.

    Raises ValueError if no folder is a run, or the page would replace another file.
    """
    args = parse_args(arguments)
    check_out(args.out)
    runs = find_runs(args.runs)

    print_lines(table_text(runs))
    if len(runs) > 1:
        print_lines("* the best")
    for problem in problems_of(runs, labels_of(runs)):
        print_lines(printable(problem))

    page = build_page(KIND, f"{counted(len(runs), 'run')} compared", comparison_values(runs))
    make_folder(args.out.parent, "--out")
    write_text(args.out, page)
    print_lines(f"written: {printable(args.out)}")


def check_out(out: Path) -> None:
    """Raise ValueError if a page cannot be written there, or would replace a file of others."""
    if out.is_dir():
        raise ValueError(f"--out {out}: is a folder; name a file, such as {out / 'compare.html'}")
    if out != PAGE and not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}")
    if out.exists() and not is_page_of(out, KIND):
        raise ValueError(f"--out {out}: exists and is not a comparison of runs; name another file")


def find_runs(given: Sequence[Path]) -> list[RunFiles]:
    """Return the runs in the given order, each once; a folder without a run is reported.

    given: folders, or patterns where the shell does not expand them.

    Raises ValueError if a path does not exist, or if there is no run.
    """
    folders = []
    for path in given:
        found = [path] if path.exists() else [Path(name) for name in sorted(glob(str(path)))]
        if not found:
            raise ValueError(f"{path}: there is no such folder")
        folders += found

    runs: dict[Path, Path] = {}
    for folder in folders:
        if is_run(folder):
            runs.setdefault(folder.resolve(), folder)
        else:
            print_lines(printable(f"{folder}: not a run folder, left out"))
    if not runs:
        named = ", ".join(map(str, folders))
        raise ValueError(f"{named}: no run folder, which has {', '.join(MARKS)} or one of them")
    return [read_run(folder) for folder in runs.values()]


if __name__ == "__main__":
    run_and_exit(main)
