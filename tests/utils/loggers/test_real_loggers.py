"""TensorBoard, W&B and MLflow: a run that is killed twice is read back from their own files."""

import json
import os
import signal
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.logged_run import EPOCHS, NAMES, STEPS, loss_of
from tests.support.own_process import run_program
from tests.support.wandb_file import history_of, records_of
from utils.log import RunLog, RunStarted
from utils.loggers.base import LoggedRun
from utils.loggers.registry import LOGGERS
from utils.loggers.sink import open_loggers
from utils.loggers.wandb_log import is_logged_in, server_url

VARIABLES = ("WANDB_", "MLFLOW_", "NETRC")

# Attempt 1 ends with the checkpoint of epoch 1, attempt 2 with that of epoch 2.
STEP_LOSSES = {
    step: loss_of((step - 1) // STEPS + 1, step) for step in range(1, STEPS * EPOCHS + 1)
}
EPOCH_LOSSES = {epoch: loss_of(epoch, epoch * STEPS) for epoch in range(1, EPOCHS + 1)}

Values = list[tuple[int, float]]  # step and value


# A program: the attempts of a run, without the settings of this machine.
ATTEMPTS = f"""
import os, sys
from pathlib import Path
for name in list(os.environ):
    if name.startswith({VARIABLES}):
        del os.environ[name]
os.environ.update(KESTREL_LOGGER_WAIT="300", HOME=os.getcwd())
from tests.support.logged_run import run_attempts
folder, *names = sys.argv[1:]
print("exit codes", run_attempts(Path(folder), names))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run, with all loggers."""
    for package in LOGGERS:
        pytest.importorskip(package, reason="an optional package")
    project = tmp_path_factory.mktemp("runs")
    folder = project / "exp"
    folder.mkdir()
    done = run_program(ATTEMPTS, folder, *LOGGERS, folder=project)
    killed = -int(signal.SIGKILL)
    assert done.stdout.endswith(f"exit codes {[killed, killed, 0]}\n"), done.stderr
    assert "it is left out" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def events(folder: Path) -> Any:
    """TensorBoard's own reader of the folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    kinds = ("scalars", "images", "tensors")
    reader = EventAccumulator(str(folder), size_guidance=dict.fromkeys(kinds, 0))
    return reader.Reload()


@pytest.fixture(scope="module")
def history(folder: Path) -> list[dict[str, Any]]:
    """The rows of all files of W&B."""
    return [row for file in folder.glob("wandb/**/*.wandb") for row in history_of(file)]


@pytest.fixture(scope="module")
def client(folder: Path) -> Any:
    """MLflow's client."""
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{folder.parent}/mlflow/mlflow.db")


@pytest.fixture(scope="module")
def mlflow_run(client: Any) -> Any:
    """The only run in the store."""
    experiment = client.get_experiment_by_name("kestrel")
    (run,) = client.search_runs([experiment.experiment_id])
    return run


def sorted_values(values: dict[int, float]) -> Values:
    return sorted(values.items())


# ---------------------------------------------------------------------- TensorBoard


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tag", "expected"), [("step/box_loss", STEP_LOSSES), ("train/box_loss", EPOCH_LOSSES)]
)
def test_tensorboard_has_each_step_once(events, tag, expected):
    found = [(event.step, event.value) for event in events.Scalars(tag)]
    assert sorted(found) == sorted_values(expected)  # numbers that float32 holds exactly


