"""The report of benchmarks/scaling.py: what it measured, the arithmetic on it, and its tables."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import numpy as np
import torch

from benchmarks.timed_steps import Setting

GROUP = 4  # batches per optimizer step in the passes with gradient accumulation
SMALL_MESSAGE = 4096  # bytes: its time is latency only

ON_A_CPU = (
    "On a CPU the processes share memory bandwidth, caches and clock speed even if each has its "
    "own cores. The column "
    "*sharing* shows what that costs: a faster network would not change it, and processes on "
    "separate machines would "
    "not have it. DataLoader workers use cores as well."
)


@dataclass
class Measured:
    """The results of a launch of N processes: seconds of each step of a pass, [] if skipped; bytes
    per process.
    """

    processes: int
    device: str = ""
    backend: str = ""
    precision: str = ""
    gradient_bytes: int = 0
    step: list[float] = field(default_factory=list)
    shared_out: list[float] = field(default_factory=list)  # b images in total
    silent: list[float] = field(default_factory=list)  # no exchange
    every_batch: list[float] = field(default_factory=list)  # GROUP batches, an exchange after each
    last_batch: list[float] = field(default_factory=list)  # GROUP batches, one exchange
    fed: list[float] = field(default_factory=list)  # from the loader
    waiting: float = 0.0  # share of the time spent waiting for batches
    workers: int = 0
    moved: dict[str, list[float]] = field(
        default_factory=dict
    )  # {what: [calls, bytes, bytes sent in a ring]}
    alone: list[tuple[int, list[float]]] = field(
        default_factory=list
    )  # bytes and seconds of an all-reduce alone


def ring_bytes(size: int, payload: float) -> float:
    """Bytes that each of `size` processes sends in a ring all-reduce of `payload` bytes.

    Source: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009), theorem 1.

    >>> ring_bytes(1, 100), ring_bytes(2, 100), ring_bytes(4, 100)
    (0.0, 100.0, 150.0)
    """
    return 2 * (size - 1) / size * payload


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile.

    >>> quartiles([4.0, 1.0, 3.0, 2.0, 5.0])
    (2.0, 3.0, 4.0)
    """
    low, middle, high = np.percentile(values, (25, 50, 75)).tolist()
    return low, middle, high


def median(values: Sequence[float]) -> float:
    return quartiles(values)[1]


@dataclass(frozen=True)
class Losses:
    """Why a step takes longer in N processes than in one, in seconds. Noise may make values
    negative.
    """

    sharing: float  # by sharing the machine
    exchange: float
    ring: float  # predicted by the ring model for the gradients
    small: float  # predicted for all other messages: their number times the time of a small one

    @classmethod
    def of(cls, one: Measured, many: Measured) -> Losses:
        silent, times = median(many.silent), {size: median(seconds) for size, seconds in many.alone}
        sent = ring_bytes(many.processes, many.gradient_bytes)
        calls = sum(row[0] for what, row in many.moved.items() if what != "gradients")
        return cls(
            sharing=silent - median(one.step),
            exchange=median(many.step) - silent,
            ring=sent / bandwidth(many, many.gradient_bytes),
            small=calls * times[SMALL_MESSAGE],
        )


def bandwidth(found: Measured, payload: int) -> float:
    """Bytes per second that each process sends in an all-reduce of `payload` bytes alone."""
    return ring_bytes(found.processes, payload) / median(dict(found.alone)[payload])


def report(found: Sequence[Measured], setting: Setting) -> str:
    """The tables, then a verdict in words. found: ordered by number of processes, N = 1 first."""
    one, many = found[0], found[1:]
    parts = [head(one, many, setting), gain_table(found, setting.batch)]
    if many:
        parts += [
            loss_table(one, many),
            moved_table(many),
            bandwidth_table(many),
            group_table(many),
        ]
    parts += [data_table(found), *(verdict(one, each) for each in many)]
    if one.device.startswith("CPU") and many:
        parts.append(ON_A_CPU)
    return "\n\n".join(parts) + "\n"


def head(one: Measured, many: Sequence[Measured], setting: Setting) -> str:
    norm = "SyncBN" if setting.sync_bn else "BatchNorm per process"
    backend = f"{many[0].backend}, " if many else ""
    machine = f"{os.cpu_count()} cores {processor()}"
    return (
        f"# Scaling: {Path(setting.cfg).stem}, {setting.img} px; {machine}, {date.today()}\n\n"
        f"Each process, including the baseline: {one.device}; {backend}{one.precision}, {norm}; b "
        f"= {setting.batch}; "
        f"{setting.steps} steps after {setting.warmup} for warm-up, medians (quartiles). "
        f"Load average at the end {load()}. torch {torch.__version__}, Python "
        f"{platform.python_version()}."
    )


