"""The rules of this code base, checked on its sources: imports, forbidden calls, settings that
nobody reads.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from data.augment.records import Augmentation
from training.settings.config import TrainConfig
from training.settings.hyperparameters import Hyp

ROOT = Path(__file__).parents[1]
PACKAGES = ("data", "models", "training", "utils")
SCRIPTS = sorted(ROOT.glob("*.py"))
SOURCES = sorted(
    [*SCRIPTS, *(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))]
)
MAY_IMPORT = {
    "utils": {"utils"},
    "models": {"models", "utils"},
    "data": {"data", "utils"},
    "training": {"training", "models", "data", "utils"},
}

TUNE = ROOT / "training" / "tune" / "__main__.py"  # a script: its trials are train.py's trainings


def each_source(check: Callable[[Path], None]) -> Callable[[], None]:
    """Return one test that checks every source file, and lists those that fail."""

    def check_all() -> None:
        failures = []
        for file in SOURCES:
            try:
                check(file)
            except AssertionError as error:
                failures.append(f"{file.relative_to(ROOT)}: {error}")
        assert not failures, "\n".join(failures)

    check_all.__doc__ = check.__doc__
    return check_all


@cache
def nodes(file: Path) -> list[ast.AST]:
    """The nodes of a file's syntax tree, kept because each rule looks at them."""
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))))


@cache
def imported(file: Path) -> set[str]:
    """Full names of the modules that a file imports."""
    names = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
            assert node.level == 0, f"{file} line {node.lineno}: a relative import"
    return names


