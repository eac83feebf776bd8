r"""Whole training runs of Kestrel and other projects: images/s of an epoch, peak memory, and time
outside the epochs.

Claim: with yolov5n, 320 px, batch 16 on two CPU cores, whole epochs run at 2 times YOLOv5's
images/s, and at 1.25 times if both train in float32, with no more memory (benchmarks/results/).

    python benchmarks/end_to_end.py --data mydata.yaml --img 320 --batch 16 --device cpu \
        --epochs 2 8 --rounds 3 \
        --ours bf16= --ours "fp32=--amp fp32" \
        --peer "yolov5=PEER/bin/yolov5 train --data {data} --weights '' --cfg yolov5n.yaml \
                --img 320 --batch 16 --epochs {epochs} --device cpu --project {out} --noplots"

In each round every command runs twice, with few epochs and with many. The difference of the two
times is the time of the additional epochs alone, without start-up, last validation and plots.
Commands take turns, so that other load on the machine affects all of them. The validation split of
`--data` should have one image, because some commands validate after every epoch. In a command,
{data}, {epochs} and {out} are replaced by the data YAML, the number of epochs and an empty folder.
Other projects are run by their command lines, from their own virtual environments, with the
environment variables of this process.
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

import torch

from benchmarks.report import file_report
from data.splits import open_data, read_split

ROOT = Path(__file__).resolve().parents[1]
LOOK_S = 2.0  # between two memory readings: for each the kernel counts pages


class Run(NamedTuple):
    """A finished command."""

    seconds: float
    peak_gib: float  # all its processes together, shared memory counted once


def run(command: list[str], folder: Path) -> Run:
    """Run a command in `folder` to its end. Raises SystemExit with the end of its output if it
    fails.
    """
    with (folder / "output").open("w+") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=folder
        )
        watch = Memory(process.pid)
        process.wait()
        seconds = time.perf_counter() - started
        watch.stop()
        if process.returncode:
            output.seek(0)
            raise SystemExit(
                f"{shlex.join(command)} ended with {process.returncode}:\n{output.read()[-2000:]}"
            )
    return Run(seconds, watch.peak / 2**30)


class Memory:
    """Measures the peak memory of a process and its descendants, in bytes; 0 on systems without
    /proc.
    """

    def __init__(self, root: int) -> None:
        self.peak, self._root, self._done = 0, root, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(LOOK_S):
            self.peak = max(self.peak, sum(map(proportional_set_bytes, descendants(self._root))))


def descendants(root: int) -> list[int]:
    """The ids of a process and all its descendants."""
    found = [root]
    for pid in found:
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # the process has ended
            continue
    return found


def proportional_set_bytes(pid: int) -> int:
    """The proportional set size of a process (PSS): shared pages are divided by the number of
    processes.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


class Contender(NamedTuple):
    name: str
    command: str  # with the placeholders {data}, {epochs} and {out}

    def run(self, data: Path, epochs: int) -> Run:
        with tempfile.TemporaryDirectory() as folder:
            values = {"data": data, "epochs": epochs, "out": Path(folder, "out")}
            return run([word.format(**values) for word in shlex.split(self.command)], Path(folder))


class Figures(NamedTuple):
    """The measurements of one contender, one value per round."""

    images_a_second: list[float]
    besides: list[float]  # seconds of a run outside its epochs
    peak_gib: list[float]


def measure(
    contenders: list[Contender], data: Path, images: int, epochs: tuple[int, int], rounds: int
) -> list[Figures]:
    few, many = epochs
    figures = [Figures([], [], []) for _ in contenders]
    for number in range(rounds):
        for contender, measured in zip(contenders, figures, strict=True):
            short, long = contender.run(data, few), contender.run(data, many)
            epoch = (long.seconds - short.seconds) / (many - few)
            measured.images_a_second.append(images / epoch)
            measured.besides.append(short.seconds - few * epoch)
            measured.peak_gib.append(long.peak_gib)
            print(
                f"round {number + 1}, {contender.name}: {images / epoch:.1f} images/s, "
                f"{long.peak_gib:.2f} GiB",
                flush=True,
            )
    return figures


def report(contenders: list[Contender], figures: list[Figures], about: str) -> list[str]:
    base = median(figures[-1].images_a_second)
    lines = [
        f"# End to end; {about}, {date.today()}",
        "",
        "Images/s of whole training epochs without validation: medians (minimum to maximum) of "
        f"{len(figures[0][0])} "
        f"rounds in turns. Ratio: to {contenders[-1].name}. Other time: seconds of a run outside "
        "its epochs (start-up, "
        "one validation, shutdown). Memory: peak of all processes of a run together, shared memory "
        "counted once. "
        f"Load average at the end {os.getloadavg()[0]:.1f}.",
        "",
        "| | images/s | ratio | other time, s | peak memory, GiB |",
        "| --- | --- | --- | --- | --- |",
    ]
    for contender, (images_s, other_s, peak_gib) in zip(contenders, figures, strict=True):
        speed = f"{median(images_s):.1f} ({min(images_s):.1f} to {max(images_s):.1f})"
        ratio = median(images_s) / base
        lines.append(
            f"| {contender.name} | {speed} | {ratio:.2f} | {median(other_s):.1f} | "
            f"{median(peak_gib):.2f} |"
        )
    commands = [
        c.command.replace(sys.executable, "python").replace(f"{ROOT}/", "") for c in contenders
    ]
    lines += [
        "",
        *(f"    {c.name}: {command}" for c, command in zip(contenders, commands, strict=True)),
        "",
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="data set YAML; its val split should be one image")
    add("--cfg", default="yolov5n.yaml")
    add("--img", type=int, default=320)
    add("--batch", type=int, default=16)
    add("--device", default="cpu")
    add(
        "--epochs",
        type=int,
        nargs=2,
        default=(2, 8),
        help="epochs of the short and of the long run",
    )
    add("--rounds", type=int, default=3)
    add(
        "--ours",
        action="append",
        metavar="NAME=FLAGS",
        help="run train.py with these additional flags",
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

    data = options.data.resolve()
    labels, _ = read_split(
        open_data(str(data)), "train", single=False, cache_dir="", progress=False
    )
    ours = (
        f"{sys.executable} {ROOT}/train.py --data {{data}} --cfg {options.cfg} --img {options.img} "
        f"--batch {options.batch} --device {options.device} --epochs {{epochs}} --project {{out}} "
        "--noval --nosave --noplots"
    )
    named = [text.partition("=") for text in options.ours or ["Kestrel="]]
    contenders = [Contender(name, f"{ours} {flags}".strip()) for name, _, flags in named]
    contenders += [
        Contender(name, command)
        for name, _, command in (text.partition("=") for text in options.peer)
    ]
    figures = measure(contenders, data, len(labels), tuple(options.epochs), options.rounds)
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    about = (
        f"{options.cfg}, {options.img} px, batch {options.batch}, {len(labels)} images; "
        f"{options.about}; {versions}"
    )
    file_report(report(contenders, figures, about), options.out)


if __name__ == "__main__":
    main()
