"""README.md and docs/: their commands parse and run, their links and paths exist, their YAML is
valid.
"""

import argparse
import importlib
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest import mock

import cv2
import numpy as np
import pytest
import torch
from torch.distributed import launch as older_launcher
from torch.distributed import run as launcher

import data.formats.registry
import detect
import export
import train
import training.tune.__main__ as tune_command
import val
from data.augment.__main__ import main as draw_augmentations
from data.augment.__main__ import parse_args as parse_augment
from data.augment.transforms.names import BOX_TRANSFORMS, GROUPS, PIXEL_TRANSFORMS
from data.check import __main__ as data_check
from data.convert.__main__ import parse_args as parse_convert
from data.dataset_yaml import read_data_yaml
from models.blocks.registry import LAYERS
from models.build import build_model, check_shapes
from models.export import FORMATS
from models.export.graph import Export
from models.export.metadata import Suppression
from models.export.onnx import write as onnx_write
from models.head_registry import HEADS
from models.loading import load_backend
from models.predict import Predictor
from models.tables.find import load_model_table
from models.tables.resolve import resolve
from tests.support.exporting import DYNAMIC, lively_detector, save_checkpoint, short_table
from tests.support.launching import forked, forked_launcher
from tests.support.tool_exports import CLASS_OF, EXPORTS, write_export
from tests.support.yolox import to_yolox_state
from training.check import __main__ as training_check
from training.compare.__main__ import parse_args as parse_compare
from training.search.evolve import evolve
from training.tune.run import tune
from utils.distributed.world import World
from utils.flags import FlagParser
from utils.loggers.registry import LOGGERS
from utils.plots import search
from utils.terminal import FaultError

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
USER_PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
TOOLS_PAGE = ROOT / "docs" / "annotation_tools.md"
AUGMENTATIONS_PAGE = ROOT / "docs" / "augmentations.md"
BACKBONES_PAGE = ROOT / "docs" / "backbones.md"
ADD_CLASSES_PAGE = ROOT / "docs" / "add_classes.md"
OWN_TESTS = (
    TOOLS_PAGE,
    AUGMENTATIONS_PAGE,
    ADD_CLASSES_PAGE,
)  # pages whose commands need files of their own
PAGES = [
    *USER_PAGES,
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "PROVENANCE.md")),
]
NOT_IMPLEMENTED = {"--quad"}  # the README says so
EXITS = {"--help", "--version"}  # flags that print and exit
CPU = World(torch.device("cpu"))
SCRIPTS: dict[str, Any] = {
    "train.py": train,
    "val.py": val,
    "detect.py": detect,
    "export.py": export,
}

# Commands that no test runs, and words in front of others, by their first word.
NOT_RUN = {
    "pip": "changes the environment",
    "apt-get": "changes the machine",
    "sysctl": "changes the machine",
    "docker": "needs a container",
    "export": "sets variables of the shell for network interfaces that this machine does not have",
    "tensorboard": "starts a server",
    "mlflow": "starts a server",
    "wandb": "sends a run to a server",
    "activate-global-python-argcomplete": "changes the user's shell",
    "make": "runs the tests, this one too",
    "kill": "ends another process",
    "optuna-dashboard": "a server, of another package",
    "python -m pytest": "runs the tests, this one too",
}
PREFIX_PROGRAMS = {
    "timeout": "ends a launcher by force",
    "find": "writes paths into a pipe; reading them is tested in test_paths_on_stdin.py",
    "srun": "needs SLURM; the variables that it sets are tested in test_launch.py",
}
# Flags of other programs, whose parser is not available here.
EXTERNAL_FLAGS = {
    **dict.fromkeys(
        ["--onnx", "--saveEngine", "--fp16", "--minShapes", "--optShapes", "--maxShapes"], "trtexec"
    ),
    **dict.fromkeys(["--framework", "--model", "--save_dir"], "x2paddle"),
    "--init": "docker",
    "--kill-on-bad-exit": "srun",
    "--shutdown-timeout": "torchrun of newer versions of torch; 2.11 does not have it",
    "--use_env": "torch.distributed.launch",
}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


# ---------------------------------------------------------------------- reading a page


@dataclass(frozen=True)
class Block:
    """A block of code of a page: fenced, with its language, or indented, without one."""

    page: Path
    line: int
    language: str
    text: str


def read_page(page: Path) -> tuple[list[Block], list[tuple[int, str]]]:
    """The blocks of a page, and its other lines with their numbers."""
    blocks, prose, fence, start, code = [], [], None, 0, []
    for number, line in enumerate([*page.read_text(encoding="utf-8").splitlines(), ""], 1):
        if line.startswith("```"):
            if fence is None:
                fence, start = line[3:].strip(), number + 1
            else:
                blocks.append(Block(page, start, fence, "\n".join(code)))
                fence, code = None, []
        elif fence is not None:
            code.append(line)
        elif line.startswith("    "):
            start = start if code else number
            code.append(line[4:])
        else:
            if code:
                blocks.append(Block(page, start, "", "\n".join(code)))
                code = []
            prose.append((number, line))
    assert fence is None, f"{page.name}: a fence is not closed"
    return blocks, prose


def inline_code(prose: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for number, line in prose:
        for code in re.findall(r"`([^`]+)`", line):
            yield number, code


@dataclass(frozen=True)
class Command:
    page: Path
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line} {shlex.join(self.words)}"


