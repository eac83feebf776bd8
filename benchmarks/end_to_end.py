"""Whole training runs, ours and others', in turns: images a second of an epoch, memory, and what a run takes besides.

Claim: yolov5n, 320 px, batch 16 on two CPU cores: whole epochs at twice YOLOv5's images a second, and at 1.25 times
where both train in float32, in no more memory (benchmarks/results/).

    python benchmarks/end_to_end.py --data mydata.yaml --img 320 --batch 16 --device cpu --epochs 2 8 --rounds 3 \
        --ours bf16= --ours "fp32=--amp fp32" \
        --peer "yolov5=PEER/bin/yolov5 train --data {data} --weights '' --cfg yolov5n.yaml --img 320 --batch 16 \
                --epochs {epochs} --device cpu --project {out} --noplots"

Each command is run twice a round, for few epochs and for many: the difference is so many epochs and nothing else, no
start, no last validation, no picture. Rounds alternate between the commands, so that all share the machine's moods.
`--data` should name a validation split of one image, because some commands validate after every epoch. {data}, {epochs}
and {out} in a command stand for the data YAML, the number of epochs and an empty folder. Others' programs are run from
an environment of their own, by their command lines, with the variables of this process.
"""

import argparse
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.pop(1)  # this folder, whose profile.py would hide Python's

import torch

from benchmarks.report import file_report
from data.splits import open_data, read_split

ROOT = Path(__file__).resolve().parents[1]
LOOK_S = 2.0  # between two looks at the memory: the kernel counts pages for them


class Run(NamedTuple):
    """A command that came to its end."""

    seconds: float
    peak_gib: float  # of all its processes together: what they share counted once


def run(command: list[str], folder: Path) -> Run:
    """Raises SystemExit with what it said last if it fails."""
    with (folder / "said").open("w+") as said:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=folder)
        watch = Memory(process.pid)
        process.wait()
        seconds = time.perf_counter() - started
        watch.stop()
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"{shlex.join(command)} ended with {process.returncode}:\n{said.read()[-2000:]}")
    return Run(seconds, watch.peak / 2**30)


class Memory:
    """Watches what a process and its descendants hold, in bytes; 0 where /proc does not tell."""

    def __init__(self, root: int) -> None:
        self.peak, self._root, self._done = 0, root, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(LOOK_S):
            self.peak = max(self.peak, sum(map(shared_out_bytes, descendants(self._root))))


def descendants(root: int) -> list[int]:
    """A process and those below it."""
    found = [root]
    for number in found:
        try:
            for task in Path(f"/proc/{number}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # gone meanwhile
            continue
    return found


def shared_out_bytes(number: int) -> int:
    """The memory of a process, its part of what it shares with others."""
    try:
        lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


class Contender(NamedTuple):
    name: str
    command: str  # with places for data, epochs and out

    def run(self, data: Path, epochs: int) -> Run:
        with tempfile.TemporaryDirectory() as folder:
            places = {"data": data, "epochs": epochs, "out": Path(folder, "out")}
            return run([word.format(**places) for word in shlex.split(self.command)], Path(folder))


class Figures(NamedTuple):
    """What the rounds of a contender gave, a number for each."""

    images_a_second: list[float]
    besides: list[float]  # seconds of a run that are no epoch
    peak_gib: list[float]


def measure(
    contenders: list[Contender], data: Path, images: int, epochs: tuple[int, int], rounds: int
) -> list[Figures]:
    few, many = epochs
    figures = [Figures([], [], []) for _ in contenders]
    for number in range(rounds):
        for contender, own in zip(contenders, figures, strict=True):
            short, long = contender.run(data, few), contender.run(data, many)
            epoch = (long.seconds - short.seconds) / (many - few)
            own.images_a_second.append(images / epoch)
            own.besides.append(short.seconds - few * epoch)
            own.peak_gib.append(long.peak_gib)
            print(
                f"round {number + 1}, {contender.name}: {images / epoch:.1f} images/s, {long.peak_gib:.2f} GiB",
                flush=True,
            )
    return figures


def report(contenders: list[Contender], figures: list[Figures], about: str) -> list[str]:
    base = median(figures[-1].images_a_second)
    lines = [
        f"# End to end; {about}, {date.today()}",
        "",
        f"Images a second of whole training epochs, validation apart: medians (least to most) of {len(figures[0][0])} "
        f"rounds in turns; the ratio to {contenders[-1].name}. *Besides*: seconds of a run that are no epoch (start, "
        "one validation, the end). Memory: of all processes of a run at its peak, what they share counted once. "
        f"Load average at the end {os.getloadavg()[0]:.1f}.",
        "",
        "| | images/s | ratio | besides, s | peak, GiB |",
        "| --- | --- | --- | --- | --- |",
    ]
    for contender, own in zip(contenders, figures, strict=True):
        speed = f"{median(own[0]):.1f} ({min(own[0]):.1f} to {max(own[0]):.1f})"
        ratio = median(own[0]) / base
        lines.append(f"| {contender.name} | {speed} | {ratio:.2f} | {median(own[1]):.1f} | {median(own[2]):.2f} |")
    told = [c.command.replace(sys.executable, "python").replace(f"{ROOT}/", "") for c in contenders]
    lines += ["", *(f"    {c.name}: {command}" for c, command in zip(contenders, told, strict=True)), ""]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="data set YAML; its val split should be one image")
    add("--cfg", default="yolov5n.yaml")
    add("--img", type=int, default=320)
    add("--batch", type=int, default=16)
    add("--device", default="cpu")
    add("--epochs", type=int, nargs=2, default=(2, 8), help="of the short and the long run")
    add("--rounds", type=int, default=3)
    add("--ours", action="append", metavar="NAME=FLAGS", help="a run of ours with these flags of train.py besides")
    add("--peer", action="append", default=[], metavar="NAME=COMMAND", help="the last one is compared with")
    add("--about", default=f"{os.cpu_count()} cores {platform.machine()}", help="the hardware, in words")
    add("--out", type=Path, help="file for the report")
    options = parser.parse_args()

    data = options.data.resolve()
    labels, _ = read_split(open_data(str(data)), "train", single=False, cache_dir="", progress=False)
    ours = (
        f"{sys.executable} {ROOT}/train.py --data {{data}} --cfg {options.cfg} --img {options.img} "
        f"--batch {options.batch} --device {options.device} --epochs {{epochs}} --project {{out}} "
        "--noval --nosave --noplots"
    )
    named = [text.partition("=") for text in options.ours or ["Kestrel="]]
    contenders = [Contender(name, f"{ours} {flags}".strip()) for name, _, flags in named]
    contenders += [Contender(name, command) for name, _, command in (text.partition("=") for text in options.peer)]
    figures = measure(contenders, data, len(labels), tuple(options.epochs), options.rounds)
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    about = f"{options.cfg}, {options.img} px, batch {options.batch}, {len(labels)} images; {options.about}; {versions}"
    file_report(report(contenders, figures, about), options.out)


if __name__ == "__main__":
    main()