def load() -> str:
    """The load average of the last minute: more than this script's own processes means a busy
    machine.
    """
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def processor() -> str:
    """The processor's name, or the machine type if the name is unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def ms(seconds: Sequence[float]) -> str:
    """Median and quartiles.

    >>> ms([0.001, 0.002, 0.003, 0.004, 0.005])
    '3.00 (2.00 to 4.00)'
    """
    low, middle, high = (1000 * value for value in quartiles(seconds))
    digits = 1 if middle >= 100 else 2 if middle >= 1 else 3
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def gain_table(found: Sequence[Measured], batch: int) -> str:
    columns = (
        "N",
        "b per process: ms",
        "images/s",
        "T1(b) / TN(b)",
        "b in total: ms",
        "images/s",
        "T1(b) / (N TN(b/N))",
    )
    rows, base = [], median(found[0].step)
    for each in found:
        weak, strong = each.step, each.shared_out or each.step
        count, speed = each.processes, batch / median(strong)
        weak_gain, strong_gain = base / median(weak), base / (count * median(strong))
        total = count * batch / median(weak)
        row = (
            count,
            ms(weak),
            f"{total:.1f}",
            f"{weak_gain:.1%}",
            ms(strong),
            f"{speed:.1f}",
            f"{strong_gain:.1%}",
        )
        rows.append(row)
    return "Weak and strong scaling:\n\n" + table(columns, rows)


def loss_table(one: Measured, many: Sequence[Measured]) -> str:
    columns = (
        "N",
        "T1",
        "TN, no exchange: ms",
        "TN",
        "sharing",
        "exchange",
        "2(N-1)/N * K/w",
        "other messages",
    )
    rows = []
    for each in many:
        lost = Losses.of(one, each)
        times = (
            f"{1000 * value:.2f}" for value in (lost.sharing, lost.exchange, lost.ring, lost.small)
        )
        rows.append(
            (
                each.processes,
                f"{1000 * median(one.step):.2f}",
                ms(each.silent),
                ms(each.step),
                *times,
            )
        )
    return (
        "Where the time goes, ms for b images per process. *Sharing* is TN without exchange minus "
        "T1. *Exchange* is TN "
        "minus TN without exchange, including the wait for the slowest process. Next to it: the "
        "ring model's time for "
        "the gradients, and the number of other messages times the time of a small one:\n\n"
        + table(columns, rows)
    )


def moved_table(many: Sequence[Measured]) -> str:
    rows: list[tuple[object, ...]] = []
    for each in many:
        rows.append(
            (each.processes, "K: bytes of the gradients", "", f"{each.gradient_bytes:,}", "")
        )
        for what, (calls, size, sent) in each.moved.items():
            rows.append((each.processes, what, f"{calls:.0f}", f"{size:,.0f}", f"{sent:,.0f}"))
    columns = ("N", "what", "collectives", "bytes", "bytes sent in a ring")
    return "Counted per process and step:\n\n" + table(columns, rows)


def bandwidth_table(many: Sequence[Measured]) -> str:
    rows = [
        (each.processes, f"{size:,}", ms(seconds), f"{bandwidth(each, size) / 1e6:,.1f}")
        for each in many
        for size, seconds in each.alone
    ]
    return "An all-reduce alone:\n\n" + table(("N", "bytes", "ms", "w: MB/s"), rows)


def group_table(many: Sequence[Measured]) -> str:
    rows = [
        (each.processes, ms(each.every_batch), ms(each.last_batch), f"{saved_by_no_sync(each):.1%}")
        for each in many
    ]
    columns = ("N", "exchange after each: ms", "one exchange (no_sync): ms", "saved")
    return f"{GROUP} batches of b images per process in an optimizer step:\n\n" + table(
        columns, rows
    )


def saved_by_no_sync(found: Measured) -> float:
    return 1 - median(found.last_batch) / median(found.every_batch)


def data_table(found: Sequence[Measured]) -> str:
    rows = [
        (each.processes, each.workers, ms(each.step), ms(each.fed), f"{each.waiting:.1%}")
        for each in found
    ]
    columns = (
        "N",
        "workers per process",
        "a batch on the device: ms",
        "from the loader: ms",
        "waiting for data",
    )
    return "Generated shapes, b images per process:\n\n" + table(columns, rows)


def verdict(one: Measured, many: Measured) -> str:
    """What limits the speed, in words."""
    lost, base = Losses.of(one, many), median(one.step)
    excess = lost.sharing + lost.exchange
    parts = {
        "sharing the machine": lost.sharing,
        "exchange": lost.exchange,
        "data": many.waiting * median(many.fed),
    }
    spread = max(quartiles(each)[2] - quartiles(each)[0] for each in (one.step, many.step))
    most = max(parts, key=lambda part: parts[part])
    limit = (
        f"The limit is {most}."
        if parts[most] > spread
        else "No part exceeds the spread of the steps."
    )
    took = (
        f"{1000 * lost.sharing:+.1f} ms by sharing the machine, {1000 * lost.exchange:+.1f} "
        "ms by exchange"
    )
    model = f"{1000 * (lost.ring + lost.small):.1f} ms"
    return (
        f"N = {many.processes}: a step takes {1000 * excess:+.1f} ms ({excess / base:+.0%}) "
        "compared with one process: "
        f"{took}; the ring model and the small messages predict {model} for the exchange. With the "
        "loader it waits for "
        f"data {many.waiting:.0%} of the time. {limit}"
    )