def split_commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a block.

    >>> list(split_commands("a b \\\\\\n  c   # why\\nd && X=1 e ''"))
    [['a', 'b', 'c'], ['d'], ['X=1', 'e', '']]
    """
    for line in text.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), "&&"]:
            if word != "&&":
                words.append(word)
            elif words:
                yield words
                words = []


def commands_of(page: Path) -> Iterator[Command]:
    """The commands in a page's blocks, and those in its inline code that begin with the name of a
    program.
    """
    blocks, prose = read_page(page)
    for block in blocks:
        if block.language in ("", "bash", "sh"):
            for words in split_commands(block.text):
                yield Command(page, block.line, tuple(words))
    for line, code in inline_code(prose):
        first = code.split()[0]
        if " " in code and (
            first in {"python", *NOT_RUN} or (first in PREFIX_PROGRAMS and " python " in code)
        ):
            for words in split_commands(code):
                yield Command(page, line, tuple(words))


COMMANDS = [
    command for page in (*USER_PAGES, ROOT / "CONTRIBUTING.md") for command in commands_of(page)
]


def without_prefix(words: tuple[str, ...]) -> list[str]:
    """A command without what precedes `python`: variables, and the programs of PREFIX_PROGRAMS.

    >>> without_prefix(("A=1", "timeout", "-k", "3", "python", "x.py"))
    ['python', 'x.py']
    """
    front, rest = list(words), []
    if "python" in words:
        at = words.index("python")
        front, rest = list(words[:at]), list(words[at:])
        while front and re.match(r"[A-Z_]+=", front[0]):
            front.pop(0)
    assert not rest or not front or front[0] in PREFIX_PROGRAMS, (
        f"{shlex.join(words)}: {front[0]} is not in PREFIX_PROGRAMS"
    )
    return rest or front


def reason_not_to_run(words: tuple[str, ...]) -> str:
    """The entry of NOT_RUN that a command belongs to, or ""."""
    own = shlex.join(without_prefix(words))
    return next((name for name in NOT_RUN if f"{own} ".startswith(f"{name} ")), "")


PYTHON_COMMANDS = [command for command in COMMANDS if not reason_not_to_run(command.words)]


def test_pages_contain_python_commands():
    assert len(PYTHON_COMMANDS) > 30
    assert {without_prefix(command.words)[1] for command in PYTHON_COMMANDS} >= {
        "train.py",
        "val.py",
        "detect.py",
        "-m",
    }


def test_every_excluded_command_occurs_in_pages():
    assert {reason_not_to_run(command.words) for command in COMMANDS} - {""} == set(NOT_RUN)
    assert {command.words[0] for command in COMMANDS} >= set(PREFIX_PROGRAMS)


# ---------------------------------------------------------------------- every flag is accepted


class ParsedError(Exception):
    """Raised after a script has parsed its command line."""


def parse_by_script(
    main: Callable[[], object], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a script's own `main` until it has parsed a command line."""

    def stopping(parse: Callable[..., object]) -> Callable[..., object]:
        def parse_and_stop(*arguments: object, **keywords: object) -> None:
            parse(*arguments, **keywords)
            raise ParsedError

        return parse_and_stop

    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", words)
        patch.setattr(
            argparse.ArgumentParser, "parse_args", stopping(argparse.ArgumentParser.parse_args)
        )
        patch.setattr(FlagParser, "read", stopping(FlagParser.read))
        with pytest.raises(ParsedError):
            main()


