r"""Detection from files to boxes: milliseconds per image of detect.py and of other programs.

Claim: with yolov5n at 640 and 320 px on two CPU cores, detect.py takes 0.54 of the time per image
of YOLOv5's detect.py in float32, and 0.42 to 0.46 with --half (benchmarks/results/).

    python benchmarks/detection/programs.py --images photos --rounds 3 \
        --ours "640=--weights m.pt --img 640" \
        --peer "yolov5=PEER/bin/yolov5 detect --weights m.pt --source {source} --img 640 \
                --device cpu --project {out} --nosave --save-txt"

In each round every command runs twice, on a few images and on many; the difference of the two
times, divided by the difference of the numbers of images, is the time of an image without start-up.
Commands take turns, so that other load on the machine affects all of them. All write label files
and no pictures. {source} is replaced by the folder of images, {out} by an empty folder. CPU time is
that of all threads; unlike wall time it hardly depends on other load.
"""

import argparse
import os
import resource
import sys
import tempfile
from datetime import date
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.end_to_end import Contender, add_contender_flags, command_lines, read_contenders
from benchmarks.report import file_report, table_row, versions
from data.images import find_images

ROOT = Path(__file__).resolve().parents[2]


class Cost(NamedTuple):
    wall_ms: float
    cpu_ms: float


class Figures(NamedTuple):
    """The measurements of one contender, one value per round."""

    wall_ms: list[float]  # per image
    cpu_ms: list[float]
    start_s: list[float]


def cost_of(contender: Contender, source: Path) -> Cost:
    """The wall and CPU time of a contender's command on a folder of images."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = contender.run(source=source)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)

    user_s = after.ru_utime - before.ru_utime
    system_s = after.ru_stime - before.ru_stime
    return Cost(1000 * done.seconds, 1000 * (user_s + system_s))


def measure(
    contenders: list[Contender], folders: tuple[Path, Path], counts: tuple[int, int], rounds: int
) -> list[Figures]:
    """Run all contenders in turns. folders: with few and with many images. counts: of images."""
    few, many = counts
    figures = [Figures([], [], []) for _ in contenders]
    for number in range(rounds):
        for contender, measured in zip(contenders, figures, strict=True):
            short = cost_of(contender, folders[0])
            long = cost_of(contender, folders[1])

            wall = (long.wall_ms - short.wall_ms) / (many - few)
            cpu = (long.cpu_ms - short.cpu_ms) / (many - few)
            measured.wall_ms.append(wall)
            measured.cpu_ms.append(cpu)
            measured.start_s.append((short.wall_ms - few * wall) / 1000)

            shown = f"{wall:.1f} ms, {cpu:.1f} ms CPU per image"
            print(f"round {number + 1}, {contender.name}: {shown}", flush=True)
    return figures


def report(contenders: list[Contender], figures: list[Figures], about: str) -> list[str]:
    rounds = len(figures[0].wall_ms)
    lines = [
        f"# Detection from files to boxes; {about}, {date.today()}",
        "",
        f"Medians (minimum to maximum) of {rounds} rounds in turns. Ratio: the time of "
        f"{contenders[-1].name}, divided by this one. Start: the rest of a run. Load average: "
        f"{os.getloadavg()[0]:.1f}.",
        "",
        "| | ms per image | ratio | CPU ms per image | start, s |",
        "| --- | --- | --- | --- | --- |",
    ]
    base = median(figures[-1].wall_ms)
    for contender, (wall, cpu, start) in zip(contenders, figures, strict=True):
        time = f"{median(wall):.1f} ({min(wall):.1f} to {max(wall):.1f})"
        cells = [contender.name, time, f"{base / median(wall):.2f}"]
        cells += [f"{median(cpu):.1f}", f"{median(start):.1f}"]
        lines.append(table_row(cells))
    return [*lines, "", *command_lines(contenders), ""]


def link_images(images: list[Path], folder: Path) -> None:
    """Make a folder with a link to each of the images, which may occur several times."""
    folder.mkdir()
    for number, path in enumerate(images):
        (folder / f"{number:05d}{path.suffix}").symlink_to(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--images", type=Path, required=True, help="folder of images")
    add("--few", type=int, default=8, help="images of the short run; the long one detects in all")
    add("--repeat", type=int, default=1, help="times that each image occurs in the long run")
    add_contender_flags(parser, "detect.py")
    options = parser.parse_args()

    command = (
        f"{sys.executable} {ROOT}/detect.py --source {{source}} --device cpu --project {{out}} "
        "--nosave --save-txt"
    )
    contenders = read_contenders(options.ours, options.peer, command)

    images = [Path(path) for path in find_images(options.images.resolve()).images]
    few = images[: options.few]
    many = images * options.repeat
    counts = len(few), len(many)
    with tempfile.TemporaryDirectory() as name:
        folders = Path(name, "few"), Path(name, "many")
        link_images(few, folders[0])
        link_images(many, folders[1])
        figures = measure(contenders, folders, counts, options.rounds)

    about = f"{len(many)} images; {options.about}; {versions()}"
    file_report(report(contenders, figures, about), options.out)


if __name__ == "__main__":
    main()
