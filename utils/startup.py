"""The first steps of a script, before its slow imports.

They are for standard streams, Ctrl-C, folders of packages, missing packages, and a limit of address
space. This module imports almost nothing, so that they are done as early as possible.
"""

import atexit
import getpass
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NoReturn

from utils.command_line.standard_streams import prepare_streams
from utils.requirements import missing_packages, requirements_error

LARGE_PACKAGES = ("torch", "torchvision", "cv2")  # gigabytes of shared libraries
# set in processes of --spawn, whose launcher reports Ctrl-C and killed processes
SPAWNED = "KESTREL_SPAWNED"


def prepare_script() -> None:
    """Prepare standard streams, Ctrl-C and folders; exit with one sentence if packages are missing.

    Call it before the imports of a script; `exit_code_of` takes over later.
    """
    prepare_streams()
    # not if it is ignored, as under nohup
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_interrupted)
    provide_folders_of_packages()
    exit_with(requirements_error(missing_packages(), "not installed"))


def provide_folders_of_packages() -> None:
    """Name folders of this process in the environment for packages that find none by themselves.

    They are for a user id that is unknown to the system, as in a container. Without a home folder,
    matplotlib before 3.11 raises an error when it is imported; without a user's name, torch 2.11
    does so when it imports its compiler, which each optimizer needs. Call it before both.
    """
    missing = []
    try:
        Path.home()
    except RuntimeError:
        missing.append("MPLCONFIGDIR")
    try:
        getpass.getuser()
    except (KeyError, OSError, ImportError):  # ImportError: on Windows
        missing.append("TORCHINDUCTOR_CACHE_DIR")

    for variable in missing:
        if not os.environ.get(variable):
            _provide_folder(variable)


def _provide_folder(variable: str) -> None:
    """Name a temporary folder in the environment, if one can be created."""
    import shutil
    import tempfile

    with suppress(OSError):
        folder = tempfile.mkdtemp(prefix="kestrel-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[variable] = folder


def exit_with(error: str) -> None:
    """Exit with code 2 and this sentence, in the first process; do nothing if it is empty."""
    if not error:
        return
    if is_first_process(os.environ):
        print(f"error: {error}", file=sys.stderr)
    sys.exit(2)


def require_address_space() -> None:
    """Exit with one sentence and code 1 if `ulimit -v` leaves too little address space.

    That is too little to load the large packages. Their C++ code aborts the process on a failed
    allocation ("std::bad_alloc"), or leaves out a library and fails later with another error. So,
    if there is a limit, they are first loaded in a child process. Call it just before the script
    loads them: it takes as long.
    """
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return
        child = os.fork()
    except (ImportError, AttributeError, OSError):
        # no such limits on this system, or no room for a process
        return
    if child == 0:
        _load_and_exit()

    _, status = os.waitpid(child, 0)
    if status == 0:
        return
    if is_first_process(os.environ):
        names = ", ".join(LARGE_PACKAGES)
        sentence = (
            f"{names} cannot be loaded in the {limit / 1e9:.2f} GB of address space "
            "that ulimit -v allows: raise it"
        )
        os.write(2, f"error: {sentence}\n".encode())
    sys.exit(1)


def _load_and_exit() -> NoReturn:
    """Load the large packages without output, and exit: with 0 unless memory is what is missing.

    Only a child process may call it.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)

    code = 0
    try:
        for name in LARGE_PACKAGES:
            import_module(name)
    except ImportError as error:  # a missing package is reported by the import in this script
        reason = str(error)
        code = int("failed to map" in reason or "allocate memory" in reason)
    except BaseException:  # a library that was left out fails in many ways
        code = 1
    os._exit(code)


def allow_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, if `prepare_script` changed that."""
    if signal.getsignal(signal.SIGINT) is _exit_interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def has_launcher(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher has set its variables, also those of a single process."""
    return bool(environment.keys() & {"RANK", "WORLD_SIZE", "SLURM_NTASKS"})


def is_first_process(environment: Mapping[str, str]) -> bool:
    """Return whether this process is rank 0, and so prints for all.

    environment: with the launcher's variables.
    """
    rank = environment.get("RANK") or environment.get("SLURM_PROCID") or "0"
    return rank == "0"


def _exit_interrupted(_: int, __: FrameType | None) -> None:
    """Exit at once.

    An import can turn a KeyboardInterrupt into another error, and torch's C++ code aborts on it.
    """
    try:
        if is_first_process(os.environ) and SPAWNED not in os.environ:
            os.write(2, b"interrupted\n")
    finally:  # standard error may be a pipe that nobody reads
        os._exit(130)
