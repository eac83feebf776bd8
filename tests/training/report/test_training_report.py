"""The report of a training: when it is written, and what it says then."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from training.report import training
from training.report.training import MAX_SHARE, TrainingReport
from training.settings.config import TrainConfig
from training.settings.hyperparameters import Hyp
from utils.distributed.world import World
from utils.log import EpochEnded, LogClosed, RunEnded, RunStarted, Say, say_nothing

CPU = World(torch.device("cpu"))


def values_of(folder: Path) -> dict:
    """The values in a report."""
    page = (folder / "report.html").read_text(encoding="utf-8")
    (text,) = re.findall(r'id="values">(.*?)</script>', page)
    return json.loads(text)


def report_of(*, active: bool = True, say: Say = say_nothing) -> TrainingReport:
    report = SimpleNamespace(
        images=8, background=1, instances=20, problem_counts=[("note", 3), ("row dropped", 2)]
    )
    data = SimpleNamespace(
        names=["cat"],
        labels={"train": range(8), "val": range(4)},
        file=Path("pets.yaml"),
        unit="image",
        reports={"train": report},
        digests={"train": "8 images with 20 boxes, 0123abcd"},
    )
    return TrainingReport(data, CPU, [("model", "yolov5n.yaml")], say, active=active)


def started(folder: Path, rows: list[dict[str, float]]) -> RunStarted:
    config = TrainConfig(epochs=5).as_dict()
    return RunStarted(folder, config, Hyp(lr0=0.02).as_dict(), rows, images=12)


def rows(number: int) -> list[dict[str, float]]:
    return [{"epoch": epoch, "time": 2.0, "lr": 0.1} for epoch in range(1, number + 1)]


def test_report_is_there_from_the_start_and_says_how_the_run_ended(tmp_path):
    report = report_of()
    report.handle(started(tmp_path, []))
    values = values_of(tmp_path)
    assert values["status"] == {"state": "running", "text": "running: 0 of 5 epochs"}
    assert values["epochs"] == {}
    assert values["evaluation"] is None
    assert ["epochs", "5", True] in values["settings"]
    assert ["imgsz", "640", False] in values["settings"]
    assert ["lr0", "0.02", True] in values["hyp"]
    facts = {title: dict(facts) for title, facts in values["facts"]}
    assert facts["Data"]["train"] == "8 images, 1 of them without objects; 20 boxes"
    assert facts["Data"]["train, problems"] == "2: see data_report.json"
    assert facts["Data"]["train, digest"] == "8 images with 20 boxes, 0123abcd"
    assert facts["Environment"]["torch"] == str(torch.__version__)

    report.handle(EpochEnded(tmp_path, rows(1)[0], rows(1), ""))
    report.handle(RunEnded(tmp_path, {}))
    values = values_of(tmp_path)
    assert values["status"]["text"] == "finished: stopped early, 1 of 5 epochs"
    assert values["epochs"]["per_second"] == [6.0]  # 12 drawn in 2 seconds


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_report_says_that_the_run_was_cut_short(status, tmp_path):
    report = report_of()
    report.handle(LogClosed(status))  # before there is a folder
    report.handle(started(tmp_path, rows(2)))
    report.handle(LogClosed(status))
    values = values_of(tmp_path)
    assert values["status"] == {"state": status, "text": f"{status}: 2 of 5 epochs"}
    assert status not in dict(dict(values["facts"])["Time"])

    report.handle(LogClosed(status, "most steps were skipped"))
    assert dict(values_of(tmp_path)["facts"])["Time"][-1] == [status, "most steps were skipped"]


def test_report_of_an_interrupted_run_has_its_last_validation(tmp_path, monkeypatch):
    """Also if the report was not due after that epoch. Epoch 3 is not validated."""
    monkeypatch.setattr(training, "result_values", lambda evaluation, names, of: {"of": of})
    report = report_of()
    report.handle(started(tmp_path, []))
    for epoch, evaluation in ((1, object()), (2, object()), (3, None)):
        report._cost = 0.0 if epoch == 1 else 1e9
        report.handle(EpochEnded(tmp_path, rows(epoch)[-1], rows(epoch), "", evaluation))
    assert "epoch 1" in values_of(tmp_path)["evaluation"]["of"]
    report.handle(LogClosed("interrupted"))
    values = values_of(tmp_path)
    assert "epoch 2" in values["evaluation"]["of"]
    assert values["epochs"]["epoch"] == [1, 2, 3]


def test_resumed_run_has_its_earlier_epochs(tmp_path):
    report_of().handle(started(tmp_path, rows(3)))
    assert values_of(tmp_path)["epochs"]["epoch"] == [1, 2, 3]


def test_inactive_report_writes_nothing(tmp_path):
    report = report_of(active=False)
    for event in (started(tmp_path, []), RunEnded(tmp_path, {})):
        report.handle(event)
    assert list(tmp_path.iterdir()) == []


def test_report_takes_a_small_share_of_the_time(tmp_path, monkeypatch):
    """Each write takes 1 s, so the next one is due after 1 / MAX_SHARE seconds."""
    now = [0.0]
    monkeypatch.setattr(training.time, "monotonic", lambda: now[0])
    written = []
    real = training.ReportPage.write

    def write(page, folder):
        written.append(len(page.epochs.get("epoch", [])))
        now[0] += 1
        real(page, folder)

    monkeypatch.setattr(training.ReportPage, "write", write)
    report = report_of()
    report.handle(started(tmp_path, []))
    for epoch in range(1, 6):
        now[0] += 0.4 / MAX_SHARE
        report.handle(EpochEnded(tmp_path, rows(epoch)[-1], rows(epoch), ""))
    # at the start; after epoch 1; after epoch 4, 1.2 / MAX_SHARE seconds later
    assert written == [0, 1, 4]
    report.handle(RunEnded(tmp_path, {}))
    assert written[-1] == 5


def test_full_disk_leaves_the_old_report_and_the_run_goes_on(tmp_path, monkeypatch):
    said = []
    report = report_of(say=said.append)
    report.handle(started(tmp_path, []))
    before = (tmp_path / "report.html").read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    for epoch in (1, 2):
        report.handle(EpochEnded(tmp_path, rows(epoch)[-1], rows(epoch), ""))
    report.handle(RunEnded(tmp_path, {}))
    report.handle(LogClosed("failed"))
    file = tmp_path / "report.html"
    assert said == [
        f"report.html is not complete ([Errno 28] No space left on device: '{file}'): the run goes "
        "on without it"
    ]
    assert (tmp_path / "report.html").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
