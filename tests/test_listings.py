"""The `__init__` of each package lists its public names; lazy listings load no library."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from utils.lazy_listing import lazy_listing

ROOT = Path(__file__).parents[1]
TOP = ("data", "models", "training", "utils")
PACKAGES = sorted(
    ".".join(file.parent.relative_to(ROOT).parts)
    for top in TOP
    for file in (ROOT / top).rglob("__init__.py")
    if "__all__" in file.read_text(encoding="utf-8")
)
HEAVY = {"torch", "numpy", "cv2", "matplotlib"}


def imported_names(package: str) -> dict[str, str]:
    """The module of each name that the listing imports, also if only for type checkers."""
    file = ROOT / package.replace(".", "/") / "__init__.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {
        alias.name: str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{package}.")
        for alias in node.names
    }


def test_each_top_package_has_a_listing():
    listed = {package.partition(".")[0] for package in PACKAGES}
    assert listed == {*TOP}


@pytest.mark.parametrize("package", PACKAGES)
def test_each_listed_name_is_that_of_its_module(package):
    listing = import_module(package)
    homes = imported_names(package)
    assert sorted(homes) == sorted(listing.__all__)
    for name, home in homes.items():
        assert getattr(listing, name) is getattr(import_module(home), name)


def test_unknown_name_is_an_attribute_error():
    _, get = lazy_listing("json", {"decoder": ["JSONDecoder"]})
    with pytest.raises(AttributeError, match=r"^module 'json' has no attribute 'other'$"):
        get("other")


def test_lazy_listings_load_no_heavy_library():
    """The settings and the launch flags, which parse a command line, come without them too."""
    script = """
import sys
import models, training, utils.distributed, utils.files, utils.plots
import training.settings.config, training.settings.hyperparameters, utils.command_line.yolov5_flags
from utils.distributed import Launch, read_launch
from utils.flags import FlagParser
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert {"utils.distributed.launch", "training.settings.config"} <= loaded
    assert not loaded & HEAVY
