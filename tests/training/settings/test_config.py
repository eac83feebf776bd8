"""The two dataclasses of settings: the values that they refuse, and the error messages."""

import dataclasses
import time
from itertools import pairwise
from pathlib import Path
from string import ascii_letters

import pytest
import yaml

from training.settings import hyperparameters
from training.settings.config import LISTS, OPTIMIZER_CHOICES, TrainConfig
from training.settings.hyperparameters import Hyp, read_hyp

HYPS = sorted((Path(__file__).parents[3] / "data" / "hyps").glob("*.yaml"))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"epochs": 0}, "--epochs 0: train for 1 epoch or more"),
        (
            {"batch_size": 0},
            "--batch-size 0: choose 1 or more, or -1 for the largest that fits in memory",
        ),
        ({"imgsz": 31}, "--imgsz 31: choose 32 to 8192 pixels"),
        ({"imgsz": 10**6}, "--imgsz 1000000: choose 32 to 8192 pixels"),
        (
            {"tile": 31},
            "--tile 31: choose the side of a tile in pixels, 32 or more, or 0 to train on whole "
            "images",
        ),
        (
            {"tile_overlap": 0.95},
            "--tile-overlap 0.95: choose a fraction of the tile's side from 0 to 0.9",
        ),
        ({"workers": -1}, "--workers -1: choose 0 (load in the training process) or more"),
        ({"patience": -1}, "--patience -1: choose a number of epochs, or 0: no early stopping"),
        ({"label_smoothing": 1.0}, "--label-smoothing 1.0: choose a number from 0 to below 1"),
        (
            {"label_smoothing": float("nan")},
            "--label-smoothing nan: choose a number from 0 to below 1",
        ),
        ({"freeze": (3, -1)}, "--freeze [3, -1]: layer numbers start at 0"),
        ({"close_mosaic": -1}, "--close-mosaic -1: choose a number of epochs, or 0"),
        ({"seed": -1}, "--seed -1: choose 0 to 9223372036854775807"),
        (
            {"optimizer": "sgd"},
            "--optimizer sgd: choose auto, SGD, Adam, AdamW or Muon (did you mean SGD?)",
        ),
        ({"amp": "fp8"}, "--amp fp8: choose one of auto, fp64, fp32, bf16, fp16"),
        ({"cache": "gpu"}, "--cache gpu: choose one of auto, ram, disk, device, off"),
        ({"val_period": 0}, "--val-period 0: choose a number of epochs, 1 or more"),
        (
            {"compile": "fast"},
            "--compile fast: choose one of off, default, reduce-overhead, max-autotune",
        ),
        ({"compile": "default", "rect": True}, "--compile and --rect cannot be used together"),
        ({"compile": "default", "shard": True}, "--compile and --shard cannot be used together"),
        (
            {"compile": "default", "multi_scale": True, "checkpoint_activations": True},
            "--compile and --multi-scale --checkpoint-activations cannot be used together",
        ),
        ({"rect": True, "multi_scale": True}, "--rect and --multi-scale cannot be used together"),
        ({"epochs": "3"}, "--epochs is a str, expected int"),
        ({"epochs": True}, "--epochs is a bool, expected int"),
        ({"batch_size": 1.5}, "--batch-size is a float, expected int"),
        ({"rect": 1}, "--rect is a int, expected bool"),
        ({"name": None}, "--name is a NoneType, expected str"),
        ({"freeze": ("all",)}, "--freeze: layer numbers must be whole numbers"),
    ],
)
def test_invalid_train_config_is_refused(values, sentence):
    with pytest.raises(ValueError) as caught:
        TrainConfig(**values)
    assert str(caught.value) == sentence


def test_train_config_round_trips_through_yaml_and_is_frozen():
    config = TrainConfig(freeze=(1, 2), names=("a", "b"), label_smoothing=0)
    values = yaml.safe_load(yaml.safe_dump(config.as_dict()))
    lists = {name: tuple(values[name]) for name in LISTS}
    assert TrainConfig(**values | lists) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.epochs = 3


def test_processes_must_agree_on_cache_but_not_on_cache_dir():
    """With --cache device the processes agree on whether the images fit, and their pixels differ
    slightly.
    """
    assert TrainConfig(cache="device").training() != TrainConfig(cache="ram").training()
    assert TrainConfig(cache_dir="/one").training() == TrainConfig(cache_dir="/another").training()


def test_hyp_defaults_equal_scratch_low_file():
    low = next(path for path in HYPS if path.name == "hyp.scratch-low.yaml")
    assert read_hyp(low) == ("SGD", Hyp())


