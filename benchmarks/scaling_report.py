"""The report of benchmarks/scaling.py: what it measured, the arithmetic on it, and its tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import numpy as np

from benchmarks.report import processor, table, versions
from benchmarks.timed_steps import Setting

GROUP = 4  # batches per optimizer step in the passes with gradient accumulation
SMALL_MESSAGE = 4096  # bytes: its time is latency only

ON_A_CPU = (
    "On a CPU the processes share memory bandwidth, caches and clock speed even if each has its "
    "own cores. The column *sharing* shows what that costs: a faster network would not change it, "
    "and processes on separate machines would not have it. DataLoader workers use cores as well."
)


@dataclass
class Measured:
    """The results of a launch of N processes.

    Lists are the seconds of each step of a pass, [] if it is skipped; bytes are per process.
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
    # {what: [calls, bytes, bytes sent in a ring]}
    moved: dict[str, list[float]] = field(default_factory=dict)
    # bytes and seconds of an all-reduce alone
    alone: list[tuple[int, list[float]]] = field(default_factory=list)


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
    """Why a step takes longer in N processes than in one, in seconds; noise may be negative."""

    sharing: float  # by sharing the machine
    exchange: float
    ring: float  # predicted by the ring model for the gradients
    small: float  # predicted for all other messages: their number times the time of a small one

    @classmethod
    def of(cls, one: Measured, many: Measured) -> Losses:
        silent = median(many.silent)
        gradient_bytes = ring_bytes(many.processes, many.gradient_bytes)
        messages = [row[0] for what, row in many.moved.items() if what != "gradients"]
        latency = median(dict(many.alone)[SMALL_MESSAGE])
        return cls(
            sharing=silent - median(one.step),
            exchange=median(many.step) - silent,
            ring=gradient_bytes / bandwidth(many, many.gradient_bytes),
            small=sum(messages) * latency,
        )


def bandwidth(found: Measured, payload: int) -> float:
    """Bytes per second that each process sends in an all-reduce of `payload` bytes alone."""
    seconds = median(dict(found.alone)[payload])
    return ring_bytes(found.processes, payload) / seconds


def report(found: Sequence[Measured], setting: Setting) -> str:
    """The tables, then a verdict in words. found: ordered by number of processes, N = 1 first."""
    one, *many = found
    parts = [head(one, many, setting), gain_table(found, setting.batch)]
    if many:
        parts += [loss_table(one, many), moved_table(many)]
        parts += [bandwidth_table(many), group_table(many)]
    parts.append(data_table(found))

    parts += [verdict(one, each) for each in many]
    if one.device.startswith("CPU") and many:
        parts.append(ON_A_CPU)
    return "\n\n".join(parts)


def head(one: Measured, many: Sequence[Measured], setting: Setting) -> str:
    norm = "SyncBN" if setting.sync_bn else "BatchNorm per process"
    backend = f"{many[0].backend}, " if many else ""
    model = f"{Path(setting.cfg).stem}, {setting.img} px"
    machine = f"{os.cpu_count()} cores {processor()}"
    return (
        f"# Scaling: {model}; {machine}, {date.today()}\n\n"
        f"Each process, including the baseline: {one.device}; {backend}{one.precision}, {norm}; b "
        f"= {setting.batch}; {setting.steps} steps after {setting.warmup} for warm-up, medians "
        f"(quartiles). Load average at the end {load()}. {versions()}."
    )


def load() -> str:
    """The load average of the last minute, which shows whether others use the machine."""
    if not hasattr(os, "getloadavg"):
        return "unknown"
    return f"{os.getloadavg()[0]:.1f}"


def ms(seconds: Sequence[float]) -> str:
    """Median and quartiles.

    >>> ms([0.001, 0.002, 0.003, 0.004, 0.005])
    '3.00 (2.00 to 4.00)'
    """
    low, middle, high = (1000 * value for value in quartiles(seconds))
    if middle >= 100:
        digits = 1
    elif middle >= 1:
        digits = 2
    else:
        digits = 3
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def gain_table(found: Sequence[Measured], batch: int) -> str:
    rows = []
    base = median(found[0].step)
    for each in found:
        count = each.processes
        weak = each.step
        strong = each.shared_out or each.step

        row: list[object] = [count]
        row += [ms(weak), f"{count * batch / median(weak):.1f}", f"{base / median(weak):.1%}"]
        row += [ms(strong), f"{batch / median(strong):.1f}"]
        row += [f"{base / (count * median(strong)):.1%}"]
        rows.append(row)

    weak_columns = ["b per process: ms", "images/s", "T1(b) / TN(b)"]
    strong_columns = ["b in total: ms", "images/s", "T1(b) / (N TN(b/N))"]
    columns = ["N", *weak_columns, *strong_columns]
    return f"Weak and strong scaling:\n\n{table(columns, rows)}"


