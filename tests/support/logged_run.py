"""A run without a model: it sends events to loggers, as a training would, and may be killed.

The run has 3 epochs of 4 steps. Attempt 1 is killed in the middle of epoch 2, after steps that no
checkpoint holds. Attempt 2 resumes after epoch 1 and is killed after its checkpoint of epoch 2,
before the loggers have what it holds. Attempt 3 finishes the run. The values of a step are those
of its attempt.
"""

import importlib
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

from PIL import Image

from utils.log import EpochEnded, EvaluationEnded, RunEnded, RunLog, RunStarted, StepsEnded
from utils.loggers.registry import LOGGERS
from utils.loggers.sink import open_loggers
from utils.metrics.coco import evaluate_boxes
from utils.metrics.curves import operating_curves
from utils.metrics.evaluation import Evaluation
from utils.metrics.records import Detections, GroundTruth

STEPS = 4  # of an epoch
EPOCHS = 3
DATA = "\udcff.yaml"  # a byte of this path is no UTF-8
NAMES = ["disc", "<b>square</b>"]

# What the packages of the loggers import when a run starts.
LATE_IMPORTS = {
    "wandb": ("pandas", "wandb.apis.public"),
    "mlflow": ("mlflow.store.tracking.sqlalchemy_store",),
}


def loss_of(attempt: int, step: int) -> float:
    """The loss of a step, which says in which attempt it was trained."""
    return attempt + step / 64


def evaluation() -> Evaluation:
    """Two images with a box each, of which the first is found."""
    boxes = [[0, 0, 10, 10], [5, 5, 20, 20]]
    images, classes = [1, 2], [0, 1]
    truth = GroundTruth(images, classes, boxes, [100, 400], [False, False])
    found = Detections(images, [0, 0], boxes, [0.9, 0.8])
    ids = {"image_ids": images, "class_ids": classes}
    coco = evaluate_boxes(truth, found, **ids)
    return Evaluation(2, coco, operating_curves(truth, found, **ids), truth, found)


class Run:
    """One attempt of the run.

    recorded: as the checkpoint that it resumes has it; None: a new run.
    """

    def __init__(
        self, folder: Path, attempt: int, names: list[str], recorded: int | None, epochs: int = 0
    ) -> None:
        self.folder = folder
        self.attempt = attempt
        self.rows = [self.row(epoch) for epoch in range(1, epochs + 1)]
        self.log = RunLog(active=True)
        self.loggers = open_loggers(names, self.log)
        config = {
            "epochs": EPOCHS,
            "data": ["\udcff.yaml"],
            "name": "exp",
        }  # bytes of a path that are no UTF-8
        self.log.send(
            RunStarted(
                folder,
                config,
                {"lr0": 0.01},
                self.rows,
                step=epochs * STEPS,
                images=32,
                recorded=recorded,
            )
        )

    def row(self, epoch: int) -> dict[str, float]:
        """The row of an epoch in results.csv: epoch 1 is from attempt 1, the others are later."""
        attempt = 1 if epoch == 1 else epoch
        loss = loss_of(attempt, epoch * STEPS)
        return {"epoch": epoch, "time": 2.0, "train/box_loss": loss, "val/box_loss": float("nan")}

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            losses = {"box": loss_of(self.attempt, step)}
            self.log.send(StepsEnded(step, (step - 1) // STEPS + 1, losses, lr=0.5 / step))

    def end_epoch(self) -> None:
        row = self.row(len(self.rows) + 1)
        self.rows.append(row)
        self.log.send(EpochEnded(self.folder, row, self.rows, f"epoch {row['epoch']}"))

    def draw(self, name: str) -> None:
        Image.new("RGB", (8, 6), "red").save(self.folder / name)
        self.log.image_written(self.folder / name)

    def checkpoint(self) -> int:
        recorded = self.loggers.recorded(0)
        self.loggers.checkpoint_written(recorded)
        return recorded

    def wait(self) -> None:
        """Wait until the loggers have all that they may have."""
        for follower in self.loggers._followers:
            assert follower.wait_until_sent(300), follower.logger.title
            assert not follower.failure, follower.failure

    def finish(self) -> None:
        self.log.send(EvaluationEnded(self.folder, evaluation(), NAMES, epoch=2))
        self.draw("results.png")
        self.log.send(RunEnded(self.folder, {}))
        self.log.__exit__(None, None, None)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def first(folder: Path, names: list[str]) -> None:
    run = Run(folder, 1, names, None)
    run.draw("labels.png")
    run.steps(1, 4)
    run.end_epoch()
    recorded = run.checkpoint()
    run.steps(5, 6)
    run.wait()
    (folder / "recorded").write_text(str(recorded))
    die()


def second(folder: Path, names: list[str]) -> None:
    run = Run(folder, 2, names, int((folder / "recorded").read_text()), epochs=1)
    run.draw("labels.png")
    run.steps(5, 8)
    run.end_epoch()
    run.wait()
    # last.pt is there, and the process is killed before anything else happens
    (folder / "recorded").write_text(str(run.loggers.recorded(0)))
    run.steps(9, 9)
    die()


def third(folder: Path, names: list[str]) -> None:
    run = Run(folder, 3, names, int((folder / "recorded").read_text()), epochs=2)
    run.steps(9, 12)
    run.end_epoch()
    run.checkpoint()
    run.finish()


def import_packages(names: Iterable[str]) -> None:
    """Import what the loggers of these names import in a run."""
    for name in names:
        LOGGERS[name]().prepare()
        for module in LATE_IMPORTS.get(name, ()):
            with suppress(ImportError):  # another version of the package
                importlib.import_module(module)


def run_attempts(folder: Path, names: list[str]) -> list[int | None]:
    """Run all attempts, each in a process of its own, and return their exit codes.

    They are forked from this process, which imports once what each of them would import for
    seconds.
    """
    import_packages(names)
    codes = []
    for attempt in (first, second, third):
        process = get_context("fork").Process(target=attempt, args=(folder, names))
        process.start()
        process.join()
        codes.append(process.exitcode)
    return codes
