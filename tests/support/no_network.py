"""Run a user's commands one after another in this process, in which Python has no network access.

    python tests/support/no_network.py DATA.yaml MODEL.yaml FOLDER

An audit hook logs and rejects every attempt; it cannot be removed, and forked DataLoader workers
inherit it. The hook does not see what C code does, but in an empty network namespace (see
test_no_network.py) the kernel counts the packets that it could not send. The result is written to
FOLDER/found.json.

The first command has the home folder of the environment, the others one that cannot be written.
"""

import ctypes
import ftplib
import http.client
import json
import os
import runpy
import smtplib
import socket
import struct
import subprocess
import sys
import traceback
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NETWORK_EVENTS = (
    "socket.",
    "urllib.",
    "http.",
    "ftplib.",
    "smtplib.",
    "imaplib.",
    "poplib.",
    "nntplib.",
    "telnetlib.",
)
PROCESS_EVENTS = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "subprocess.Popen",
    "pty.spawn",
    "os.startfile",
)
ALLOWED_PROGRAMS = {
    "fc-list",
    "ldconfig",
    "gcc",
    "cc",
    "ld",
    "objdump",
}  # for matplotlib's fonts, and ctypes' find_library
# W&B's process, whose packets are counted, and what it asks about the machine.
PROGRAMS_OF_LOGGERS = {"wandb-core", "git", "uname"}
LOOPBACK = ("127.0.0.1", "::1", "localhost")
LOGGERS = [name for name in ("tensorboard", "wandb", "mlflow") if find_spec(name)]
# MLflow sends no usage data where one of these is set; a user's machine has none.
TEST_VARIABLES = ("PYTEST_", "CI", "GITHUB_", "JENKINS_", "BUILD", "WANDB_", "MLFLOW_")
NO_ROUTE_COUNTER = "IpOutNoRoutes"  # packets without a route, and connections that could not start
UNWRITABLE_HOME = "/dev/null"  # no folder can be created below it, not even by root
UNREACHABLE_ADDRESS = ("192.0.2.1", 9)  # a reserved address that no host has (RFC 5737)


# ---------------------------------------------------------------------- the hook


def is_local(event: str, values: Sequence[Any], *, of_loggers: bool = False) -> bool:
    """Whether an audit event does not use the network.

    of_loggers: sockets of this machine, and programs of the loggers, are allowed, too.
    """
    if of_loggers and is_local_for_loggers(event, values):
        return True
    if event in (
        "socket.__new__",
        "socket.bind",
        "socket.connect",
        "socket.sendto",
        "socket.sendmsg",
    ):
        family = values[1] if event == "socket.__new__" else values[0].family
        return family == socket.AF_UNIX  # used by DataLoader workers
    if event.startswith(PROCESS_EVENTS):
        return os.path.basename(os.fsdecode(values[0] or values[1][0])) in ALLOWED_PROGRAMS
    return event == "socket.gethostname"


def is_local_for_loggers(event: str, values: Sequence[Any]) -> bool:
    """Whether an event makes a socket, names this machine, or starts a program of a logger."""
    if event == "socket.__new__":
        return True
    if event in ("socket.bind", "socket.connect"):
        return values[1][0] in LOOPBACK
    if event == "subprocess.Popen":
        return os.path.basename(os.fsdecode(values[0])) in PROGRAMS_OF_LOGGERS
    return False


def block_network(notes: Path, now: dict[str, str]) -> None:
    """Install an audit hook: every network access raises PermissionError and adds a line to the
    file `notes`.

    now: its `command` is the name of the present one; that of the loggers may use local sockets.
    """

    def hook(event: str, values: tuple[Any, ...]) -> None:
        of_loggers = now["command"] == "logged"
        if event.startswith((*NETWORK_EVENTS, *PROCESS_EVENTS)) and not is_local(
            event, values, of_loggers=of_loggers
        ):
            with notes.open("a") as file:
                file.write(
                    f"{event} {values[:2]!r}\n"
                )  # without the environment, which may contain secrets
            raise PermissionError(f"no network here: {event}")

    notes.touch()
    sys.addaudithook(hook)


def blocked_attempts(notes: Path) -> dict[str, bool]:
    """Whether the hook rejected and logged each way to access the network."""
    ways: dict[str, Callable[[], object]] = {
        "socket": lambda: socket.socket().connect(UNREACHABLE_ADDRESS),
        "bound": lambda: socket.create_server(("127.0.0.1", 0)),
        "name": lambda: socket.getaddrinfo("kestrel.example", 80),
        "name alone": lambda: socket.gethostbyname("kestrel.example"),
        "urllib": lambda: urllib.request.urlopen("http://192.0.2.1/"),
        "http": lambda: http.client.HTTPConnection(*UNREACHABLE_ADDRESS).connect(),
        "ftp": lambda: ftplib.FTP(UNREACHABLE_ADDRESS[0]),  # noqa: S321
        "mail": lambda: smtplib.SMTP(*UNREACHABLE_ADDRESS),
        "program": lambda: subprocess.run(["true"]),
        "shell": lambda: os.system("true"),  # noqa: S605
    }
    found = {}
    for name, way in ways.items():
        before, refused = notes.read_text(), False
        try:
            way()
        except PermissionError as error:
            refused = "no network here" in str(error)
        found[name] = refused and notes.read_text() != before
    return found


