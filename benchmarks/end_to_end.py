r"""Whole trainings of Kestrel and other projects: images/s, peak memory, time outside the epochs.

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

from benchmarks.report import add_report_flags, file_report, table_row, versions
from data.layouts import open_data
from data.splits import read_split

ROOT = Path(__file__).resolve().parents[1]
LOOK_S = 2.0  # between two memory readings: for each the kernel counts pages


# ---------------------------------------------------------------------- commands that take turns


class Contender(NamedTuple):
    """A program that is compared."""

    name: str
    command: str  # with placeholders in braces

    def run(self, **values: object) -> "Run":
        """Run the command with these values for its placeholders, and an empty folder for {out}."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            values["out"] = folder / "out"
            words = [word.format(**values) for word in shlex.split(self.command)]
            return run(words, folder)


class Run(NamedTuple):
    """A finished command."""

    seconds: float
    peak_gib: float  # all its processes together, shared memory counted once


def run(command: list[str], folder: Path) -> Run:
    """Run a command in `folder`. Raises SystemExit with the end of its output if it fails."""
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
            end = output.read()[-2000:]
            raise SystemExit(f"{shlex.join(command)} ended with {process.returncode}:\n{end}")
    return Run(seconds, watch.peak / 2**30)


def add_contender_flags(parser: argparse.ArgumentParser, script: str) -> None:
    """Add --rounds, --ours, --peer, --about and --out. script: of ours that --ours runs."""
    add = parser.add_argument
    about_ours = f"run {script} with these flags; repeat for more"
    about_peer = "another project; ratios are to the last"
    add("--rounds", type=int, default=3)
    add("--ours", action="append", default=[], metavar="NAME=FLAGS", help=about_ours)
    add("--peer", action="append", default=[], metavar="NAME=COMMAND", help=about_peer)
    add_report_flags(parser)


def read_contenders(ours: list[str], peers: list[str], command: str) -> list[Contender]:
    """The values of --ours, each after `command`, then those of --peer."""
    contenders = []
    for text in ours:
        name, _, flags = text.partition("=")
        contenders.append(Contender(name, f"{command} {flags}".strip()))
    for text in peers:
        name, _, peer_command = text.partition("=")
        contenders.append(Contender(name, peer_command))
    return contenders


def command_lines(contenders: list[Contender]) -> list[str]:
    """The commands as lines of a report, without the folders of this machine."""
    lines = []
    for contender in contenders:
        command = contender.command.replace(sys.executable, "python").replace(f"{ROOT}/", "")
        lines.append(f"    {contender.name}: {command}")
    return lines


# ---------------------------------------------------------------------- memory


class Memory:
    """The peak memory of a process and its descendants, in bytes; 0 on systems without /proc."""

    def __init__(self, root: int) -> None:
        self.peak = 0
        self._root = root
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(LOOK_S):
            together = sum(map(proportional_set_bytes, descendants(self._root)))
            self.peak = max(self.peak, together)


def descendants(root: int) -> list[int]:
    """The ids of a process and all its descendants."""
    found = [root]
    for pid in found:  # which grows meanwhile
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # the process has ended
            continue
    return found


def proportional_set_bytes(pid: int) -> int:
    """The PSS of a process: shared pages are divided by the number of processes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0

    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
    return 1024 * sum(kilobytes)


# ---------------------------------------------------------------------- measurement


class Figures(NamedTuple):
    """The measurements of one contender, one value per round."""

    images_a_second: list[float]
    besides: list[float]  # seconds of a run outside its epochs
    peak_gib: list[float]


def measure(
    contenders: list[Contender], data: Path, images: int, epochs: tuple[int, int], rounds: int
) -> list[Figures]:
    """Run all contenders in turns.

    Args:
        contenders: with the placeholders {data} and {epochs}.
        data: the data YAML.
        images: of the training split.
        epochs: of the short and of the long run.
        rounds: how often each contender is measured.
    """
    few, many = epochs
    figures = [Figures([], [], []) for _ in contenders]
    for number in range(rounds):
        for contender, measured in zip(contenders, figures, strict=True):
            short = contender.run(data=data, epochs=few)
            long = contender.run(data=data, epochs=many)

            epoch_s = (long.seconds - short.seconds) / (many - few)
            speed = images / epoch_s
            measured.images_a_second.append(speed)
            measured.besides.append(short.seconds - few * epoch_s)
            measured.peak_gib.append(long.peak_gib)

            shown = f"{speed:.1f} images/s, {long.peak_gib:.2f} GiB"
            print(f"round {number + 1}, {contender.name}: {shown}", flush=True)
    return figures


def report(contenders: list[Contender], figures: list[Figures], about: str) -> list[str]:
    rounds = len(figures[0].images_a_second)
    lines = [
        f"# End to end; {about}, {date.today()}",
        "",
        "Images/s of whole training epochs without validation: medians (minimum to maximum) of "
        f"{rounds} rounds in turns. Ratio: to {contenders[-1].name}. Other time: seconds of a run "
        "outside its epochs (start-up, one validation, shutdown). Memory: peak of all processes of "
        "a run together, shared memory counted once. "
        f"Load average at the end {os.getloadavg()[0]:.1f}.",
        "",
        "| | images/s | ratio | other time, s | peak memory, GiB |",
        "| --- | --- | --- | --- | --- |",
    ]
    base = median(figures[-1].images_a_second)
    for contender, (images_s, other_s, peak_gib) in zip(contenders, figures, strict=True):
        speed = f"{median(images_s):.1f} ({min(images_s):.1f} to {max(images_s):.1f})"
        cells = [contender.name, speed, f"{median(images_s) / base:.2f}"]
        cells += [f"{median(other_s):.1f}", f"{median(peak_gib):.2f}"]
        lines.append(table_row(cells))
    return [*lines, "", *command_lines(contenders), ""]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    about_epochs = "epochs of the short and of the long run"
    add("--data", type=Path, required=True, help="data set YAML; its val split should be one image")
    add("--cfg", default="yolov5n.yaml")
    add("--img", type=int, default=320)
    add("--batch", type=int, default=16)
    add("--device", default="cpu")
    add("--epochs", type=int, nargs=2, default=(2, 8), help=about_epochs)
    add_contender_flags(parser, "train.py")
    options = parser.parse_args()

    data = options.data.resolve()
    spec = open_data(str(data))
    labels, _ = read_split(spec, "train", cache_dir="", progress=False)

    command = (
        f"{sys.executable} {ROOT}/train.py --data {{data}} --cfg {options.cfg} --img {options.img} "
        f"--batch {options.batch} --device {options.device} --epochs {{epochs}} --project {{out}} "
        "--noval --nosave --noplots"
    )
    ours = options.ours or ["Kestrel="]
    contenders = read_contenders(ours, options.peer, command)
    figures = measure(contenders, data, len(labels), tuple(options.epochs), options.rounds)

    run_settings = f"{options.cfg}, {options.img} px, batch {options.batch}, {len(labels)} images"
    about = f"{run_settings}; {options.about}; {versions()}"
    file_report(report(contenders, figures, about), options.out)


if __name__ == "__main__":
    main()