def parse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse `python ...` with the parser of the script or module that it starts, and of its
    launcher, if any.
    """
    assert words[0] == "python", f"{shlex.join(words)}: add it to NOT_RUN, with a reason"
    script, rest = words[1], words[2:]
    if script == "-m":
        script, rest = rest[0], rest[1:]
    if script in ("torch.distributed.run", "torch.distributed.launch"):
        parser = (
            launcher.get_args_parser().parse_args
            if script.endswith("run")
            else older_launcher.parse_args
        )
        inner = parser(rest)
        module = ["-m"] if getattr(inner, "module", False) else []
        words = ["python", *module, inner.training_script, *inner.training_script_args]
        parse(words, monkeypatch)
    elif script == "training.tune":
        monkeypatch.setattr("training.tune.flags.read_space", lambda path: ())
        monkeypatch.setattr("training.tune.flags.require_space_file", lambda given: None)
        tune_command.parse_args(rest)
    elif script in SCRIPTS:
        with pytest.raises(SystemExit, match="0") if EXITS & {*rest} else nullcontext():
            SCRIPTS[script].parse_args(rest)
    else:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            monkeypatch.setenv(
                name, "1"
            )  # benchmarks set them, and change the path: undo it after this test
        monkeypatch.setattr(sys, "path", list(sys.path))
        name = (
            script.removesuffix(".py").replace("/", ".")
            if script.endswith(".py")
            else f"{script}.__main__"
        )
        parse_by_script(importlib.import_module(name).main, [script, *rest], monkeypatch)


@pytest.mark.parametrize("command", PYTHON_COMMANDS, ids=str)
def test_documented_command_is_parsed(command, monkeypatch):
    parse(without_prefix(command.words), monkeypatch)


@pytest.mark.parametrize(
    "text",
    [
        "python train.py --no-such-flag",
        "python val.py --task nothing",
        "python -m torch.distributed.run --no-such-flag train.py",
        "python -m torch.distributed.run --nproc_per_node 2 train.py --imgs 64",
        "python -m models",
        "python benchmarks/step.py --no-such-flag",
    ],
)
def test_invalid_command_is_rejected_by_its_parser(text, monkeypatch, capsys):
    with pytest.raises((ValueError, SystemExit)):
        parse(text.split(), monkeypatch)


def test_flags_in_inline_code_exist(monkeypatch):
    known: set[str] = {
        *EXTERNAL_FLAGS,
        *NOT_IMPLEMENTED,
        *launcher.get_args_parser()._option_string_actions,
    }
    read = FlagParser.read
    monkeypatch.setattr(
        FlagParser,
        "read",
        lambda self, words=None: (known.update(self._option_string_actions), read(self, words))[1],
    )
    for script in SCRIPTS.values():
        script.parse_args([])
    parse_convert(["export.zip", "converted", "--to", "yolo"])
    parse_augment(["my-augmentations.yaml", "--image", "photo.jpg"])
    parse_compare(["runs/train/exp"])
    data_check.parse_args(["mydata.yaml"])
    training_check.parse_args(["mydata.yaml", "--weights", "best.pt"])
    read_known = FlagParser.read_known
    monkeypatch.setattr(
        FlagParser,
        "read_known",
        lambda self, words=None: (
            known.update(self._option_string_actions),
            read_known(self, words),
        )[1],
    )
    with pytest.raises(ValueError, match="--space"):
        tune_command.parse_args([])
    for page in USER_PAGES:
        for line, code in inline_code(read_page(page)[1]):
            if code.split()[0] != "python":
                flags = set(re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", code))
                assert flags <= known, f"{page.name}:{line}: no flag {flags - known}"


# ----------------------------------------------------------------- commands, run from top to bottom


@pytest.fixture(scope="module")
def small(
    tiny_data: Path, micro_model: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """Flags that are appended to a command's and override them: tiny data and model, small images,
    a CPU.
    """
    with_test = tiny_data.with_name("with-test-split.yaml")
    with_test.write_text(
        re.sub(r"^val: (.*)$", r"val: \1\ntest: \1", tiny_data.read_text(), flags=re.MULTILINE)
    )
    both = [
        "--data",
        str(with_test),
        "--img",
        "64",
        "--batch",
        "4",
        "--workers",
        "0",
        "--device",
        "cpu",
    ]
    both += ["--cache-dir", str(tmp_path_factory.mktemp("cache"))]
    detecting = ["--source", str(tiny_data.parent / "images"), "--img", "64", "--device", "cpu"]
    return {
        "train.py": [*both, "--cfg", micro_model, "--amp", "fp32", "--noplots"],
        "val.py": both,
        "detect.py": detecting,
    }


def flags_given(words: Sequence[str], small: dict[str, list[str]]) -> list[str]:
    """The flags with which `python train.py ...`, val.py or detect.py runs in these tests."""
    script = words[1]
    flags = [*words[2:], *small[script]]
    if script == "train.py":
        flags += ["--epochs", "2" if "--resume" in words else "1"]
    return [word for word in flags if word != "--view-img"]


def run_in_process(words: Sequence[str], small: dict[str, list[str]]) -> None:
    """Run `python train.py ...`, val.py or detect.py in this process; a camera's window is not
    shown.
    """
    script, flags = words[1], flags_given(words, small)
    if script == "train.py":
        train.main(train.parse_args(flags)[0], CPU)
    elif script == "detect.py":
        detect.main(detect.parse_args(flags))
    else:
        with mock.patch.object(val, "draw_results"):  # it takes most of the time
            val.main(val.parse_args(flags)[0], CPU)


@pytest.mark.slow
def test_readme_commands_run_in_order(small, tmp_path, monkeypatch):
    """Train, detect, train on other data, fine-tune, resume, validate: each uses the results of
    those before. So does the Python code.
    """
    monkeypatch.chdir(tmp_path)
    blocks, _ = read_page(README)
    commands = [
        words for block in blocks if not block.language for words in split_commands(block.text)
    ]
    played = [words for words in commands if words[1] in SCRIPTS]
    trained = ["train.py"] * 5
    assert [words[1] for words in played] == ["train.py", "detect.py", *trained, "val.py"]

    published = Path("yolox_nano.pth")
    torch.save({"model": to_yolox_state(build_model("yolox_nano", 80))}, published)
    for words in played:
        table = ["--cfg", "yolox_nano.yaml"] if published.name in words else []
        run_in_process(words, {**small, "train.py": [*small["train.py"], *table]})

    assert sorted(str(path) for path in Path("runs").glob("*/*")) == [
        "runs/detect/exp",
        *(f"runs/train/exp{number}" for number in ("", "2", "3", "4", "5")),
        "runs/val/exp",
    ]
    rows = [
        len(Path(f"runs/train/{run}/results.csv").read_text().splitlines())
        for run in ("exp", "exp2", "exp3", "exp4", "exp5")
    ]
    assert rows == [2, 2, 2, 2, 3]  # a header and an epoch; the resumed run has two

    code = next(block for block in blocks if block.language == "python")
    cv2.imwrite("photo.jpg", np.zeros((48, 64, 3), np.uint8))
    exec(compile(code.text, "README.md", "exec"), {})  # noqa: S102


SINGLE_PROCESS = [
    command.words
    for command in PYTHON_COMMANDS
    if command.page not in OWN_TESTS
    and command.words[0] == "python"
    and command.words[1] in ("train.py", "val.py", "detect.py")
    and not EXITS & {*command.words}
]
MODES = {
    "--spawn",
    "--compile",
    "--dist-url",
    "--evolve",
    "--resume-evolve",
    "--wandb",
    "--mlflow",
}  # started, compiled, connected, searched and logged by tests of their own


def write_named_files(words: list[str], finished: Path) -> None:
    """Create the checkpoints and the run that a command names, as copies of those of a finished
    run.

    For --head it is a checkpoint with two heads.
    """
    for word in words:
        if word.endswith((".pt", ".pth")) and not Path(word).exists():
            Path(word).parent.mkdir(parents=True, exist_ok=True)
            if "--head" in words:
                save_checkpoint(Path(word), lively_detector(str(ROOT / "tests/tables/dual.yaml")))
                continue
            shutil.copy(
                finished / "weights" / ("last.pt" if "--resume" in words else "best.pt"), word
            )
    if "--resume" in words and not Path("runs/train/exp/results.csv").exists():
        shutil.copytree(finished, "runs/train/exp", dirs_exist_ok=True)


def settings_of(words: tuple[str, ...], small: dict[str, list[str]]) -> str:
    """What a command runs with in these tests: `small` overrides its data and model, for example,
    and all checkpoints are copies of one file, so that their names make no difference.
    """
    script, head = words[1], "--head" in words
    args = SCRIPTS[script].parse_args(flags_given(words, small))
    values = vars(args if script == "detect.py" else args[0])
    weights = re.sub(r"[^'\"]*\.pth?\b", "weights.pt", str(values["weights"]))
    return str((script, head, values | {"weights": weights}))


@pytest.mark.slow
def test_documented_commands_of_one_process_run(small, exports, tmp_path, monkeypatch):
    """All trainings, validations and detections of the pages, on tiny data. Modes of several
    devices run on one CPU. Of commands that `small` makes equal, the first is run.
    """
    monkeypatch.chdir(tmp_path)
    run_in_process(["python", "train.py", "--project", "finished"], small)
    commands: dict[str, tuple[str, ...]] = {}
    for words in SINGLE_PROCESS:
        if not MODES & {*words}:
            commands.setdefault(settings_of(words, small), words)
    assert len(commands) > 20
    onnx = exports("onnx", *DYNAMIC)
    for number, words in enumerate(commands.values()):
        if not all(find_spec(name) for name in LOGGERS if f"--{name}" in words):
            continue  # an optional package
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        if words[1] in ("val.py", "detect.py") or "--resume" in words:
            shutil.copytree(tmp_path / "finished/exp", folder / "runs/train/exp")
        write_named_files(list(words), tmp_path / "finished/exp")
        if "m.onnx" in words:
            shutil.copy(onnx, folder)
        run_in_process(list(words), small)
        script = words[1].removesuffix(".py")
        written = "*.png" if script == "detect" else "metrics.json"
        assert list(folder.glob(f"runs/{script}/*/{written}")), (
            f"{shlex.join(words)} wrote no {written}"
        )


def test_page_on_augmentations_lists_all_transforms():
    listed = {code for _, code in inline_code(read_page(AUGMENTATIONS_PAGE)[1])}
    assert listed >= {*PIXEL_TRANSFORMS, *BOX_TRANSFORMS, *GROUPS}


@pytest.mark.slow
def test_documented_commands_with_augmentations_run(small, tmp_path, monkeypatch):
    """With the file of the page: the picture, and a training."""
    if find_spec("albumentations") is None:
        pytest.skip("needs albumentations")
    monkeypatch.chdir(tmp_path)
    (file,) = [block for block in read_page(AUGMENTATIONS_PAGE)[0] if block.language == "yaml"]
    Path("my-augmentations.yaml").write_text(file.text)
    cv2.imwrite("photo.jpg", np.zeros((48, 64, 3), np.uint8))
    words = [command.words for command in commands_of(AUGMENTATIONS_PAGE)]
    training, picture = [command for command in words if command[0] == "python"]
    draw_augmentations([*picture[3:], "--img", "64"])
    assert Path("augmentations.jpg").exists()
    run_in_process(list(training), small)
    assert Path("runs/train/exp/augmentations.yaml").read_text() == file.text


@pytest.mark.slow
def test_documented_command_adds_a_class(small, tmp_path, monkeypatch):
    """With the checkpoint and the data that it names."""
    monkeypatch.chdir(tmp_path)
    run_in_process(["python", "train.py"], small)
    names = "names: [rhombus, ellipse, line]"
    images = Path(small["train.py"][1]).parent / "images"
    Path("foxes.yaml").write_text(f"train: {images}\nval: {images}\n{names}\n")
    commands = [command.words for command in commands_of(ADD_CLASSES_PAGE)]
    (words,) = [command for command in commands if "train.py" in command]
    flags = small["train.py"][2:]  # without --data
    at = flags.index("--cfg")
    run_in_process(list(words), {"train.py": [*flags[:at], *flags[at + 2 :]]})
    model = load_backend(Path("runs/train/exp2/weights/best.pt"), torch.device("cpu"))
    assert model.names[-3:] == ("rhombus", "ellipse", "line")
    assert len(model.names) == 6


TOOL_COMMANDS = [command.words for command in commands_of(TOOLS_PAGE)]


def test_every_export_of_an_annotation_tool_is_in_the_page():
    assert [words[words.index("--data") + 1] for words in TOOL_COMMANDS] == list(EXPORTS)


@pytest.mark.slow
@pytest.mark.parametrize("words", TOOL_COMMANDS, ids=lambda words: words[3])
def test_documented_command_trains_on_an_export(words, small, tmp_path, monkeypatch):
    """With the export that it names: all images, their boxes and the names of the classes."""
    opened = []
    real = train.open_dataset

    def open_and_keep(*arguments: Any, **keywords: Any) -> Any:
        opened.append(real(*arguments, **keywords))
        return opened[-1]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "open_dataset", open_and_keep)
    write_export(words[3])
    flags = small["train.py"][2:]  # without --data
    own_cache = ["--cache-dir", str(tmp_path / "cache")]
    run_in_process(list(words), {"train.py": [*flags, *own_cache]})

    (dataset,) = opened
    splits = [dataset.labels[split] for split in ("train", "val")]
    assert [len(split) for split in splits] == [3, 1]
    assert list(dataset.names) == (["face"] if "wider" in words else ["cat", "dog"])
    for split in splits:
        np.testing.assert_allclose(split.boxes_cxcywh_norm(), 0.5, atol=1e-6)
        for index in range(len(split)):
            expected = CLASS_OF[Path(split.path(index)).stem] if len(dataset.names) > 1 else 0
            assert split.classes[index] == expected
    assert Path("runs/train/exp/weights/best.pt").exists()


@pytest.fixture
def traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch traces the network of one checkpoint once for each form of its input, and not for each
    command, which takes most of the time.
    """
    real, traced = onnx_write._exported, {}

    def export_network(given: Export) -> Any:
        model = given.model
        form = (model.batch_size, model.canvas, model.opset, model.precision)
        if form not in traced:
            traced[form] = real(given)
        proto = type(traced[form])()
        proto.CopyFrom(traced[form])
        return proto

    monkeypatch.setattr(onnx_write, "_exported", export_network)


