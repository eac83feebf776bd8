"""Exit codes and error messages of a script."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tqdm import tqdm

from utils.terminal import exit_code_of, print_lines, quiet_output

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from utils.terminal import run_and_exit
def run():
    {body}
run_and_exit(run)
"""


def run_script(body: str, **environment: str) -> tuple[int, str]:
    command = [sys.executable, "-c", SCRIPT.format(body=body)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ("pass", 0, ""),
        (
            "raise ValueError('--epochs 0: train for 1 epoch or more')",
            2,
            "error: --epochs 0: train for 1 epoch or more\n",
        ),
        (
            r"raise ValueError('a\nerror: b \x1b[2J\udcff.txt: no')",
            2,
            "error: a\\nerror: b \\x1b[2J\\udcff.txt: no\n",
        ),
        (
            r"raise ValueError('choose one\n    --data a\nb\n    --data c')",
            2,
            "error: choose one\n    --data a\\nb\n    --data c\n",
        ),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
        (
            "import os; os.environ['KESTREL_SPAWNED'] = '1'; raise KeyboardInterrupt",
            130,
            "",
        ),  # the launcher reports it
        ("sys.exit(3)", 3, ""),
        ("raise MemoryError", 1, "error: out of memory (host RAM)\n"),
        (
            "raise MemoryError('std::bad_alloc')",
            1,
            "error: out of memory (host RAM): std::bad_alloc\n",
        ),
    ],
)
@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "2"}])
def test_exit_codes_and_error_messages_of_a_script(body, code, text, environment):
    assert run_script(body, **environment) == (code, text)


def test_printed_control_characters_are_escaped(capsys):
    print_lines("two lines\nof \x1b[31ma.yaml\r, é")
    assert capsys.readouterr().out == "two lines\nof \\x1b[31ma.yaml\\r, é\n"


def test_distributed_process_ends_its_children_on_exit():
    """It exits with os._exit, but first ends its child processes, which would keep stderr open."""
    child = (
        "import multiprocessing as m, time; m.Process(target=time.sleep, args=(60,), "
        "daemon=True).start()"
    )
    assert run_script(f"{child}; print('late', end='', file=sys.stderr)", WORLD_SIZE="2") == (
        0,
        "late",
    )


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "2"}])
def test_unexpected_error_keeps_its_traceback(environment):
    code, text = run_script("raise KeyError('x')", **environment)
    assert code == 1
    assert text.startswith("Traceback")
    assert text.endswith("KeyError: 'x'\n")


def test_kestrel_traceback_variable_adds_traceback():
    code, text = run_script("raise ValueError('no')", KESTREL_TRACEBACK="1")
    assert code == 2
    assert text.startswith("Traceback")
    assert text.endswith("error: no\n")


def test_disk_error_is_one_line():
    code, text = run_script(
        "import errno, os; raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "
        "'runs/exp/last.pt')"
    )
    assert (code, text) == (1, "error: runs/exp/last.pt: No space left on device\n")
    code, text = run_script(
        "import errno, os; raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), 'last.pt')"
    )
    assert (code, text) == (
        1,
        "error: last.pt: File too large (over the limit of ulimit -f or of the disk)\n",
    )
    code, text = run_script("open('x' * 300)")
    assert (code, text) == (1, f"error: {'x' * 300}: File name too long\n")
    code, text = run_script("open('/dev/null/x')")  # not a directory: a bug of ours
    assert code == 1
    assert text.startswith("Traceback")


def test_printing_unencodable_characters_does_not_fail():
    assert run_script(
        "from utils.terminal import print_lines; print_lines('\\u6f22')", PYTHONIOENCODING="ascii"
    ) == (
        0,
        "",
    )


def test_printing_without_stdout_does_not_fail():
    assert run_script(
        "from utils.terminal import print_lines; sys.stdout = None; print_lines('a')"
    ) == (0, "")


# ---------------------------------------------------------------------- a terminal that is closed

