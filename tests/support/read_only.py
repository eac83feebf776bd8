"""Make a folder read-only for one forked process and its children: KESTREL_FAULT=read_only:mount.

The process gets its own mount namespace, in which the folder KESTREL_READ_ONLY is read-only, for
root too. Where namespaces are not allowed, read_only:check checks that the folder's mode denies
this user write access.
"""

import ctypes
import os
import subprocess
from contextlib import suppress
from pathlib import Path

NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER


def mount() -> None:
    """Make the folder read-only in a new mount namespace. Raises AssertionError if it is still
    writable.
    """
    folder = os.environ["KESTREL_READ_ONLY"]
    _enter_namespace()
    for words in ("--make-rprivate /", f"--bind {folder} {folder}", f"-o remount,bind,ro {folder}"):
        subprocess.run(["mount", *words.split()], check=True)
    check()


def check() -> None:
    """Raise AssertionError if the folder is writable."""
    folder = os.environ["KESTREL_READ_ONLY"]
    with suppress(OSError):
        Path(folder, "written").touch()
        raise AssertionError(f"{folder} is writable")


def _enter_namespace() -> None:
    """Enter a new mount namespace: directly if this user is root, else with a new user
    namespace.
    """
    user, group = os.getuid(), os.getgid()
    if user == 0 and not _unshare(NEW_MOUNTS):
        return
    if error_number := _unshare(NEW_MOUNTS | NEW_USER):
        raise OSError(error_number, os.strerror(error_number))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {user} 1"),
        ("gid_map", f"0 {group} 1"),
    ):
        Path("/proc/self", name).write_text(text)


def _unshare(flags: int) -> int:
    """Call unshare(2). Returns 0 or errno."""
    libc = ctypes.CDLL(None, use_errno=True)
    return ctypes.get_errno() if libc.unshare(flags) else 0