def dotted_name(node: ast.AST) -> str:
    """The dotted name of an expression, such as `os.path.join`; "" if it is anything but names and
    dots.
    """
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted_name(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


@cache
def calls(file: Path) -> list[tuple[str, dict[str, ast.expr]]]:
    """The dotted name of each call, and its keyword arguments."""
    found = []
    for node in nodes(file):
        if isinstance(node, ast.Call):
            keywords = {keyword.arg or "": keyword.value for keyword in node.keywords}
            found.append((dotted_name(node.func), keywords))
    return found


@pytest.fixture(autouse=True, scope="module")
def _kept_trees() -> Iterator[None]:
    """Drop the trees at the end: every garbage collection of later tests would visit them."""
    yield
    for function in (nodes, imported, calls):
        function.cache_clear()


def test_source_files_are_found():
    assert {file.name for file in SCRIPTS} >= {"train.py", "val.py"}
    assert len(SOURCES) > 30


@each_source
def test_imports_follow_package_order(file):
    package = file.relative_to(ROOT).parts[0]
    ours = {*PACKAGES, *(script.stem for script in SCRIPTS), "tests", "benchmarks"}
    allowed = MAY_IMPORT.get(package, {*PACKAGES, *(script.stem for script in SCRIPTS)})
    if file == TUNE:
        allowed = allowed | {"train"}
    assert {name.partition(".")[0] for name in imported(file)} & ours <= allowed


# The packages that each package inside utils/ may import; "" are the single modules of utils/.
ALLOWED_UTILS_IMPORTS = {
    "": {"", "command_line"},
    "command_line": {"", "command_line"},
    "files": {"", "files"},
    "images": {"", "images"},
    "loggers": {"", "files", "metrics", "loggers"},
    "distributed": {"", "files", "distributed"},
    "metrics": {"", "files", "images", "metrics"},
    "outputs": {"", "files", "images", "metrics", "plots", "outputs"},
    "plots": {"", "files", "images", "plots"},
    "report": {"", "report"},
}
ALLOWED_TO_LOG = {"", "metrics", "loggers"}  # types of events, and the sinks that all scripts have


def package_of(file: Path) -> str:
    """The package of utils/ that a file belongs to, "" for the single modules."""
    parts = file.relative_to(ROOT / "utils").parts
    return parts[0] if len(parts) > 1 else ""


@each_source
def test_utils_packages_import_only_allowed_packages(file):
    if not file.is_relative_to(ROOT / "utils"):
        return
    allowed = ALLOWED_UTILS_IMPORTS[package_of(file)]
    if file == ROOT / "utils" / "log.py":
        allowed = ALLOWED_TO_LOG
    parts = [name.split(".") for name in imported(file) if name.startswith("utils.")]
    assert {part[1] if part[1] in ALLOWED_UTILS_IMPORTS else "" for part in parts} <= allowed


@pytest.mark.parametrize("top", ["data", "models", "training", "utils"])
def test_packages_do_not_import_each_other(top):
    """Of two packages of a folder one stands on the other."""
    packages = sorted(folder.name for folder in (ROOT / top).iterdir() if any(folder.glob("*.py")))
    uses = {
        package: {
            name.split(".")[1]
            for file in (ROOT / top / package).rglob("*.py")
            for name in imported(file)
            if name.startswith(f"{top}.")
        }
        for package in packages
    }
    assert len(packages) > 1
    for package in packages:
        for other in uses[package] & {*packages} - {package}:
            assert package not in uses[other], sorted([package, other])


MAX_MODULES = 15


def test_folders_have_few_modules():
    files = [*SOURCES, *(ROOT / "benchmarks").rglob("*.py")]
    for folder in {file.parent for file in files}:
        modules = [file.name for file in folder.glob("*.py") if file.name != "__init__.py"]
        assert len(modules) <= MAX_MODULES, f"{folder}: {len(modules)} modules"


def test_test_folders_mirror_source_folders():
    """A test is in the folder of what it tests; tests of scripts, or of several packages, are at
    the top.
    """
    tests = ROOT / "tests"
    folders = {file.parent.relative_to(tests) for file in tests.rglob("test_*.py")} - {Path()}
    assert folders <= {file.parent.relative_to(ROOT) for file in SOURCES}
    for folder in folders:
        package = ".".join(folder.parts)
        files = (tests / folder).glob("test_*.py")
        imports = (name for file in files for name in imported(file))  # few files are read
        assert any(name.startswith(package) for name in imports), f"{folder} tests something else"
    names = [file.name for file in tests.rglob("test_*.py")]
    assert len(names) == len(set(names)), "pytest needs unique file names"


@each_source
def test_sources_never_execute_code_or_programs(file):
    found = {name.partition(".")[0] for name in imported(file)}
    assert not found & {
        "subprocess",
        "marshal",
        "shelve",
        "dill",
        "cloudpickle",
        "joblib",
        "runpy",
        "code",
        "requests",
    }
    names = {name for name, _ in calls(file)}
    assert not names & {
        "eval",
        "exec",
        "compile",
        "__import__",
        "os.system",
        "os.popen",
        "yaml.load",
        "torch.hub.load",
    }
    assert not {
        name
        for name in names
        if re.fullmatch(r"pickle\.(load|loads|Unpickler)|yaml\.(unsafe|full)_load.*", name)
    }
    assert not {name for name in names if re.fullmatch(r"os\.(exec|spawn|posix_spawn).*", name)}
    assert not {
        name
        for name in imported(file)
        if re.fullmatch(r"pickle\.(load|loads|Unpickler)|os\.system", name)
    }


@each_source
def test_load_calls_use_safe_options(file):
    for name, keywords in calls(file):
        safe = {
            key: isinstance(value, ast.Constant) and value.value for key, value in keywords.items()
        }
        if name == "torch.load":
            assert safe.get("weights_only") is True
        assert "weights_only" not in safe or safe["weights_only"] is True
        assert "allow_pickle" not in safe or safe["allow_pickle"] is False
        assert "shell" not in safe


NETWORK = r"(urllib\.request|http\.client|ssl|ftplib|smtplib|xmlrpc|socketserver|asyncio)(\..*)?"


@each_source
def test_only_download_module_uses_network(file):
    """And four modules call it, if the user allows it. Connections between processes are separate
    (rendezvous.py).
    """
    network = {name for name in imported(file) if re.fullmatch(NETWORK, name)}
    assert not network or file == ROOT / "utils" / "files" / "download.py"
    called = {name.rpartition(".")[2] for name, _ in calls(file)}
    callers = ("data/fetching.py", "models/image_inputs.py", "models/weights/pretrained.py")
    assert "fetch" not in called or file in [ROOT / caller for caller in callers]
    assert "open_remote" not in called or file == ROOT / "data" / "sources" / "stream_reader.py"
    assert "open_response" not in called or file.parent == ROOT / "utils" / "files"
    assert "fetch_data" not in called or file == ROOT / "data" / "layouts" / "opening.py"


@each_source
def test_sources_contain_no_assert(file):
    assert not [node.lineno for node in nodes(file) if isinstance(node, ast.Assert)]


@each_source
def test_sources_have_no_vague_file_names_or_machine_paths(file):
    assert not re.search(r"helper|misc|common|general", file.name)
    assert not re.search(r"[\"'\s](/work|/tmp|/home|/root)/", file.read_text(encoding="utf-8"))


IMPORT_EVERYTHING = """
import builtins, importlib, os, socket, subprocess, sys, threading

def refuse(*arguments, **keywords):
    raise RuntimeError(f"at import: {arguments}")

real_open = builtins.open
def reading(file, mode="r", *rest, **keywords):
    return real_open(file, mode, *rest, **keywords) if not set(mode) & set("wax+") else refuse(file, mode)

import torch, torchvision, cv2, matplotlib.pyplot, matplotlib.font_manager, pycocotools, tqdm, yaml, numpy, PIL.Image
import pycocotools.cocoeval, torch.utils.flop_counter, torch.utils.data
socket.socket = socket.create_connection = subprocess.Popen = os.system = os.mkdir = os.makedirs = refuse
builtins.open = reading
state, threads, environment = torch.random.get_rng_state(), threading.active_count(), dict(os.environ)
for name in sys.argv[1:]:
    importlib.import_module(name)
problems = {
    "CUDA was initialized": torch.cuda.is_initialized(),
    "a thread was started": threading.active_count() > threads,
    "random numbers were drawn": not torch.random.get_rng_state().equal(state),
    "the environment was changed": dict(os.environ) != environment,
}
sys.exit(", ".join(text for text, true in problems.items() if true) or 0)
"""  # noqa: E501


@pytest.mark.slow
def test_importing_modules_has_no_side_effects():
    modules = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in SOURCES
    ]
    command = [sys.executable, "-B", "-c", IMPORT_EVERYTHING, *modules]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ------------------------------------------------------------------ every setting is read somewhere


