"""utils/optional_packages.py: a package that is missing gives one sentence with the pip command."""

import sys

import pytest

from utils.optional_packages import require


def test_missing_package_is_named_with_its_pip_command(monkeypatch):
    for name in ("no_such_package", "no_such_package.inner"):
        with pytest.raises(
            ValueError, match=r"^reading needs the package no_such_package: pip install no_such_package"
        ):
            require(name, "reading")
    monkeypatch.setitem(sys.modules, "onnx", None)  # as Python marks a module that cannot be imported
    with pytest.raises(ValueError, match="pip install onnx"):
        require("onnx", "reading")