# ---------------------------------------------------------------------- the kernel's count


def unsent_packets() -> int:
    """How many packets of all processes in this network namespace the kernel could not send, having
    no route.
    """
    with suppress(OSError):
        lines = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines()]
        for names, values in zip(lines[::2], lines[1::2], strict=True):
            counts = {
                names[0][:-1] + name: int(value)
                for name, value in zip(names[1:], values[1:], strict=True)
            }
            if NO_ROUTE_COUNTER in counts:
                return counts[NO_ROUTE_COUNTER]
    return 0


def connect_in_c() -> None:
    """Connect from C code, which no audit hook sees."""
    libc = ctypes.CDLL(None)
    address = struct.pack(
        "=HHI8x", socket.AF_INET, socket.htons(UNREACHABLE_ADDRESS[1]), 0x010200C0
    )
    with suppress(OSError):
        descriptor = libc.socket(int(socket.AF_INET), int(socket.SOCK_DGRAM), 0)
        libc.connect(descriptor, address, len(address))
        os.close(descriptor)


# ---------------------------------------------------------------------- the commands


def commands(data: str, model: str, folder: Path) -> dict[str, list[str]]:
    """Arguments of `python`, by name: training with plots, resuming, validation, detection, and the
    small commands.
    """
    flags = f"--img 64 --workers 1 --device cpu --project {folder}"
    trained, validated = folder / "trained", folder / "validated"
    files = f"{validated}/ground_truth.json {validated}/predictions.json"
    words = {
        "train": (
            f"train.py --data {data} --cfg {model} --batch 4 --epochs 1 --name trained {flags}"
        ),
        "resume": f"train.py --resume {trained} --epochs 2 --noplots",
        "logged": (
            f"train.py --data {data} --cfg {model} --batch 4 --epochs 1 --noplots --name logged "
            f"{flags} --loggers {' '.join(LOGGERS)}"
        ),
        "val": (
            f"val.py --weights {trained}/weights/best.pt --batch 4 --save-json --name "
            f"validated {flags}"
        ),
        "detect": (
            f"detect.py --weights {trained}/weights/best.pt --save-json --project {folder} --name "
            f"detected --source {Path(data).parent}/with-playlist --conf 0 --max-det 3 --device cpu"
        ),
        "evolve": (
            f"train.py --data {data} --cfg {model} --batch 4 --epochs 1 --evolve 1 --name evolved "
            f"{flags}"
        ),
        "models": "-m models yolov5n.yaml",
        "metrics": f"-m utils.metrics {files}",
        "shapes": f"-m data.shapes --root {folder}/shapes --train 2 --val 1 --size 64",
    }
    if find_spec("optuna"):
        (folder / "space.yaml").write_text("lr0: {low: 1e-3, high: 0.1}\n")
        words["tune"] = (
            f"-m training.tune --space {folder}/space.yaml --trials 1 --data {data} --cfg {model} "
            f"--batch 4 --epochs 1 --name tuned {flags}"
        )
    return {name: text.split() for name, text in words.items()}


def run(words: list[str]) -> Any:
    """Run `python WORDS` in this process; returns its exit code, or its traceback."""
    module = words[0] == "-m"
    sys.argv = words[module:]
    try:
        if module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        return traceback.format_exc()
    return 0


def main(data: str, model: str, folder_name: str) -> None:
    for name in [name for name in os.environ if name.startswith(TEST_VARIABLES)]:
        del os.environ[name]
    folder = Path(folder_name)
    notes, before = folder / "attempts.txt", unsent_packets()
    now = {"command": ""}
    block_network(notes, now)
    sys.path.insert(0, str(ROOT))
    codes = {}
    for name, words in commands(data, model, folder).items():
        now["command"] = name
        codes[name] = run(words)
        os.environ["HOME"] = UNWRITABLE_HOME
    now["command"] = ""
    found: dict[str, Any] = {
        "codes": codes,
        "attempts": notes.read_text(),
        "unsent": unsent_packets() - before,
    }
    found["blocked_attempts"] = blocked_attempts(notes)
    before = unsent_packets()
    connect_in_c()
    found["unsent from C"] = unsent_packets() - before
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
