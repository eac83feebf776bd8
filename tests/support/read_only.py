"""A folder that cannot be written, for one forked process and its children: KESTREL_FAULT=read_only:mount.

The process gets a view of the file system of its own, in which KESTREL_READ_ONLY is read-only, for root too. Where
views may not be made, read_only:check makes sure that the folder's mode keeps this user out.
"""

import ctypes
import os
import subprocess
from contextlib import suppress
from pathlib import Path

NEW_VIEW, NEW_USER = 0x00020000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER


def mount() -> None:
    """Make the folder read-only, in this process's view. Raises AssertionError if it can be written all the same."""
    folder = os.environ["KESTREL_READ_ONLY"]
    _leave()
    for words in ("--make-rprivate /", f"--bind {folder} {folder}", f"-o remount,bind,ro {folder}"):
        subprocess.run(["mount", *words.split()], check=True)
    check()


def check() -> None:
    """Raises AssertionError if the folder can be written."""
    folder = os.environ["KESTREL_READ_ONLY"]
    with suppress(OSError):
        Path(folder, "written").touch()
        raise AssertionError(f"{folder} can be written")


def _leave() -> None:
    """Into a view of its own: as root, or as root of a namespace of its own."""
    user, group = os.getuid(), os.getgid()
    if user == 0 and not _unshare(NEW_VIEW):
        return
    if wrong := _unshare(NEW_VIEW | NEW_USER):
        raise OSError(wrong, os.strerror(wrong))
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        Path("/proc/self", name).write_text(text)


def _unshare(what: int) -> int:
    """0, or the number of the error."""
    libc = ctypes.CDLL(None, use_errno=True)
    return ctypes.get_errno() if libc.unshare(what) else 0
