"""models/export/registry.py: each record is complete; help and docs list exactly the formats."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import export
from models.export import FORMATS, ExportFormat, export_format_of
from models.loading import load_backend
from tests.support.exporting import lively_detector, save_checkpoint
from utils.terminal import exit_code_of

ROOT = Path(__file__).parents[3]
each_format = pytest.mark.parametrize("name", FORMATS)


@each_format
def test_record_of_a_format_is_complete(name):
    record = FORMATS[name]
    for field in ExportFormat.__annotations__:
        assert hasattr(record, field), field
    assert record.title.lower() == name
    assert record.file_suffix.startswith(".")
    assert record.is_folder == (record.suffix != record.file_suffix)


def test_formats_do_not_share_names_of_files():
    records = FORMATS.values()
    assert len({record.suffix for record in records}) == len(FORMATS)
    assert len({record.file_suffix for record in records}) == len(FORMATS)
    assert len({record.title for record in records}) == len(FORMATS)
    assert sum(record.is_folder for record in records) <= 1  # any folder is taken for that format


@each_format
def test_format_is_recognized_by_its_name(name, tmp_path):
    record = FORMATS[name]
    assert export_format_of(tmp_path / f"m{record.file_suffix}") is record
    if record.is_folder:
        (tmp_path / f"m{record.suffix}").mkdir()
    assert export_format_of(tmp_path / f"m{record.suffix}") is record


def test_checkpoint_is_not_an_exported_file(tmp_path):
    assert export_format_of(tmp_path / "m.pt") is None
    assert export_format_of(tmp_path / "missing") is None


def test_help_lists_the_formats():
    shown = subprocess.run(
        [sys.executable, str(ROOT / "export.py"), "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    listed = re.search(r"formats:\s+([a-z_,\s]+?)\s+(?:\(|--)", shown)
    assert listed[1].split(", ") == [*FORMATS]


def test_docs_list_the_formats():
    """One row each in docs/export.md: its name, its file, and the flags of its precisions."""
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    table = text[text.index("| `--include` |") :].partition("\n\n")[0].splitlines()[2:]
    rows = {row.split("`")[1]: row for row in table}
    assert [*rows] == [*FORMATS]
    for name, row in rows.items():
        record = FORMATS[name]
        assert f"`m{record.suffix}" in row
        assert ("`--int8`" in row) == (record.int8_packages is not None)
        assert ("`--half` with `--device 0`" in row) == record.half_needs_gpu
        packages = re.search(r"pip install ([\w ]+)", row)
        assert (set(packages[1].split()) if packages else set()) == {*record.packages}
        for package in record.int8_packages or ():
            assert f"pip install {package}" in text


def test_listing_the_formats_imports_neither_torch_nor_a_runtime():
    code = "import sys, models.export; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    slow = {"torch", "torchvision", "numpy"}
    for record in FORMATS.values():
        slow |= {*record.packages, *(record.int8_packages or ())}
    assert not slow & set(done.stdout.split())


@pytest.mark.slow
def test_a_new_format_is_one_record(tmp_path, micro_model, monkeypatch, capsys):
    """Refusals, writing, checking and opening need nothing but its line in FORMATS."""

    class Copied(type(FORMATS["torchscript"])):
        title = "Copied"
        suffix = file_suffix = ".copied"
        half_needs_gpu = False

    monkeypatch.setitem(FORMATS, "copied", Copied())
    weights = save_checkpoint(tmp_path / "m.pt", lively_detector(micro_model))
    export.run_script(["--weights", str(weights), "--include", "copied"])
    assert "m.copied: boxes differ from torch by at most 0 px" in capsys.readouterr().out
    loaded = load_backend(tmp_path / "m.copied", export.CPU)
    assert loaded.backend.canvas == (64, 64)

    flags = ["--weights", str(weights), "--include"]
    assert exit_code_of(lambda: export.run_script([*flags, "onyx"])) == 2
    assert "choose from torchscript, onnx, openvino, copied" in capsys.readouterr().err
    assert exit_code_of(lambda: export.run_script([*flags, "copied", "--int8"])) == 2
    assert "--int8: Copied is not quantized" in capsys.readouterr().err
