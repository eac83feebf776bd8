"""MLflow: the server of $MLFLOW_TRACKING_URI, else an SQLite store in the project folder."""

import logging
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from utils.files.disk import exclusive_access
from utils.files.folders import RUN_MARK, RUN_MARK_TEXT
from utils.files.sqlite_url import sqlite_url
from utils.log import FAILED, FINISHED
from utils.loggers.base import STEPS, LoggedRun, Logger, Record, without_login
from utils.optional_packages import import_all_optional

PURPOSE = "--mlflow"
EXPERIMENT = "kestrel"  # where $MLFLOW_EXPERIMENT_NAME names no other
LOCAL = ("", "file", "sqlite")  # schemes of stores that are files
STORE = "mlflow"  # folder of the store, in the project folder
MOST_METRICS = 900  # in a request; 1000 are allowed
MOST_PARAMS = 90  # 100 are allowed
LONGEST_PARAM = 500  # characters
LONGEST_NAME = 100  # characters of a class's name
NOT_ALLOWED = re.compile(r"[^\w.\- ]")  # in names of metrics
STATUS = {FINISHED: "FINISHED", FAILED: "FAILED"}  # else KILLED


class MlflowLogger(Logger):
    """Logs through MLflow's client.

    MLflow keeps all values of a metric, also two for one step. So what a resumed run finds there is
    not logged again.
    """

    title = "MLflow"
    help = "log to MLflow: $MLFLOW_TRACKING_URI, or a store in the project folder"

    def prepare(self) -> str:
        # Read when MLflow is imported: no usage data to MLflow's makers.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("DO_NOT_TRACK", "true")
        modules = ["mlflow", "mlflow.entities"]
        self.mlflow, self.entities = import_all_optional(modules, PURPOSE)
        # Its lines on the creation of the store.
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        return ""

    def destination(self, account: str) -> str:
        uri = tracking_uri()
        if urlsplit(uri).scheme in LOCAL and not uri.startswith("databricks"):
            return ""
        return f"experiment {experiment_name()} at {without_login(uri)}"

    def start(self, run: LoggedRun) -> int:
        self.logged = run
        uri = tracking_uri()
        kept = run.kept() if run.resumed else {}
        before = kept.get("run_id", "") if kept.get("uri") == uri else ""

        experiment = self._connect(run, uri)
        self.known: set[tuple[str, int]] = set()
        self.known_files: set[str] = set()
        if before and not run.restarts:
            self.id = before
            self.client.update_run(self.id, status="RUNNING")
            self._find_known()
        else:
            if before:  # the values that are taken back cannot be removed from it
                self.client.set_terminated(before, "KILLED")
            self.id = self.client.create_run(experiment, run_name=run.name).info.run_id
            run.keep(run_id=self.id, uri=uri)
        self._log_settings(run)
        return 0

    def log(self, records: Sequence[Record]) -> None:
        metrics = [metric for record in records for metric in self._metrics(record)]
        for first in range(0, len(metrics), MOST_METRICS):
            self.client.log_batch(self.id, metrics=metrics[first : first + MOST_METRICS])

        for record in records:
            path = self.logged.picture(record)
            is_there = record.number < self.logged.recorded and record.file in self.known_files
            if path and not is_there:
                self.client.log_artifact(self.id, str(path))

    def finish(self, status: str) -> None:
        self.client.set_terminated(self.id, STATUS.get(status, "KILLED"))

    # ---- opening

    def _connect(self, run: LoggedRun, uri: str) -> str:
        """Open the store, and return the id of the experiment, which is created if it is new."""
        if uri:
            self.client = self.mlflow.MlflowClient(tracking_uri=uri)
            return self._experiment(None)

        store = run.folder.resolve().parent / STORE
        with exclusive_access(store):  # two runs may create it at once
            mark = store / RUN_MARK
            if not mark.exists():  # its pictures are no data to train on
                mark.write_text(RUN_MARK_TEXT)
            database = store / "mlflow.db"
            if not database.exists():
                self._create(database)
            self.client = self._client_of(database)
            return self._experiment((store / "artifacts").as_uri())

    def _create(self, database: Path) -> None:
        """Create MLflow's tables in a new file.

        That takes some seconds, and MLflow cannot use a database which a killed process has left
        with a part of them. So they are created beside it, and copied.
        """
        work = database.with_name("mlflow.new.db")
        whole = database.with_name("mlflow.whole.db")
        for file in database.parent.glob("mlflow.*.db*"):
            file.unlink()
        self._client_of(work).search_experiments(max_results=1)
        with closing(sqlite3.connect(work)) as source, closing(sqlite3.connect(whole)) as target:
            source.backup(target)
        os.replace(whole, database)
        work.unlink()

    def _client_of(self, database: Path) -> Any:
        return self.mlflow.MlflowClient(tracking_uri=sqlite_url(database, PURPOSE))

    def _experiment(self, artifacts: str | None) -> str:
        name = experiment_name()
        found = self.client.get_experiment_by_name(name)
        if found is None:
            return str(self.client.create_experiment(name, artifact_location=artifacts))
        return str(found.experiment_id)

    def _find_known(self) -> None:
        """Find the values and files that the run has from processes before."""
        for key in self.client.get_run(self.id).data.metrics:
            history = self.client.get_metric_history(self.id, key)
            self.known |= {(key, metric.step) for metric in history}
        self.known_files = {file.path for file in self.client.list_artifacts(self.id)}

    def _log_settings(self, run: LoggedRun) -> None:
        """Log flags and hyper-parameters; those that a resume has changed as tags.

        MLflow's parameters cannot change.
        """
        before = self.client.get_run(self.id).data.params
        params = []
        for name, value in run.settings().items():
            text = str(value)[:LONGEST_PARAM]
            if name not in before:
                params.append(self.entities.Param(name, text))
            elif before[name] != text:
                self.client.set_tag(self.id, f"resumed.{name}", text)
        for first in range(0, len(params), MOST_PARAMS):
            self.client.log_batch(self.id, params=params[first : first + MOST_PARAMS])

    # ---- values

    def _metrics(self, record: Record) -> Iterator[Any]:
        """Yield the metrics of a record that the run does not have."""
        step = record.step if record.kind == STEPS else record.epoch
        milliseconds = round(record.time * 1000)
        for key, value in values_by_key(record):
            if (key, step) not in self.known:
                yield self.entities.Metric(key, value, milliseconds, step)


def tracking_uri() -> str:
    """Return the address of the user's store, "" if there is none."""
    return os.environ.get("MLFLOW_TRACKING_URI") or ""


def experiment_name() -> str:
    """Return the experiment of the run: of a variable, or Kestrel's own."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT


def values_by_key(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record by keys that MLflow allows.

    Those of a class contain its number, since names may differ in letters that are not allowed.
    """
    yield from record.values.items()
    for result in record.classes:
        name = NOT_ALLOWED.sub("_", result.name)[:LONGEST_NAME]
        for what, value in result.values.items():
            yield f"class_{what}/{result.class_id} {name}", value
