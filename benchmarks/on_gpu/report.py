"""The results of benchmarks/gpu.py: Markdown, JSON, the whole output, and a short text."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

from benchmarks.on_gpu.running import CUT_SHORT, ERROR, LEFT_OUT, PASSED, Outcome
from utils.files.writers import write_json, write_text

NAMES = ("gpu.md", "gpu.json", "gpu.log")
MAX_WRONG = 6  # findings of a stage in the summary
MAX_OUTPUT = 4  # last lines of the output of a stage that ended with an error, in the summary


def write_results(folder: Path, outcomes: Sequence[Outcome], logs: Path, about: str) -> None:
    """Write the three files.

    logs: folder with the output of each stage. about: the command and the total time.
    """
    write_text(folder / "gpu.md", "\n".join(markdown(outcomes, about)))

    stages = [asdict(outcome) for outcome in outcomes]
    write_json(folder / "gpu.json", {"date": str(date.today()), "about": about, "stages": stages})

    by_age = sorted(logs.glob("*.txt"), key=lambda file: file.stat().st_mtime)
    write_text(folder / "gpu.log", "".join(map(section, by_age)))


def section(log: Path) -> str:
    """The output of a stage under its name."""
    output = log.read_text(encoding="utf-8", errors="replace")
    return f"===== {log.stem}\n{output}\n"


def markdown(outcomes: Sequence[Outcome], about: str) -> list[str]:
    """A table of all stages, then the findings of each."""
    found = [finding.text for outcome in outcomes for finding in outcome.findings]
    first = found[0] if found else "no stage has run"  # of the stage that describes the machine
    lines = [f"# {first}", "", f"{about}, {date.today()}", ""]

    lines += ["| stage | result | seconds |", "| --- | --- | --- |"]
    for outcome in outcomes:
        lines.append(f"| {outcome.stage} | {result(outcome)} | {seconds(outcome)} |")

    for outcome in outcomes:
        if outcome.ran:
            lines += ["", f"## {outcome.stage}: {result(outcome)}", ""]
            lines += [f"- {mark(finding.good)}{finding.text}" for finding in outcome.findings]
            if outcome.output:
                lines += ["", "```text", *outcome.output, "```"]
    return [*lines, ""]


def summary(outcomes: Sequence[Outcome], folder: Path) -> list[str]:
    """What is printed at the end: a line for each stage, what is wrong or left out, the files."""
    lines = []
    for outcome in outcomes:
        lines.append(f"{outcome.stage:18} {seconds(outcome):>6}  {result(outcome)}")
        if outcome.is_bad:
            wrong = [finding.text for finding in outcome.findings if finding.good is False]
            lines += [f"    {text[:200]}" for text in wrong[:MAX_WRONG]]
        if outcome.status == ERROR:
            lines += [f"    {line}" for line in outcome.output[-MAX_OUTPUT:]]

    bad = sum(outcome.is_bad for outcome in outcomes)
    passed = sum(outcome.status == PASSED for outcome in outcomes)
    rest = len(outcomes) - passed - bad
    counts = f"{passed} passed, {bad} did not, {rest} did not run or had too little time"
    lines.append(f"stages: {counts}")

    late = [outcome.stage for outcome in outcomes if outcome.status in (LEFT_OUT, CUT_SHORT)]
    if late:
        lines.append(f"too little time for {', '.join(late)}")
    files = [str(folder / name) for name in NAMES]
    return [*lines, f"results: {', '.join(files)}"]


def result(outcome: Outcome) -> str:
    """The status, with the reason if there is one: "skipped: needs CUDA"."""
    if not outcome.reason:
        return outcome.status
    return f"{outcome.status}: {outcome.reason}"


def seconds(outcome: Outcome) -> str:
    return f"{outcome.seconds:.1f}" if outcome.ran else "-"


def mark(good: bool | None) -> str:
    """What a finding's line starts with; nothing for a measurement."""
    return {True: "ok: ", False: "**wrong**: ", None: ""}[good]
