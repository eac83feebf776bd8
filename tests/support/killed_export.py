"""Run export.py as a command, killed at several instants.

`main` prints a JSON list after each run: the instant, the exit status, and a hash of the exported
file, or null where there is none. Each run is forked from this process.
"""

import hashlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
INSTANTS = ["half written", "written", "replaced", "half written", "never"]
WRITE_BYTES = Path.write_bytes
REPLACE = os.replace


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_half(path: Path, content: bytes) -> int:
    WRITE_BYTES(path, content[: len(content) // 2])
    die()
    return 0


def replace_and_die(*paths: Any) -> None:
    REPLACE(*paths)
    die()


def run_until(instant: str, weights: Path) -> None:
    if instant == "half written":
        Path.write_bytes = write_half  # type: ignore[method-assign, assignment]
    if instant == "written":
        os.replace = die
    if instant == "replaced":
        os.replace = replace_and_die
    sys.argv = ["export.py", "--weights", str(weights)]
    runpy.run_path(str(ROOT / "export.py"), run_name="__main__")


def main(path: str) -> None:
    weights = Path(path)
    for instant in INSTANTS:
        pid = os.fork()
        if pid == 0:
            run_until(instant, weights)
        _, status = os.waitpid(pid, 0)

        file = weights.with_suffix(".torchscript")
        digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None
        print(json.dumps([instant, os.waitstatus_to_exitcode(status), digest]), flush=True)