def attributes_read(files: list[Path]) -> set[tuple[str, str]]:
    """(object, attribute) of each attribute that is read: ("cfg", "epochs") for `cfg.epochs`."""
    return {
        (dotted_name(node.value).rpartition(".")[2], node.attr)
        for file in files
        for node in nodes(file)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def method(file: Path, name: str) -> ast.FunctionDef:
    return next(
        node for node in nodes(file) if isinstance(node, ast.FunctionDef) and node.name == name
    )


def test_every_config_field_is_read():
    config = ROOT / "training" / "settings" / "config.py"
    files = [ROOT / "train.py", *sorted((ROOT / "training").rglob("*.py"))]
    holders = ("cfg", "config", "requested", "flags")
    read = {name for base, name in attributes_read(files) if base in holders}
    properties = {name for name, kind in vars(TrainConfig).items() if isinstance(kind, property)}
    assert properties <= read
    for name in properties:  # settings that follow from several flags
        of_property = {
            node.attr for node in ast.walk(method(config, name)) if isinstance(node, ast.Attribute)
        }
        read |= of_property
    assert {field.name for field in fields(TrainConfig)} - read == set()


def test_every_config_field_has_a_flag():
    added = {
        argument.value.removeprefix("--").replace("-", "_")
        for node in nodes(ROOT / "train.py")
        if isinstance(node, ast.Call) and dotted_name(node.func) == "add"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }
    assert {field.name for field in fields(TrainConfig)} - added == {"given"}


def test_every_hyperparameter_is_read():
    groups = ROOT / "training" / "settings" / "groups.py"
    files = [ROOT / "train.py", ROOT / "training" / "start.py", groups]
    read = {name for base, name in attributes_read(files) if base == "hyp"}
    assert {field.name for field in fields(Hyp)} - read == set()
    called = {name for name, _ in calls(ROOT / "train.py")}
    assert {"augmentation", "loss_gains", "schedule"} <= called

    in_data = {name for _, name in attributes_read(sorted((ROOT / "data").rglob("*.py")))}
    assert {field.name for field in fields(Augmentation)} - in_data == set()


def test_help_keeps_the_line_breaks_of_its_commands():
    """A backslash at the end of a line joins it with the next one unless the docstring is raw."""
    for file in [*SCRIPTS, *(ROOT / "benchmarks").rglob("*.py")]:
        source = file.read_text()
        documented = ast.parse(source).body[0]
        text = ast.get_source_segment(source, documented)
        assert text.startswith('r"""') or "\\\n" not in text, f"{file}: the docstring must be raw"
