"""utils/optional_packages.py: a package that is missing gives one sentence with the pip command."""

import sys

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


def test_package_that_is_installed_but_broken_is_shown_with_the_reason(monkeypatch, tmp_path):
    (tmp_path / "broken_package.py").write_text("import no_such_part")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValueError, match=r"pip install broken_package \(No module named 'no_such_part'\)$"
    ):
        import_optional("broken_package", "a test")
