"""Whether the packages of requirements.txt are installed, in the versions that it allows.

It imports almost nothing, since the scripts ask before they import any package.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

FILE = Path(__file__).parents[1] / "requirements.txt"
# the modules of packages that are imported by another name
MODULES = {"opencv-python": "cv2", "PyYAML": "yaml"}


def read_requirements(text: str) -> dict[str, str]:
    """Return the lowest version of each package in a requirements file.

    >>> read_requirements("# For running.\\ntorch>=2.11\\nopencv-python>=4.9  # needs libGL\\n")
    {'torch': '2.11', 'opencv-python': '4.9'}
    """
    lowest = {}
    for line in text.splitlines():
        requirement = line.partition("#")[0].strip()
        if requirement:
            package, _, version = requirement.partition(">=")
            lowest[package] = version
    return lowest


def missing_packages() -> list[str]:
    """Return the packages that are not installed."""
    packages = read_requirements(FILE.read_text())
    return [name for name in packages if find_spec(MODULES.get(name, name)) is None]


def old_packages() -> list[str]:
    """Return the packages that are older than requirements.txt allows, with both versions.

    One that is installed under another name, such as opencv-python-headless, is not looked at.
    """
    # costs 30 ms, which the help of a script need not pay
    from importlib.metadata import PackageNotFoundError, version

    old = []
    for package, lowest in read_requirements(FILE.read_text()).items():
        try:
            installed = version(package)
        except PackageNotFoundError:
            continue
        if release(installed) < release(lowest):
            old.append(f"{package} {installed} (needs {lowest} or newer)")
    return old


def requirements_error(packages: list[str], state: str) -> str:
    """Return the sentence for packages in a state, with the command to install them; "" for none.

    >>> sentence = requirements_error(["torch", "tqdm"], "not installed")
    >>> sentence.partition(": ")[0]
    'torch, tqdm are not installed'
    """
    if not packages:
        return ""
    verb = "is" if len(packages) == 1 else "are"
    command = f"{sys.executable} -m pip install -r {FILE}"
    return f"{', '.join(packages)} {verb} {state}: {command}"


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version's release.

    >>> release("2.11.0+cu128"), release("2.11"), release("5.0.0a1")
    ((2, 11), (2, 11), (5,))
    """
    numbers = []
    for part in version.partition("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
