"""utils/optional_packages.py: a package that is missing gives one sentence with the pip command."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from utils.optional_packages import import_all_optional, import_optional


def test_missing_package_is_named_with_its_pip_command(monkeypatch):
    for name in ("no_such_package", "no_such_package.inner"):
        with pytest.raises(
            ValueError,
            match=r"^reading needs the package no_such_package: pip install no_such_package",
        ):
            import_optional(name, "reading")
    monkeypatch.setitem(
        sys.modules, "onnx", None
    )  # as Python marks a module that cannot be imported
    with pytest.raises(ValueError, match="pip install onnx"):
        import_optional("onnx", "reading")


def test_several_missing_packages_are_named_once_each(monkeypatch):
    for package in ("aaa", "bbb"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ValueError, match=r"^a test needs the packages aaa and bbb: pip install aaa bbb$"
    ):
        import_all_optional(["json", "aaa", "bbb.part", "bbb"], "a test")
    with pytest.raises(ValueError, match=r"^a test needs the package aaa: pip install aaa$"):
        import_all_optional(["aaa", "json"], "a test")
    assert import_all_optional([], "a test") == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_part", "No module named 'no_such_part'"),
        ("import math; math.no_such_name", "module 'math' has no attribute 'no_such_name'"),
    ],
)
def test_package_that_is_installed_but_broken_is_shown_with_the_reason(
    monkeypatch, tmp_path, code, reason
):
    (tmp_path / "broken_package.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=rf"pip install broken_package \({reason}\)$"):
        import_optional("broken_package", "a test")


@pytest.mark.slow
@pytest.mark.parametrize("package", ["onnxruntime", "openvino", "nncf"])
def test_runtimes_do_not_prepare_to_send_usage_data(package, tmp_path):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    code = f"from utils.optional_packages import import_optional; import_optional({package!r}, '')"
    own = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | own
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, check=True)

    # each of them writes a number of the user before it sends anything
    written = {file.name for file in tmp_path.rglob("*")}
    assert not written & {"deviceid", "openvino_ga_cid", "onnxruntime.db"}