@pytest.mark.slow
def test_tensorboard_files_have_no_step_twice(folder):
    """Without EventAccumulator, which drops what was logged before a restart."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    places: Counter[tuple[str, int]] = Counter()
    for file in folder.glob("*tfevents*"):
        for data in RawEventFileLoader(str(file)).Load():
            event = Event.FromString(data)
            places.update((value.tag, event.step) for value in event.summary.value)
    assert len(places) > 30
    assert set(places.values()) == {1}


@pytest.mark.slow
def test_tensorboard_has_pictures_curves_and_settings(events):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    assert [(image.step, image.width, image.height) for image in events.Images("labels")] == [
        (0, 8, 6)
    ]
    assert [image.step for image in events.Images("results")] == [EPOCHS]

    # The first class is found with a score of 0.9 and has a false positive of 0.8.
    (curve,) = events.Tensors(f"PR/{NAMES[0]}")
    rows = curve.tensor_proto  # true and false positives, true and false negatives, P, R
    assert [dim.size for dim in rows.tensor_shape.dim] == [6, 101]
    assert [event.value for event in events.Scalars(f"class_AP50/{NAMES[1]}")] == [0]
    assert events.Scalars("evaluation/epoch")[0].value == 2

    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    settings = HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["lr0"].number_value == 0.01
    assert settings["data"].string_value == r"\udcff.yaml"


# ---------------------------------------------------------------------- W&B


@pytest.mark.slow
def test_wandb_has_each_step_once(history):
    steps = [(row["step"], row["step/box_loss"]) for row in history if "step/box_loss" in row]
    assert steps == sorted_values(STEP_LOSSES)
    epochs = [(row["epoch"], row["train/box_loss"]) for row in history if "train/box_loss" in row]
    assert epochs == sorted_values(EPOCH_LOSSES)
    numbers = [row["_step"] for row in history]
    assert numbers == list(range(len(history)))


@pytest.mark.slow
def test_wandb_has_pictures_classes_and_settings(folder, history):
    (file,) = folder.glob("wandb/**/*.wandb")
    pictures = [row["pictures/labels.path"] for row in history if "pictures/labels.path" in row]
    assert len(pictures) == 1
    assert (file.parent / "files" / pictures[0]).read_bytes() == (
        folder / "labels.png"
    ).read_bytes()

    (table,) = file.parent.glob("files/media/table/evaluation/classes_*.json")
    rows = json.loads(table.read_text())
    assert [row[0] for row in rows["data"]] == NAMES
    (run,) = [record.run for record in records_of(file) if record.HasField("run")]
    settings = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (settings["epochs"], settings["hyp"]) == (EPOCHS, {"lr0": 0.01})
    assert run.display_name == "exp"


# ---------------------------------------------------------------------- MLflow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "expected"), [("step/box_loss", STEP_LOSSES), ("train/box_loss", EPOCH_LOSSES)]
)
def test_mlflow_has_each_step_once(client, mlflow_run, key, expected):
    history = client.get_metric_history(mlflow_run.info.run_id, key)
    assert sorted((metric.step, metric.value) for metric in history) == sorted_values(expected)


@pytest.mark.slow
def test_mlflow_has_pictures_classes_and_settings(client, mlflow_run):
    assert mlflow_run.info.status == "FINISHED"
    files = {file.path for file in client.list_artifacts(mlflow_run.info.run_id)}
    assert files == {"labels.png", "results.png"}
    assert mlflow_run.data.params["lr0"] == "0.01"
    assert mlflow_run.data.params["data"] == r"\udcff.yaml"
    assert mlflow_run.data.metrics["class_AP50/1 _b_square__b_"] == 0
    assert mlflow_run.data.metrics["evaluation/epoch"] == 2


@pytest.mark.slow
def test_pictures_of_mlflow_store_are_no_training_images(folder):
    assert (folder.parent / "mlflow" / "kestrel-run.txt").exists()


# ---------------------------------------------------------------------- opening


@pytest.mark.parametrize("name", LOGGERS)
def test_missing_package_is_one_sentence_with_its_pip_command(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)  # as if it was not installed
    with pytest.raises(ValueError, match=f"--{name} needs the package {name}: pip install {name}$"):
        LOGGERS[name]().prepare()


@pytest.mark.parametrize(
    ("variables", "settings", "netrc", "logged_in"),
    [
        ({}, "", "", False),
        ({"WANDB_API_KEY": "k"}, "", "", True),
        ({}, "", "machine api.wandb.ai login user password k", True),
        ({}, "", "machine example.com login user password k", False),
        ({}, "[default]\nbase_url = https://example.com", "machine example.com password k", True),
        ({"WANDB_BASE_URL": "https://a.b:8"}, "", "machine a.b login user password k", True),
        ({}, "no section", "machine", False),
    ],
)
def test_wandb_login_is_found_without_asking(
    tmp_path, monkeypatch, variables, settings, netrc, logged_in
):
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings").write_text(settings)
    (tmp_path / ".netrc").write_text(netrc)
    (tmp_path / ".netrc").chmod(0o600)
    assert is_logged_in(server_url()) == logged_in


@pytest.mark.parametrize(
    ("name", "variables", "place"),
    [
        ("wandb", {"WANDB_MODE": "offline", "WANDB_API_KEY": "k"}, ""),
        ("wandb", {"WANDB_API_KEY": "k"}, "me/kestrel at https://api.wandb.ai"),
        (
            "wandb",
            {
                "WANDB_API_KEY": "k",
                "WANDB_PROJECT": "p",
                "WANDB_BASE_URL": "http://a:pass@b:8",
            },
            "me/p at http://b:8",
        ),
        ("mlflow", {}, ""),
        ("mlflow", {"MLFLOW_TRACKING_URI": "sqlite:///a.db"}, ""),
        ("mlflow", {"MLFLOW_TRACKING_URI": "/a/store"}, ""),
        (
            "mlflow",
            {"MLFLOW_TRACKING_URI": "https://a:pass@b/c", "MLFLOW_EXPERIMENT_NAME": "e"},
            "experiment e at https://b/c",
        ),
        ("mlflow", {"MLFLOW_TRACKING_URI": "databricks"}, "experiment kestrel at databricks"),
        ("tensorboard", {}, ""),
    ],
)
def test_where_a_logger_named_in_a_file_sends_to_is_said_first(
    tmp_path, monkeypatch, capsys, name, variables, place
):
    pytest.importorskip(name, reason="an optional package")
    for variable in list(os.environ):
        if variable.startswith(VARIABLES):
            monkeypatch.delenv(variable)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    log = RunLog(active=True)
    open_loggers([name], log, account="me", named_in="last.pt")
    title = LOGGERS[name].title
    sentence = (
        f"{title} sends the run to {place}, because last.pt says so; to stop it, give --loggers "
        "without a name\n"
    )
    assert capsys.readouterr().err == (sentence if place else "")
    open_loggers([name], log, account="me")
    assert capsys.readouterr().err == ""


def test_variables_of_one_wandb_run_are_not_those_of_the_next(tmp_path, monkeypatch):
    """Also if W&B fails, or hangs. What the user has set stays."""
    pytest.importorskip("wandb", reason="an optional package")
    for variable in ("WANDB_DATA_DIR", "WANDB_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("WANDB_CACHE_DIR", "/mine")
    monkeypatch.setenv("WANDB_MODE", "offline")
    seen = []

    def fails(_: object) -> None:
        seen.append((os.environ["WANDB_DATA_DIR"], os.environ["WANDB_CACHE_DIR"]))
        raise RuntimeError("no process can be started")

    monkeypatch.setattr("wandb.setup", fails)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with RunLog(active=True, sinks=[]) as log:
            loggers = open_loggers(["wandb"], log)
            log.send(RunStarted(tmp_path / name, {}, {}, []))
            assert loggers._followers[0].wait_until_sent(30)
        assert "WANDB_DATA_DIR" not in os.environ
        assert os.environ["WANDB_CACHE_DIR"] == "/mine"
    assert seen == [(str(tmp_path / name / "wandb" / "data"), "/mine") for name in ("a", "b")]


def run_in(folder: Path, *, restarts: bool = False) -> LoggedRun:
    """A resumed run in a folder."""
    return LoggedRun(
        folder,
        {},
        {},
        "",
        resumed=True,
        restarts=restarts,
        recorded=0,
        notes=folder / "tensorboard.json",
        say=print,
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-3],
        lambda whole: whole[:-30] + b"\xff" * 30,  # of a power cut
        lambda whole: whole + b"\xff" * 40,
    ],
    ids=["torn", "wrong data", "wrong length"],
)
def test_damaged_tensorboard_event_is_cut_off(tmp_path, damage):
    pytest.importorskip("tensorboard", reason="an optional package")
    from tests.utils.loggers.test_sink import record

    def open_log(restarts: bool = False) -> tuple[Any, int]:
        logger = LOGGERS["tensorboard"]()
        logger.prepare()
        return logger, logger.start(run_in(tmp_path, restarts=restarts))

    first, known = open_log()
    assert known == 0
    first.log([record(0), record(1)])
    first.finish("interrupted")
    (file,) = tmp_path.glob("*tfevents*")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))

    second, known = open_log()
    second.log([record(0), record(1)][known:])
    second.finish("finished")
    assert file.read_bytes() == whole

    third, known = open_log(restarts=True)  # older records are taken back
    assert known == 0
    third.finish("finished")
    (file,) = tmp_path.glob("*tfevents*")
    assert file.read_bytes() != whole


def test_tensorboard_writes_to_no_file_that_a_link_names(tmp_path):
    """The run folder may come from somebody else."""
    pytest.importorskip("tensorboard", reason="an optional package")
    theirs = tmp_path / "notes.txt"
    theirs.write_text("theirs")
    folder = tmp_path / "exp"
    folder.mkdir()
    link = folder / "events.out.tfevents.1"
    link.symlink_to(theirs)
    run = run_in(folder)
    run.keep(file=link.name)

    logger = LOGGERS["tensorboard"]()
    logger.prepare()
    assert logger.start(run) == 0
    logger.finish("finished")
    assert theirs.read_text() == "theirs"


@pytest.mark.slow
def test_mlflow_store_is_whole_or_not_there(tmp_path):
    """MLflow cannot use a database that was left while its tables were created."""
    pytest.importorskip("mlflow", reason="an optional package")
    folder = tmp_path / "exp"
    store = tmp_path / "mlflow"
    for path in (folder, store):
        path.mkdir()
    with closing(sqlite3.connect(store / "mlflow.new.db")) as left:
        left.execute("CREATE TABLE metrics (step INTEGER)")
        left.commit()

    logger = LOGGERS["mlflow"]()
    logger.prepare()
    logger.start(run_in(folder))
    logger.finish("finished")
    assert [file.name for file in store.glob("*.db*")] == ["mlflow.db"]
