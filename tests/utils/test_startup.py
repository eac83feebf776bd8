"""The start of a script: closed standard streams, and Ctrl-C during the imports."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from utils import startup
from utils.startup import (
    allow_interrupts,
    is_first_process,
    prepare_script,
    provide_folders_of_packages,
)

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="needs POSIX file descriptors and signals"
)


def run_in_shell(
    program: str, redirections: str = "", limit_kb: int | None = None, **environment: str
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a program that a shell starts with these redirections.

    limit_kb: of the address space.
    """
    limit = f"ulimit -v {limit_kb} && " if limit_kb else ""
    command = ["bash", "-c", f'{limit}exec "$@" {redirections}', "-", sys.executable, "-c", program]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


WRITE = """
import os, sys
from utils.startup import prepare_script
prepare_script()
file = open(sys.executable, "rb")
print("out"), print("err", file=sys.stderr), sys.stdout.flush(), os.write(1, b"1"), os.write(2, b"2")
sys.exit(file.fileno() < 3 or sys.stdin.read() != "")
"""  # noqa: E501


@pytest.mark.parametrize(
    ("redirections", "out", "err"),
    [
        ("</dev/null", "out\n1", "err\n2"),
        ("</dev/null 2>&-", "out\n1", ""),
        ("</dev/null >&-", "", "err\n2"),
        ("<&- >&- 2>&-", "", ""),
    ],
)
def test_closed_streams_accept_and_discard_output(redirections, out, err):
    """And the next opened file gets a descriptor above 2."""
    assert run_in_shell(WRITE, redirections) == (0, out, err)


def test_child_processes_inherit_reopened_streams():
    start = (
        "import subprocess, sys; from utils.startup import prepare_script; "
        f"prepare_script(); child = {WRITE!r}; "
    )
    assert (
        run_in_shell(
            start + "sys.exit(subprocess.run([sys.executable, '-c', child]).returncode)",
            "<&- >&- 2>&-",
        )[0]
        == 0
    )


LIMITED = """
from utils import startup
startup.LARGE_PACKAGES = {packages!r}
startup.require_address_space()
print("started")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not enforce ulimit -v")
def test_too_little_address_space_for_packages_is_a_fault_with_one_sentence():
    """torch's libraries have gigabytes; their C++ code would abort the process with std::bad_alloc,
    exit code 134.
    """
    code, out, err = run_in_shell(LIMITED.format(packages=("torch",)), limit_kb=300_000, RANK="")
    assert (code, out) == (1, "")
    assert err == (
        "error: torch cannot be loaded in the 0.31 GB of address space that ulimit -v "
        "allows: raise it\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not enforce ulimit -v")
def test_help_and_mistakes_do_not_wait_for_packages_under_a_limit():
    """Loading torch in another process first takes seconds; neither needs torch."""
    for flag, expected in (("--help", 0), ("--no-such-flag", 2)):
        start = (
            f"import runpy, sys; sys.argv = ['train.py', '{flag}']; "
            "runpy.run_path('train.py', run_name='__main__')"
        )
        assert run_in_shell(start, limit_kb=300_000, OMP_NUM_THREADS="1")[0] == expected


@pytest.mark.parametrize("packages", [("json",), ("no_such_package_as_this",)])
def test_enough_address_space_or_a_missing_package_lets_the_script_start(packages):
    found = run_in_shell(LIMITED.format(packages=packages), limit_kb=60_000_000)
    assert found == (0, "started\n", "")


INTERRUPT = """
import os, runpy, signal, sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.path.insert(0, os.getcwd())
sys.argv = ["{script}"]
runpy.run_path("{script}", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["utils.distributed.launch", "utils.flags", "torch", "utils.distributed.session"]
)
@pytest.mark.parametrize("script", ["train.py", "val.py"])
def test_ctrl_c_during_imports_exits_130(script, module):
    program = INTERRUPT.format(script=script, module=module)
    assert run_in_shell(program) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("environment", "err"),
    [({"RANK": "0"}, "interrupted\n"), ({"RANK": "1"}, ""), ({"KESTREL_SPAWNED": "1"}, "")],
)
def test_only_first_process_reports_ctrl_c_during_imports(environment, err):
    program = INTERRUPT.format(script="val.py", module="utils.flags")
    assert run_in_shell(program, **environment) == (130, "", err)


def test_ignored_interrupt_stays_ignored():
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    prepare = (
        "from utils.startup import prepare_script; prepare_script(); "
        "signal.raise_signal(signal.SIGINT)"
    )
    assert run_in_shell(ignore + prepare) == (0, "", "")


def test_allow_interrupts_restores_default_handler():
    prepare_script()
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    allow_interrupts()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_is_first_process_by_launcher_variables():
    assert is_first_process({})
    assert is_first_process({"RANK": "0", "SLURM_PROCID": "3"})
    assert not is_first_process({"RANK": "1"})
    assert not is_first_process({"RANK": "", "SLURM_PROCID": "1"})


# ---------------------------------------------------------------------- folders of packages


def raise_unknown(error: Exception) -> NoReturn:
    raise error


UNKNOWN = {
    "MPLCONFIGDIR": ("Path.home", RuntimeError("Could not determine home directory.")),
    "TORCHINDUCTOR_CACHE_DIR": ("getpass.getuser", KeyError("uid not found: 54321")),
}


@pytest.mark.parametrize("variable", UNKNOWN)
def test_packages_get_folders_where_the_user_is_unknown_only(variable, monkeypatch):
    removed = []
    monkeypatch.setattr(startup.atexit, "register", lambda *given, **_: removed.append(given[1]))
    for name in UNKNOWN:
        monkeypatch.delenv(name, raising=False)
    provide_folders_of_packages()
    assert not UNKNOWN.keys() & os.environ.keys()

    place, error = UNKNOWN[variable]
    monkeypatch.setattr(f"utils.startup.{place}", lambda: raise_unknown(error))
    provide_folders_of_packages()
    folder = os.environ[variable]
    assert os.listdir(folder) == []
    assert removed == [folder]
    os.rmdir(folder)
    assert len(UNKNOWN.keys() & os.environ.keys()) == 1

    # The user's own is kept.
    monkeypatch.setenv(variable, "given")
    provide_folders_of_packages()
    assert os.environ[variable] == "given"
