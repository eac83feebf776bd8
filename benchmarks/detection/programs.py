r"""Detection from files to boxes: milliseconds per image of detect.py and of other projects'
programs.

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
import platform
import resource
import shlex
import sys
import tempfile
from datetime import date
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.end_to_end import run
from benchmarks.report import file_report
from data.images import find_images

ROOT = Path(__file__).resolve().parents[2]


class Cost(NamedTuple):
    wall_ms: float
    cpu_ms: float


class Contender(NamedTuple):
    name: str
    command: str  # with the placeholders {source} and {out}

    def run(self, source: Path) -> Cost:
        """Return the wall and CPU time of the command on a folder of images."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with tempfile.TemporaryDirectory() as folder:
            values = {"source": source, "out": Path(folder, "out")}
            done = run([word.format(**values) for word in shlex.split(self.command)], Path(folder))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Cost(1000 * done.seconds, 1000 * cpu_s)


class Figures(NamedTuple):
    """The measurements of one contender, one value per round."""

    wall_ms: list[float]  # per image
    cpu_ms: list[float]
    start_s: list[float]


def measure(
    contenders: list[Contender], folders: tuple[Path, Path], counts: tuple[int, int], rounds: int
) -> list[Figures]:
    few, many = counts
    figures = [Figures([], [], []) for _ in contenders]
    for number in range(rounds):
        for contender, measured in zip(contenders, figures, strict=True):
            short, long = (contender.run(folder) for folder in folders)
            wall, cpu = ((b - a) / (many - few) for a, b in zip(short, long, strict=True))
            measured.wall_ms.append(wall)
            measured.cpu_ms.append(cpu)
            measured.start_s.append((short.wall_ms - few * wall) / 1000)
            print(
                f"round {number + 1}, {contender.name}: {wall:.1f} ms, {cpu:.1f} ms CPU per image",
                flush=True,
            )
    return figures


def report(contenders: list[Contender], figures: list[Figures], about: str) -> list[str]:
    base = median(figures[-1].wall_ms)
    lines = [
        f"# Detection from files to boxes; {about}, {date.today()}",
        "",
        f"Medians (minimum to maximum) of {len(figures[0].wall_ms)} rounds in turns. Ratio: the "
        "time of "
        f"{contenders[-1].name}, divided by this one. Start: the rest of a run. Load average: "
        f"{os.getloadavg()[0]:.1f}.",
        "",
        "| | ms per image | ratio | CPU ms per image | start, s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for contender, (wall, cpu, start) in zip(contenders, figures, strict=True):
        time = f"{median(wall):.1f} ({min(wall):.1f} to {max(wall):.1f})"
        ratio = base / median(wall)
        lines.append(
            f"| {contender.name} | {time} | {ratio:.2f} | {median(cpu):.1f} | {median(start):.1f} |"
        )
    commands = [
        c.command.replace(sys.executable, "python").replace(f"{ROOT}/", "") for c in contenders
    ]
    return [
        *lines,
        "",
        *(f"    {c.name}: {text}" for c, text in zip(contenders, commands, strict=True)),
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--images", type=Path, required=True, help="folder of images")
    add("--few", type=int, default=8, help="images of the short run; the long one detects in all")
    add("--repeat", type=int, default=1, help="times that each image occurs in the long run")
    add("--rounds", type=int, default=3)
    add(
        "--ours",
        action="append",
        default=[],
        metavar="NAME=FLAGS",
        help="run detect.py with these flags",
    )
    add(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="another project; ratios are to the last",
    )
    add(
        "--about",
        default=f"{os.cpu_count()} cores {platform.machine()}",
        help="the hardware, as text for the report",
    )
    add("--out", type=Path, help="file for the report")
    options = parser.parse_args()

    images = [Path(path) for path in find_images(options.images.resolve()).images]
    ours = (
        f"{sys.executable} {ROOT}/detect.py --source {{source}} --device cpu --project "
        f"{{out}} --nosave --save-txt"
    )
    contenders = [
        Contender(name, f"{ours} {flags}")
        for name, _, flags in (t.partition("=") for t in options.ours)
    ]
    contenders += [
        Contender(name, command) for name, _, command in (t.partition("=") for t in options.peer)
    ]
    with tempfile.TemporaryDirectory() as folder:
        few, many = Path(folder, "few"), Path(folder, "many")
        for target, chosen, times in (
            (few, images[: options.few], 1),
            (many, images, options.repeat),
        ):
            target.mkdir()
            for number, path in enumerate(chosen * times):
                (target / f"{number:05d}{path.suffix}").symlink_to(path)
        counts = len(images[: options.few]), len(images) * options.repeat
        figures = measure(contenders, (few, many), counts, options.rounds)
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    about = f"{counts[1]} images; {options.about}; {versions}"
    file_report(report(contenders, figures, about), options.out)


if __name__ == "__main__":
    main()