LOST = """
import os, signal
from contextlib import suppress
from tqdm import tqdm
from utils.terminal import print_lines, run_and_exit
def run():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.write(1, b"ready")
    with suppress(OSError):
        os.read(0, 1)  # returns, or raises, when the terminal is closed
    for number in tqdm(range(3), mininterval=0):
        print_lines(f"step {{number}}")  # the bar writes to stderr, the lines to stdout
    {end}
run_and_exit(run)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pseudo-terminals")
@pytest.mark.parametrize(
    ("end", "code"), [("pass", 0), ("raise ValueError('no')", 2), ("raise KeyboardInterrupt", 130)]
)
def test_program_goes_on_when_its_terminal_is_closed(end, code):
    """The connection is lost, and the program ignores SIGHUP: without its output it still ends with
    its own code.
    """
    import pty  # not on Windows

    parent, child = pty.openpty()
    command = [sys.executable, "-c", LOST.format(end=end)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=child, stdout=child, stderr=child)
    os.close(child)
    assert b"ready" in os.read(parent, 1000)
    os.close(parent)
    assert process.wait(60) == code


CLOSED_PIPE = """
import sys
from tqdm import tqdm
from utils.terminal import print_lines, run_and_exit
def run():
    for number in tqdm(range(3), mininterval=0, disable=False):
        print_lines("to stdout")
        print("by Python's own print")
    {end}
run_and_exit(run)
"""


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize(
    ("end", "code"), [("pass", 0), ("raise ValueError('no')", 2), ("raise KeyboardInterrupt", 130)]
)
def test_program_goes_on_when_nobody_reads_its_pipes(end, code, unbuffered):
    """Such as `| head`: it ends as always, and prints no traceback at exit."""
    reader, writer = os.pipe()
    os.close(reader)
    interpreter = [sys.executable, "-u"] if unbuffered else [sys.executable]
    command = [*interpreter, "-c", CLOSED_PIPE.format(end=end)]
    both = subprocess.Popen(command, cwd=ROOT, stdout=writer, stderr=writer)
    one = subprocess.Popen(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    _, err = one.communicate(timeout=300)
    assert (both.wait(60), one.returncode) == (code, code)
    assert "Traceback" not in err
    assert "ignored" not in err


AT_EXIT = """
import atexit, os, signal, sys
from utils.terminal import run_and_exit
class Workers:
    def __del__(self):  # such as a DataLoader's, which waits for its workers
        os.kill(os.getpid(), signal.SIGINT)
def run():
    workers = Workers()
    {end}
if sys.argv[1:]:
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
run_and_exit(run)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("late", [[], ["at exit"]])
def test_second_ctrl_c_ends_an_exit_without_a_traceback(late):
    command = [sys.executable, "-c", AT_EXIT.format(end="raise KeyboardInterrupt"), *late]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr in ("", "interrupted\n")


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_during_the_exit_of_a_finished_program_keeps_its_code():
    command = [sys.executable, "-c", AT_EXIT.format(end="del workers.__class__.__del__"), "late"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
def test_other_errors_of_the_output_are_reported(tmp_path):
    """A full disk is not a closed terminal."""
    with open("/dev/full", "w") as full:
        command = [
            sys.executable,
            "-c",
            SCRIPT.format(body="from utils.terminal import print_lines; print_lines('a')"),
        ]
        done = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.stderr.startswith("error: No space left on device\n")


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_output_prints_only_errors(quiet, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with quiet_output(quiet):
        print_lines("a line")
        bar_is_shown = not tqdm([], disable=None).disable
        print("a warning", file=sys.stderr)
    print("after", file=sys.stderr)
    written = capsys.readouterr()
    assert written.out == ("" if quiet else "a line\n")
    assert bar_is_shown is not quiet
    assert "a warning\n" in written.err
    assert written.err.endswith("after\n")


def test_errors_of_a_quiet_block_are_reported(capsys):
    def run() -> None:
        with quiet_output(True):
            print_lines("a line")
            raise ValueError("lr0 is nan")

    assert exit_code_of(run) == 2
    assert capsys.readouterr() == ("", "error: lr0 is nan\n")