def loss_table(one: Measured, many: Sequence[Measured]) -> str:
    rows = []
    for each in many:
        lost = Losses.of(one, each)
        row: list[object] = [each.processes, f"{1000 * median(one.step):.2f}"]
        row += [ms(each.silent), ms(each.step)]
        for seconds in (lost.sharing, lost.exchange, lost.ring, lost.small):
            row.append(f"{1000 * seconds:.2f}")
        rows.append(row)

    columns = ["N", "T1", "TN, no exchange: ms", "TN"]
    columns += ["sharing", "exchange", "2(N-1)/N * K/w", "other messages"]
    return (
        "Where the time goes, ms for b images per process. *Sharing* is TN without exchange minus "
        "T1. *Exchange* is TN minus TN without exchange, including the wait for the slowest "
        "process. Next to it: the ring model's time for the gradients, and the number of other "
        f"messages times the time of a small one:\n\n{table(columns, rows)}"
    )


def moved_table(many: Sequence[Measured]) -> str:
    rows: list[Sequence[object]] = []
    for each in many:
        count = each.processes
        rows.append([count, "K: bytes of the gradients", "", f"{each.gradient_bytes:,}", ""])
        for what, (calls, size, sent) in each.moved.items():
            rows.append([count, what, f"{calls:.0f}", f"{size:,.0f}", f"{sent:,.0f}"])

    columns = ["N", "what", "collectives", "bytes", "bytes sent in a ring"]
    return f"Counted per process and step:\n\n{table(columns, rows)}"


def bandwidth_table(many: Sequence[Measured]) -> str:
    rows = []
    for each in many:
        for size, seconds in each.alone:
            megabytes_s = bandwidth(each, size) / 1e6
            rows.append([each.processes, f"{size:,}", ms(seconds), f"{megabytes_s:,.1f}"])
    return f"An all-reduce alone:\n\n{table(['N', 'bytes', 'ms', 'w: MB/s'], rows)}"


def group_table(many: Sequence[Measured]) -> str:
    rows = []
    for each in many:
        saved = f"{saved_by_no_sync(each):.1%}"
        rows.append([each.processes, ms(each.every_batch), ms(each.last_batch), saved])

    what = f"{GROUP} batches of b images per process in an optimizer step"
    columns = ["N", "exchange after each: ms", "one exchange (no_sync): ms", "saved"]
    return f"{what}:\n\n{table(columns, rows)}"


def saved_by_no_sync(found: Measured) -> float:
    return 1 - median(found.last_batch) / median(found.every_batch)


def data_table(found: Sequence[Measured]) -> str:
    rows = []
    for each in found:
        waiting = f"{each.waiting:.1%}"
        rows.append([each.processes, each.workers, ms(each.step), ms(each.fed), waiting])

    columns = ["N", "workers per process", "a batch on the device: ms"]
    columns += ["from the loader: ms", "waiting for data"]
    return f"Generated shapes, b images per process:\n\n{table(columns, rows)}"


def verdict(one: Measured, many: Measured) -> str:
    """What limits the speed, in words."""
    lost = Losses.of(one, many)
    base = median(one.step)
    excess = lost.sharing + lost.exchange
    parts = {
        "sharing the machine": lost.sharing,
        "exchange": lost.exchange,
        "data": many.waiting * median(many.fed),
    }

    most = max(parts, key=lambda part: parts[part])
    spread = max(interquartile_range(one.step), interquartile_range(many.step))
    limit = "No part exceeds the spread of the steps."
    if parts[most] > spread:
        limit = f"The limit is {most}."

    sharing = f"{1000 * lost.sharing:+.1f} ms by sharing the machine"
    exchange = f"{1000 * lost.exchange:+.1f} ms by exchange"
    model = f"{1000 * (lost.ring + lost.small):.1f} ms"
    return (
        f"N = {many.processes}: a step takes {1000 * excess:+.1f} ms ({excess / base:+.0%}) "
        f"compared with one process: {sharing}, {exchange}; the ring model and the small messages "
        f"predict {model} for the exchange. With the loader it waits for data "
        f"{many.waiting:.0%} of the time. {limit}"
    )


def interquartile_range(values: Sequence[float]) -> float:
    low, _, high = quartiles(values)
    return high - low