# The published values, one row per key: low, med, high, no-augmentation, Objects365, VOC.
PUBLISHED = """
lr0 .01 .01 .01 .01 .00258 .00334
lrf .01 .1 .1 .1 .17 .15135
momentum .937 .937 .937 .937 .779 .74832
weight_decay .0005 .0005 .0005 .0005 .00058 .00025
nominal_batch 64 64 64 64 64 64
warmup_epochs 3 3 3 3 1.33 3.3835
warmup_momentum .8 .8 .8 .8 .86 .59462
warmup_bias_lr .1 .1 .1 .1 .0711 .18657
box .05 .05 .05 .05 .0539 .02
cls .5 .3 .3 .3 .299 .21638
cls_pw 1 1 1 1 .825 .5
obj 1 .7 .7 .7 .632 .51728
obj_pw 1 1 1 1 1 .67198
anchor_t 4 4 4 4 3.44 3.3744
anchors 0 0 0 0 3.2 3.412
fl_gamma 0 0 0 0 0 0
distillation 1 1 1 1 1 1
hsv_h .015 .015 .015 0 .0188 .01041
hsv_s .7 .7 .7 0 .704 .54703
hsv_v .4 .4 .4 0 .36 .27739
degrees 0 0 0 0 0 0
translate .1 .1 .1 0 .0902 .04591
scale .5 .9 .9 0 .491 .75544
shear 0 0 0 0 0 0
perspective 0 0 0 0 0 0
flipud 0 0 0 0 0 0
fliplr .5 .5 .5 0 .5 .5
mosaic 1 1 1 0 1 .85834
mixup 0 .1 .1 0 0 .04266
copy_paste 0 0 .1 0 0 0
"""
FILES = ("scratch-low", "scratch-med", "scratch-high", "no-augmentation", "Objects365", "VOC")


@pytest.mark.parametrize(("column", "name"), list(enumerate(FILES)))
def test_hyp_files_contain_published_values(column, name):
    [path] = [path for path in HYPS if path.stem == f"hyp.{name}"]
    rows = [line.split() for line in PUBLISHED.strip().splitlines()]
    optimizer, hyp = read_hyp(path)
    assert hyp.as_dict() == {key: float(numbers[column]) for key, *numbers in rows}
    assert optimizer == "SGD"


@pytest.mark.parametrize("path", HYPS, ids=lambda path: path.stem)
def test_hyp_files_list_every_hyperparameter(path):
    given = [
        line.split(":")[0] for line in path.read_text().splitlines() if not line.startswith("#")
    ]
    assert given == ["optimizer", *read_hyp(path)[1].as_dict()]


def write_hyp(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "my.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_yolov5_hyp_file_is_accepted(tmp_path):
    text = (
        "# comment\nlr0: 0.02  # first\niou_t: 0.20  # unused\nanchor_t: 4.0\n# anchors: "
        "3\nfl_gamma: 0.0\n"
    )
    assert read_hyp(write_hyp(tmp_path, text)) == ("auto", Hyp(lr0=0.02))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lr0: 1e-3", 0.001),
        ("lr0: 1.0e-3", 0.001),
        ("lr0: 1", 1.0),
        ("{lr0: 0.5}", 0.5),
        ("\ufefflr0: .5", 0.5),
    ],
)
def test_hyp_number_formats_are_read(tmp_path, text, value):
    assert read_hyp(write_hyp(tmp_path, text)) == ("auto", Hyp(lr0=value))


def test_hyp_file_without_entries_gives_defaults(tmp_path):
    assert read_hyp(write_hyp(tmp_path, "{}")) == ("auto", Hyp())