@pytest.mark.slow
@pytest.mark.usefixtures("onnx_functions", "traced_once")
def test_documented_export_commands_run(small, tmp_path, monkeypatch):
    """Of a model with one level, whose graph is traced soonest."""
    finished = tmp_path / "finished"
    (finished / "weights").mkdir(parents=True)
    save_checkpoint(finished / "weights" / "best.pt", lively_detector(short_table()))
    data, cache = (
        small["val.py"][small["val.py"].index(flag) + 1] for flag in ("--data", "--cache-dir")
    )
    commands = dict.fromkeys(
        command.words
        for command in PYTHON_COMMANDS
        if command.words[:2] == ("python", "export.py") and not EXITS & {*command.words}
    )
    assert len(commands) > 4
    for number, words in enumerate(map(list, commands)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        write_named_files(words, finished)
        flags = ["--img", "64", "--data", data, "--cache-dir", cache, "--workers", "0"]
        try:
            export.run_script([*words[2:], *flags])
        except (
            FaultError
        ) as error:  # a model that has learned nothing may lose mAP, but never differ from torch
            raise AssertionError(shlex.join(words)) from error
        assert [file for file in folder.iterdir() if file.name != "m.pt"]


SIZES = [
    *[
        (100, 48),
        (64, 64),
        (65, 64),
        (63, 64),
        (37, 91),
        (91, 37),
        (333, 217),
        (217, 333),
        (501, 377),
    ],
    *[
        (1279, 719),
        (97, 1000),
        (640, 1),
        (1, 640),
        (641, 3),
        (1, 1),
        (2, 3),
        (127, 129),
        (1001, 999),
    ],
]  # width and height of images


def write_dynamic(path: Path, raw: Path) -> None:
    """Write the file of --nms --dynamic: that of --dynamic with the suppression that --nms adds."""
    onnx = pytest.importorskip("onnx", reason="an optional package")
    from models.export.onnx.read import read_onnx
    from models.export.onnx.suppression import add_suppression
    from models.export.onnx.write import with_metadata

    proto = onnx.load(raw)
    model = replace(read_onnx(raw)[1], nms=Suppression(0.25, 0.45, 300, False))
    add_suppression(proto, model.nms, len(model.names))
    path.write_bytes(with_metadata(proto, model))


def write_top_left(path: Path, centered: Path) -> None:
    """Write the file that is exported from a model with its images at the top left."""
    onnx = pytest.importorskip("onnx", reason="an optional package")
    from models.export.onnx.read import read_onnx
    from models.export.onnx.write import with_metadata

    model = replace(read_onnx(centered)[1], letterbox="top_left")
    path.write_bytes(with_metadata(onnx.load(centered), model))


@pytest.fixture(scope="module")
def fixed_file(
    onnx_functions: None, micro_model: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The ONNX file of --nms for images of 64 x 96 pixels."""
    pytest.importorskip("onnx", reason="an optional package")
    weights = tmp_path_factory.mktemp("fixed") / "m.pt"
    save_checkpoint(weights, lively_detector(micro_model))
    flags = ["--include", "onnx", "--nms", "--img", "64", "96"]
    export.run_script(["--weights", str(weights), *flags])
    return weights.with_suffix(".onnx")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["fixed", "dynamic", "top left"])
def test_documented_python_code_finds_what_kestrel_finds(
    form, exports, fixed_file, tmp_path, monkeypatch
):
    """Boxes of images of many odd sizes, to the 0.1 px that the code prints."""
    block = next(
        block for block in read_page(ROOT / "docs" / "export.md")[0] if block.language == "python"
    )
    code = compile(block.text.replace("image.jpg", "image.png"), "docs/export.md", "exec")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "m.onnx"
    if form == "dynamic":
        write_dynamic(file, exports("onnx", *DYNAMIC))
    elif form == "top left":
        write_top_left(file, fixed_file)
    else:
        shutil.copy(fixed_file, file)
    backend = load_backend(file, torch.device("cpu")).backend
    predict = Predictor(backend, canvas=backend.canvas or (64, 64))
    random, total = np.random.default_rng(0), 0
    for width, height in SIZES:
        patches = random.integers(0, 255, (9, 9, 3)).astype(np.uint8)
        image = cv2.resize(patches, (width, height), interpolation=cv2.INTER_NEAREST)
        cv2.imwrite("image.png", image)

        printed: list[tuple[str, str, np.ndarray]] = []
        exec(code, {"print": lambda *words, printed=printed: printed.append(words)})  # noqa: S102

        found = predict(image, channel_order="bgr")
        assert len(printed) == len(found), (width, height)
        for (name, score, box), expected, class_id, sure in zip(
            printed, found.boxes_xyxy, found.class_ids, found.scores, strict=True
        ):
            assert (name, score) == (["disc", "square", "bar"][class_id], f"{sure:.2f}")
            np.testing.assert_allclose(box, expected, atol=0.051)
        total += len(found)
    assert total > 100


EXTENDING = [
    block for block in read_page(ROOT / "docs" / "extending.md")[0] if block.language == "python"
]


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What an example registers is removed after the test."""
    monkeypatch.setattr(data.formats.registry, "FORMATS", data.formats.registry.FORMATS)
    before = [(registry, dict(registry)) for registry in (LAYERS, HEADS, FORMATS, LOGGERS)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


def test_extending_page_has_an_example_for_each_kind_of_addition():
    sections = re.findall(r"^## (.*)$", (ROOT / "docs" / "extending.md").read_text(), re.MULTILINE)
    assert len(sections) == len(EXTENDING) == 9


@pytest.mark.slow
@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("block", EXTENDING, ids=lambda block: str(block.line))
def test_example_of_extending_page_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    padded = "\n" * (block.line - 1) + block.text  # so that a traceback names the page's line
    exec(compile(padded, str(block.page), "exec"), {"__name__": "example"})  # noqa: S102


@pytest.mark.slow
def test_documented_searches_run(small, tmp_path, monkeypatch):
    """One more training for each command of --evolve, and two for that of training.tune."""
    pytest.importorskip("optuna", reason="an optional package")
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "tuning.md"
    searches = [command.words for command in commands_of(page) if MODES & {*command.words}]
    assert len(searches) == 3
    flags = [*small["train.py"], "--epochs", "1"]
    for number, words in enumerate(searches, 1):
        given = train.parse_args([*words[2:], *flags, "--evolve", str(number)])[0]
        with mock.patch.object(search, "plot_search"):  # it takes most of the time
            evolve(given, CPU, train.main)
    assert len(Path("runs/evolve/exp/evolve.csv").read_text().splitlines()) == 1 + len(searches)

    space = next(block.text for block in read_page(page)[0] if block.language == "text")
    Path("space.yaml").write_text(space.replace("320", "64").replace("640", "128"))
    words = documented_words("training.tune")[3:]
    own, given, _ = tune_command.parse_args([*words, *flags, "--trials", "2"])
    tune(own, given, CPU, train.main)
    assert len(Path("runs/tune/exp/trials.csv").read_text().splitlines()) == 3


@pytest.mark.slow
def test_documented_validation_and_metrics_commands_run(small, tmp_path, monkeypatch, capsys):
    """An ensemble, and COCO's numbers of the two files that --save-json writes: commands of
    docs/run_folder.md.
    """
    monkeypatch.chdir(tmp_path)
    run_in_process(["python", "train.py"], small)
    for name in ("a.pt", "b.pt"):
        shutil.copy("runs/train/exp/weights/best.pt", name)
    commands = list(commands_of(ROOT / "docs" / "run_folder.md"))
    validations = [
        list(command.words)
        for command in commands
        if {"--save-json", "--augment"} & {*command.words}
    ]
    assert len(validations) == 2
    for words in validations:
        run_in_process(words, small)
    written = next(Path("runs/val").glob("*/predictions.json")).parent
    assert len(list((written / "labels").glob("*.txt"))) == 8

    monkeypatch.chdir(written)
    metrics = [
        command for command in commands if command.words[:3] == ("python", "-m", "utils.metrics")
    ]
    assert len(metrics) == 2
    main = importlib.import_module("utils.metrics.__main__").main
    for command in metrics:
        main(list(command.words[3:]))
    assert '"AP50"' in capsys.readouterr().out


def documented_words(module: str) -> tuple[str, ...]:
    """The words of the first documented command `python -m module ...`."""
    opening = ("python", "-m", module)
    return next(command.words for command in PYTHON_COMMANDS if command.words[:3] == opening)


def test_documented_comparisons_of_runs_write_their_pages(tmp_path, monkeypatch, capsys):
    """In the first one the pattern is expanded, by the shell or by the command."""
    monkeypatch.chdir(tmp_path)
    for name in ("exp", "exp2"):
        folder = Path("runs/train", name)
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text('{"best": {"AP": 0.5, "AP50": 0.75}}')
    opening = ("python", "-m", "training.compare")
    commands = [words for words in (c.words for c in PYTHON_COMMANDS) if words[:3] == opening]
    assert len({*commands}) == 2
    main = importlib.import_module("training.compare.__main__").main
    for words in dict.fromkeys(commands):
        main(words[3:])
    assert "exp2" in capsys.readouterr().out
    written = {*Path().glob("**/*.html")}
    assert written == {Path("runs/compare.html"), Path("before_and_after.html")}


def test_documented_model_table_command_prints_totals(capsys):
    words = documented_words("models")
    importlib.import_module("models.__main__").main(list(words[3:]))
    assert capsys.readouterr().out.endswith("7,235,389 parameters, 16.4 GFLOPs at 640\n")


def test_documented_convert_command_writes_a_data_set(tiny_data, tmp_path, monkeypatch):
    words = documented_words("data.convert")
    monkeypatch.chdir(tmp_path)
    _, folder, *flags = words[3:]
    main = importlib.import_module("data.convert.__main__").main
    main([str(tiny_data), folder, *flags, "--cache-dir", "cache"])
    assert read_data_yaml(Path(folder, "data.yaml")).sources("val")


@pytest.mark.slow
def test_documented_checks_of_data_run(tiny_data, micro_model, tmp_path, monkeypatch):
    """Each command of docs/doctor.md; --strict refuses data whose val split is the train split."""
    monkeypatch.chdir(tmp_path)
    weights = save_checkpoint(tmp_path / "m.pt", lively_detector(micro_model))
    commands = list(commands_of(ROOT / "docs" / "doctor.md"))
    assert len(commands) == 4
    for command in commands:
        module, _, *flags = command.words[2:]
        given = [str(weights) if word.endswith(".pt") else word for word in flags]
        refused = pytest.raises(ValueError, match=r"^--strict: ") if "--strict" in given else None
        with refused or nullcontext():
            importlib.import_module(f"{module}.__main__").main(
                [str(tiny_data), *given, "--cache-dir", str(tmp_path / "cache")]
            )
    assert Path("found.json").stat().st_size > 1000
    assert Path("found.html").read_text().count("<img") > 8


def test_documented_shapes_command_generates_dataset(tmp_path, monkeypatch, capsys):
    words = documented_words("data.shapes")
    monkeypatch.chdir(tmp_path)
    main = importlib.import_module("data.shapes.__main__").main
    main([*words[3:], "--train", "2", "--val", "1"])
    assert (tmp_path / "datasets/shapes/shapes.yaml").exists()


def readme_training(opening: str) -> list[str]:
    """The words after `python` of the README's first command that begins so; train.py by its
    path.
    """
    words = next(
        command.words for command in PYTHON_COMMANDS if " ".join(command.words).startswith(opening)
    )
    return [str(ROOT / word) if word == "train.py" else word for word in words[1:]]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks a process")
def test_readme_training_runs_in_a_process_of_its_own(small, tmp_path):
    """A forked one; tests/test_launchers.py starts processes as users do."""
    flags = [*small["train.py"], "--epochs", "1", "--project", str(tmp_path / "runs")]
    _, *words = readme_training("python train.py")
    with forked([{}], [*words, *flags], tmp_path / "io") as (run,):
        assert run.end(300) == 0, run.err
    assert (tmp_path / "runs/exp/weights/best.pt").exists()


@pytest.mark.slow
def test_readme_training_runs_through_the_launcher(small, tmp_path):
    """In forked processes; tests/test_launchers.py starts the launcher's command line."""
    flags = [*small["train.py"], "--epochs", "1", "--project", str(tmp_path / "runs")]
    option, module, *words = readme_training("python -m torch.distributed.run")
    assert option == "-m"
    with forked_launcher([*words, *flags], tmp_path / "io", module=module) as job:
        assert job.end(300) == 0, job.err
    assert "in each of 2 processes" in job.out
    assert (tmp_path / "runs/exp/weights/best.pt").exists()


# ---------------------------------------------------------------------- what a page names exists

DATA_YAMLS = [
    block
    for page in USER_PAGES
    if page not in (AUGMENTATIONS_PAGE, BACKBONES_PAGE)
    for block in read_page(page)[0]
    if block.language == "yaml"
]


@pytest.mark.parametrize("block", DATA_YAMLS, ids=lambda block: f"{block.page.name}:{block.line}")
def test_documented_data_yaml_is_valid(block, tmp_path):
    for folder in ("train", "val", "test", "mine", "public"):
        (tmp_path / "images" / folder).mkdir(parents=True)
    (tmp_path / "mydata.yaml").write_text(block.text)
    spec = read_data_yaml(tmp_path / "mydata.yaml")
    assert spec.names == ("cat", "dog")
    assert {source.parent for source in spec.sources("train")} == {tmp_path / "images"}
    assert spec.download_error == ""
    assert [source.url for source in spec.download] == re.findall(r"https://\S+", block.text)


def test_documented_table_with_a_backbone_builds(tmp_path):
    (block,) = (block for block in read_page(BACKBONES_PAGE)[0] if block.language == "yaml")
    (tmp_path / "mine.yaml").write_text(block.text)
    model = check_shapes(resolve(*load_model_table(tmp_path / "mine.yaml"), 3))
    assert model.strides == (8, 16, 32)


def links_of(page: Path) -> Iterator[tuple[str, str]]:
    """Target and title of each link and picture."""
    for _, line in read_page(page)[1]:
        yield from re.findall(r"\]\(([^)\s]+)(?:\s+\"([^\"]*)\")?\)", line)


@each_page
def test_links_point_to_existing_files_and_tests(page):
    """The title of a link, if it has one, is the name of a test in the linked file."""
    for target, title in links_of(page):
        if not target.startswith("https://"):
            file = page.parent / target
            assert file.is_file(), f"{page.name}: no {target}"
            if title:
                assert re.search(rf"def {title}\(", file.read_text()), (
                    f"{page.name}: no {title} in {target}"
                )


def test_each_guarantee_is_linked_to_a_test():
    section = README.read_text().partition("## Guarantees")[2].partition("\n## ")[0]
    rows = [
        line
        for line in section.splitlines()
        if line.startswith("| ") and not line.startswith("| Kestrel")
    ]
    assert len(rows) == 10
    for row in rows:
        assert re.search(r"\]\(tests/\S+\.py \"test_\w+\"\)", row), row


def path_exists(path: str) -> bool:
    """Whether the project has this file or folder; a script or test may be called by its name
    alone.
    """
    bare = path.rstrip("/")
    if "*" in bare:
        return bool(list(ROOT.glob(bare)))
    if "/" not in bare and bare.endswith(".py"):  # by its name alone, in any folder
        return bare in script_names()
    return (ROOT / bare).exists()


@cache
def script_names() -> set[str]:
    """The names of all Python files; no folder of a cache or an environment is looked through."""
    folders = [folder for folder in ROOT.iterdir() if not folder.name.startswith((".", "venv"))]
    files = [*ROOT.glob("*.py"), *(file for folder in folders for file in folder.glob("**/*.py"))]
    return {file.name for file in files}


def paths_of(page: Path) -> Iterator[str]:
    """The words of a page's inline code that look like a file or folder of the project."""
    top = {"models", "data", "training", "utils", "tests", "benchmarks", "docs", ".ci"}
    for _, code in inline_code(read_page(page)[1]):
        for word in code.split():
            word = word.strip(",;:()")
            if ("/" in word and word.partition("/")[0] in top) or re.fullmatch(
                r"[\w*]+\.py|[A-Z]+\.md", word
            ):
                yield word
            elif re.fullmatch(r"hyp\.[\w.-]+\.yaml", word):
                yield f"data/hyps/{word}"


@each_page
def test_paths_in_pages_exist(page):
    absent = {path for path in paths_of(page) if not path_exists(path)} - NOT_IMPLEMENTED
    assert not absent


def test_path_search_finds_paths_and_detects_missing_ones():
    """The test before has something to check."""
    assert {"models/nms.py", "data/augment/plan.py"} <= set(paths_of(ROOT / "PROVENANCE.md"))
    assert "data/hyps/hyp.scratch-low.yaml" in set(paths_of(ROOT / "docs" / "recipes.md"))
    assert not path_exists("models/no_such_module")
    assert not path_exists("no_such_script.py")


def readme_tree() -> list[str]:
    """The files and folders of the README's tree."""
    blocks = [block for block in read_page(README)[0] if block.language == "text"]
    assert len(blocks) == 1
    found, folder = [], ""
    for line in blocks[0].text.splitlines():
        names = list(takewhile(lambda word: re.search(r"/$|\.py$|\*", word), line.split()))
        if line.startswith(" "):
            found += [f"{folder}{name}" for name in names if not name.startswith("*")]
        else:
            folder = names[0]
            found += names
    return found


def test_readme_tree_lists_existing_paths_and_all_packages():
    tree = readme_tree()
    assert [path for path in tree if not path_exists(path)] == []
    packages = {
        file.parent.relative_to(ROOT)
        for top in ("data", "models", "training", "utils")
        for file in ROOT.glob(f"{top}/**/*.py")
    }
    assert {f"{package}/" for package in packages} <= set(tree)


def test_readme_links_every_page():
    linked = {target for target, _ in links_of(README)}
    assert {f"docs/{page.name}" for page in USER_PAGES[1:]} <= linked
    assert {"CHANGELOG.md", "CONTRIBUTING.md", "LOG.md", "PROVENANCE.md", "SECURITY.md"} <= linked
    pictures = [ROOT / target for target in linked if target.endswith((".jpg", ".png"))]
    assert len(pictures) == 1
    assert all(picture.stat().st_size < 300_000 for picture in pictures)
