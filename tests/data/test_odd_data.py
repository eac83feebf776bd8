"""Unusual data, end to end: images and names of every kind are used, reported, or rejected with an
error message.
"""

import json
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import train
import val
from tests.data.test_fuzz_images import KINDS, encode_image
from tests.support.fuzzing import ODD_STEMS, assert_printable_line, assert_unchanged
from utils.distributed.world import World
from utils.terminal import exit_code_of

CPU = World(torch.device("cpu"))
CLASSES = ["a b", "two\nlines", "\x1b[2J", "_hidden", "$x$", "é漢字🦖", "'\"", "%s{}", "no", "  "]
STEMS = [*ODD_STEMS, os.fsdecode(b"\xff")]


def png(height: int, width: int) -> bytes:
    shades = np.add.outer(np.arange(height), np.arange(width)) % 200
    return cv2.imencode(".png", np.dstack([shades] * 3).astype(np.uint8))[1].tobytes()


@pytest.fixture
def odd_data(tmp_path: Path) -> Path:
    """Return a data YAML with one image of each kind, with one box each, in folders and files with
    odd names.
    """
    root = tmp_path / "odd\nset é \x1b[31m"
    images, labels = root / "images", root / "labels"
    pictures = {
        f"{kind}.{'jpg' if 'jpeg' in kind else 'png'}": data for kind, data in KINDS.items()
    }
    pictures |= {f"{stem}.png": png(40, 60) for stem in STEMS}
    pictures |= {
        "flat.png": png(10, 20_000),
        "tall.png": png(20_000, 10),
        "least.png": png(2, 2),
        "dot.png": png(1, 1),
    }
    pictures |= {
        "gif.jpg": encode_image("GIF"),
        "empty.jpg": b"",
        "cut.png": png(9, 9)[:60],
        "text.png": b"hello",
    }
    for folder in (images, labels):
        folder.mkdir(parents=True)
    for number, (name, data) in enumerate(pictures.items()):
        (images / name).write_bytes(data)
        (labels / name).with_suffix(".txt").write_text(f"{number % len(CLASSES)} 0.5 0.5 0.6 0.6\n")
    (root / "elsewhere").mkdir()
    (root / "elsewhere" / "far.png").write_bytes(png(30, 30))
    (images / "linked").symlink_to(root / "elsewhere")
    (images / "link.png").symlink_to(images / "a b.png")
    (images / "broken.png").symlink_to(root / "nowhere.png")
    lines = [
        f"elsewhere/../images/{path.name}"
        for path in sorted(images.iterdir())
        if path.name.isascii()
    ]
    (root / "val.txt").write_text("\n".join(line for line in lines if "\n" not in line))
    file = root / "odd 'data'.yaml"
    file.write_text(
        f"train: images\nval: val.txt\nnames: {json.dumps(CLASSES, ensure_ascii=False)}\n"
    )
    return file


def flags(data: Path, model: str, tmp_path: Path, *more: str) -> list[str]:
    small = [
        "--data",
        str(data),
        "--cfg",
        model,
        "--imgsz",
        "64",
        "--batch-size",
        "4",
        "--workers",
        "0",
        "--device",
        "cpu",
    ]
    places = ["--project", str(tmp_path / "runs"), "--cache-dir", str(tmp_path / "cache")]
    return [*small, *places, "--amp", "fp32", "--epochs", "1", *more]


def assert_printable(text: str) -> None:
    for line in text.splitlines():
        assert line.isprintable(), repr(line)


@pytest.mark.slow
def test_unusual_images_and_names_can_be_trained_and_validated(
    odd_data, micro_model, tmp_path, capfd
):
    with assert_unchanged(odd_data.parent):
        train.main(
            train.parse_args(
                flags(odd_data, micro_model, tmp_path, "--hyp", "hyp.scratch-high.yaml")
            )[0],
            CPU,
        )
    folder = tmp_path / "runs" / "exp"
    output = capfd.readouterr()
    assert_printable(output.out)
    report = json.loads((folder / "data_report.json").read_text())["train"]
    left_out = {Path(name).name for name in report["unreadable"]} - {
        "gif.jpg"
    }  # OpenCV 4 may not be able to read it
    assert left_out == {"dot.png", "empty.jpg", "cut.png", "text.png"}
    lines = [f"{p['where']}: {p['reason']}" for p in report["problems"]]
    assert any("broken.png: is not a file, or is a broken symlink" in line for line in lines)
    for line in lines:
        assert_printable_line(line)
    per_class = json.loads((folder / "metrics.json").read_text())["best"]["per_class"]
    assert set(per_class) <= set(CLASSES)
    drawn = [
        "labels.png",
        "results.png",
        "confusion_matrix.png",
        "PR_curve.png",
        "train_batch0.jpg",
    ]
    for name in [*drawn, "val_batch0_labels.jpg", "val_batch0_pred.jpg"]:
        assert cv2.imread(str(folder / name)) is not None, name

    arguments = [
        "--weights",
        str(folder / "weights" / "best.pt"),
        "--device",
        "cpu",
        "--workers",
        "0",
        "--verbose",
    ]
    arguments += [
        "--project",
        str(tmp_path / "val"),
        "--cache-dir",
        str(tmp_path / "cache"),
        "--save-txt",
    ]
    arguments += ["--save-json", "--task", "train"]
    with assert_unchanged(odd_data.parent):
        val.main(val.parse_args(arguments)[0], CPU)
    assert_printable(capfd.readouterr().out)
    assert (tmp_path / "val" / "exp" / "labels" / "flat.txt").exists()


@pytest.mark.slow
def test_training_runs_with_thousands_of_classes(tmp_path, tiny_data, micro_model, capsys):
    names = [f"class {k}" for k in range(3000)]
    file = tmp_path / "many.yaml"
    file.write_text(
        f"path: {tiny_data.parent}\ntrain: images\nval: images\nnames: {json.dumps(names)}\n"
    )
    result = train.main(train.parse_args(flags(file, micro_model, tmp_path, "--noplots"))[0], CPU)
    assert result.images == 8
    assert "3 of 3,000 classes" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["0 .5 .5 .1 .1\n99 .5 .5 .1 .1\n", "x\n", ""])
def test_error_messages_escape_control_characters_of_names(text, tmp_path, tiny_model, capfd):
    root = tmp_path / "set\nerror: no\x1b[2J"
    for folder in ("images", "labels"):
        (root / folder).mkdir(parents=True)
    (root / "images" / "a\r\x1b[2J.png").write_bytes(png(20, 20))
    (root / "labels" / "a\r\x1b[2J.txt").write_text(text)
    file = root / "data\n.yaml"
    file.write_text("train: images\nval: images\nnames: [a, b]\n")
    with assert_unchanged(root):
        assert exit_code_of(lambda: train.run_script(flags(file, tiny_model, tmp_path))) == 2
    output = capfd.readouterr()
    assert_printable(output.out)
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert_printable(output.err)