@pytest.mark.parametrize("optimizer", OPTIMIZER_CHOICES[1:])
def test_written_hyp_file_is_read_back(tmp_path, optimizer):
    path = tmp_path / "hyp.yaml"
    hyperparameters.write_hyp(path, optimizer, Hyp(lr0=0.25, box=0.125))
    assert read_hyp(path) == (optimizer, Hyp(lr0=0.25, box=0.125))
    assert path.read_text().startswith(f"optimizer: {optimizer}\nlr0: 0.25\n")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "lr0: 0.1\nlr: 0.1",
            "my.yaml line 2: unknown key 'lr'; known keys are anchor_t, anchors, box",
        ),
        ("lr0: 0.1\n\nlr0: 0.2", "my.yaml line 3: lr0 is given twice"),
        ("lr0: fast", "my.yaml line 1: lr0 is 'fast', expected a number"),
        ("lr0: '0.1'", "my.yaml line 1: lr0 is '0.1', expected a number"),
        ("lr0: true", "my.yaml line 1: lr0 is 'true', expected a number"),
        ("lr0:", "my.yaml line 1: lr0 is '', expected a number"),
        (
            "optimizer: sgd",
            "my.yaml line 1: optimizer is 'sgd', expected SGD, Adam, AdamW or Muon (did you mean "
            "SGD?)",
        ),
        ("optimizer: 1", "my.yaml line 1: optimizer is '1', expected SGD, Adam, AdamW or Muon"),
        (
            "optimizer: auto",
            "my.yaml line 1: optimizer is 'auto', expected SGD, Adam, AdamW or Muon",
        ),
        ("optimizer: SGD\noptimizer: SGD", "my.yaml line 2: optimizer is given twice"),
        ("lr0: .nan", "my.yaml line 1: lr0 is '.nan', expected a number"),
        ("lr0: nan", "my.yaml line 1: lr0 is nan, allowed are 0 to 1e+06"),
        ("lr0: inf", "my.yaml line 1: lr0 is inf, allowed are 0 to 1e+06"),
        ("lr0: " + "9" * 5000, "my.yaml line 1: lr0 is inf, allowed are 0 to 1e+06"),
        ("lr0: -0.1", "my.yaml line 1: lr0 is -0.1, allowed are 0 to 1e+06"),
        ("mosaic: 1.5", "my.yaml line 1: mosaic is 1.5, allowed are 0 to 1"),
        ("perspective: 0.1", "my.yaml line 1: perspective is 0.1, allowed are 0 to 0.001"),
        ("anchor_t: 1", "my.yaml line 1: anchor_t is 1, allowed are 1 to 100"),
        ('"a\\nb\\e[2J": [1]', r"my.yaml line 1: a\nb\x1b[2J holds a list"),
        ('"a\\nb\\e[2J": 1', r"my.yaml line 1: unknown key 'a\nb\x1b[2J'; known"),
        ('lr0: "a\\nb\\e[2J"', r"my.yaml line 1: lr0 is 'a\nb\x1b[2J', expected"),
        (
            "lr0: [0.1]",
            "my.yaml line 1: lr0 holds a list, a mapping or an alias; expected `key: number` lines",
        ),
        (
            "box: 1\nlr0:\n  a: 1",
            "my.yaml line 3: lr0 holds a list, a mapping or an alias; expected",
        ),
        (
            "lr0: &a 0.1\nlrf: *a",
            "my.yaml line 2: lrf holds a list, a mapping or an alias; expected",
        ),
        ("[lr0]: 0.1", "my.yaml line 1: found a list, a mapping or an alias; expected"),
        ("lr0: !!float 0.1", "my.yaml line 1: lr0 is '0.1', expected a number"),
        ("lr0: !!python/name:os.system 1", "my.yaml line 1: lr0 is '1', expected a number"),
        (
            "lr0: !!python/object/apply:os.system ['touch pwned']",
            "my.yaml line 1: lr0 holds a list, a mapping",
        ),
        ("lr0: 0.1\n---\nlr0: 0.2", "my.yaml: holds more than one document"),
        ("", "my.yaml: expected `key: number` lines"),
        ("lr0", "my.yaml: expected `key: number` lines"),
        ("- 1", "my.yaml: expected `key: number` lines"),
        ("lr0: 'open", "my.yaml: is not YAML: "),
        ("\tlr0: 1", "my.yaml: is not YAML: "),
        (b"lr0: \xff\xfe", "my.yaml: is not YAML: "),
        (b"\0\0\0", "my.yaml: is not YAML: "),
    ],
)
def test_invalid_hyp_files_are_refused(tmp_path, monkeypatch, text, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as caught:
        read_hyp(write_hyp(tmp_path, text))
    assert str(caught.value).startswith(f"{tmp_path}/{sentence}")
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["my.yaml"]


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [1, 1]\n"
        + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in pairwise(ascii_letters))
        + "lr0: *Z",
        "a: &a {k: 1}\n"
        + "".join(f"{b}: &{b} {{<<: [*{a}, *{a}]}}\n" for a, b in pairwise(ascii_letters)),
        "lr0: " + "[" * 60_000,
        "lr0: " + "{a: " * 15_000,
        "lr0: 0.1 #" + "x" * 10**7,
        "lr0: " + "1" * 10**6,
        "lr0: 1\n---\n" + "[" * 60_000,
    ],
    ids=["aliases", "merges", "lists", "mappings", "comment", "digits", "second document"],
)
def test_yaml_bombs_in_hyp_files_are_refused_quickly(tmp_path, text):
    began = time.thread_time()
    with pytest.raises(ValueError) as caught:
        read_hyp(write_hyp(tmp_path, text))
    assert time.thread_time() - began < 5
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


def test_key_near_to_a_known_one_is_suggested(tmp_path):
    with pytest.raises(ValueError, match=r"weight_decay \(did you mean warmup_epochs\?\)$"):
        read_hyp(write_hyp(tmp_path, "warmup_epoch: 1"))


def test_unreadable_hyp_files_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"absent\.yaml: cannot be read: No such file or directory"
    ):
        read_hyp(tmp_path / "absent.yaml")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        read_hyp(tmp_path)
    with pytest.raises(ValueError, match="larger than 65,536 bytes"):
        read_hyp(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"lr0": "0.1"}, "lr0 is '0.1', expected a number"),
        ({"lr0": True}, "lr0 is a bool, expected a number"),
        ({"lr0": [0.1]}, "lr0 is a list, expected a number"),
        ({"mosaic": float("nan")}, "mosaic is nan, allowed are 0 to 1"),
        ({"momentum": 1.0}, "momentum is 1, allowed are 0 to 0.999"),
    ],
)
def test_invalid_hyp_values_are_refused(values, sentence):
    with pytest.raises(ValueError) as caught:
        Hyp(**values)
    assert str(caught.value) == sentence
