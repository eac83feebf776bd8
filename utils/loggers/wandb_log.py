"""Weights & Biases: online for users who are logged in, else a folder for `wandb sync`."""

import configparser
import netrc
import os
import platform
import re
import secrets
import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from utils.log import FAILED, FINISHED, INTERRUPTED
from utils.loggers.base import EVALUATION, STEPS, LoggedRun, Logger, Record, without_login
from utils.optional_packages import import_optional
from utils.threads import fork_lock

PROJECT = "kestrel"  # where $WANDB_PROJECT names no other
INIT_S = 60.0  # how long W&B's server may take
START_S = 20.0  # how long W&B's own process may take
MOST_CURVES = 50  # classes in the plot of PR curves; the table has all
EXIT_CODES = {FINISHED: 0, FAILED: 1, INTERRUPTED: 255}
FOLDERS = {"WANDB_DATA_DIR": "data", "WANDB_CACHE_DIR": "cache"}  # in those of the run
NO_NETWORK = ("offline", "dryrun", "disabled")  # values of $WANDB_MODE
LOGIN_VARIABLES = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")


class WandbLogger(Logger):
    """Writes one row of W&B's history for each record, whose number is W&B's step.

    Offline, a process that is killed loses rows that W&B has not written yet, and W&B cannot join
    the folders of several processes. So each process writes all rows of the run into a new folder,
    which then replaces that of the process before. Online, W&B's server says which rows it has.
    """

    title = "Weights & Biases"
    help = "log to Weights & Biases: online if you are logged in, else into the run folder"

    def prepare(self) -> str:
        # What an environment variable does not say otherwise: no error reports to W&B's makers.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self.own_variables: list[str] = []  # that `restore` removes
        self.wandb = import_optional("wandb", "--wandb")
        self.mode = os.environ.get("WANDB_MODE") or None
        if self.mode not in (None, "online") or is_logged_in(server_url()):
            return ""
        if self.mode == "online":  # W&B would ask for a key, and wait for the answer
            raise ValueError(
                "--wandb: $WANDB_MODE is online, but you are not logged in to Weights & Biases: "
                "wandb login"
            )
        self.mode = "offline"
        return (
            "--wandb: you are not logged in to Weights & Biases (wandb login), so the run is "
            "logged into its folder only"
        )

    def destination(self, account: str) -> str:
        if self.mode in NO_NETWORK:
            return ""
        owner = account or os.environ.get("WANDB_ENTITY") or "your default account"
        return f"{owner}/{project_name()} at {without_login(server_url())}"

    def start(self, run: LoggedRun) -> int:
        self.logged = run
        before = run.kept().get("id", "") if run.resumed else ""
        if not re.fullmatch(r"[0-9a-z]+", before):
            before = ""
        folders_before = self._offline_folders(before)
        identity = before
        if not before or (run.restarts and self.mode != "offline"):
            identity = secrets.token_hex(4)  # the server cannot take rows back
        run.keep(id=identity)

        self.run = self._open(run, identity)
        is_offline = bool(self.run.offline)
        if is_offline:
            for folder in folders_before:
                shutil.rmtree(folder, ignore_errors=True)
            place = Path(self.run.dir).parent
            run.say(
                f"Weights & Biases, offline: wandb sync {shlex.quote(str(place))} sends the run"
            )
        elif self.run.url:
            run.say(f"Weights & Biases: {self.run.url}")
        self.run.define_metric("epoch")
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="epoch")
        self.run.define_metric("step/*", step_metric="step")
        return 0 if is_offline else int(self.run.step)

    def log(self, records: Sequence[Record]) -> None:
        for record in records:
            self.run.log(self._row(record), step=record.number)

    def finish(self, status: str) -> None:
        self.run.finish(exit_code=EXIT_CODES[status])
        self.wandb.teardown()  # here, and not when the process exits, because it may block

    def restore(self) -> None:
        for name in self.own_variables:
            os.environ.pop(name, None)

    # ---- opening

    def _open(self, run: LoggedRun, identity: str) -> Any:
        settings = self.wandb.Settings(
            # Captured output would go through W&B in the thread of the training, and git would be
            # a process of its own.
            console="off",
            disable_git=True,
            disable_code=True,
            silent=True,
            init_timeout=INIT_S,
            x_service_wait=START_S,
        )

        # Also what W&B stages and caches, which would go to the home folder.
        for name, folder in FOLDERS.items():
            if name not in os.environ:
                self.own_variables.append(name)
                os.environ[name] = str(run.folder / "wandb" / folder)

        with fork_lock:  # programs are run
            self.wandb.setup(settings)
            platform.processor()  # Python remembers the answer, for which W&B asks

        is_online = self.mode is None or self.mode == "online"
        resume = "allow" if is_online else None
        return self.wandb.init(
            id=identity,
            resume=resume,
            mode=self.mode,
            dir=str(run.folder),
            name=os.environ.get("WANDB_NAME") or run.name,
            project=project_name(),
            entity=run.account or None,
            config={**run.config, "hyp": run.hyp},
            allow_val_change=True,
            settings=settings,
        )

    def _offline_folders(self, identity: str) -> list[Path]:
        """Return the folders of earlier processes of the run of this id; "" for none."""
        found = self.logged.folder.glob(f"wandb/offline-run-*-{identity}")
        return list(found) if identity else []

    # ---- rows

    def _row(self, record: Record) -> dict[str, Any]:
        row: dict[str, Any] = {**record.values, "epoch": record.epoch, "_timestamp": record.time}
        if record.kind == STEPS:
            row["step"] = record.step
        elif path := self.logged.picture(record):
            row[f"pictures/{path.stem}"] = self.wandb.Image(str(path))
        elif record.kind == EVALUATION:
            row |= self._class_plots(record)
        return row

    def _class_plots(self, record: Record) -> dict[str, Any]:
        """Return the table of classes, and their PR curves."""
        if not record.classes:
            return {}
        columns = list(record.classes[0].values)
        rows = [
            [result.name, result.instances, *(result.values[name] for name in columns)]
            for result in record.classes
        ]
        table = self.wandb.Table(columns=["class", "instances", *columns], data=rows)

        shown = record.classes[:MOST_CURVES]
        curves = self.wandb.plot.line_series(
            xs=[list(result.recall) for result in shown],
            ys=[list(result.precision) for result in shown],
            keys=[result.name for result in shown],
            title="Precision against recall",
            xname="recall",
        )
        return {"evaluation/classes": table, "evaluation/PR": curves}


def project_name() -> str:
    """Return the project of the run: of a variable, or Kestrel's own."""
    return os.environ.get("WANDB_PROJECT") or PROJECT


def server_url() -> str:
    """Return the address of W&B's server: of a variable, a settings file of W&B, or its own."""
    if url := os.environ.get("WANDB_BASE_URL"):
        return url
    home = Path(os.path.expanduser("~"))
    user = Path(os.environ.get("WANDB_CONFIG_DIR") or home / ".config" / "wandb")
    for file in (Path("wandb", "settings"), user / "settings"):
        parser = configparser.ConfigParser()
        with suppress(OSError, configparser.Error, UnicodeDecodeError):
            parser.read_string(file.read_text(encoding="utf-8"))
            if url := parser.get("default", "base_url", fallback=""):
                return url
    return "https://api.wandb.ai"


def is_logged_in(url: str) -> bool:
    """Return whether there is a key for W&B's server: in a variable, or in the file of logins."""
    if any(os.environ.get(name) for name in LOGIN_VARIABLES):
        return True
    given = os.environ.get("NETRC")
    home = Path(os.path.expanduser("~"))
    files = [Path(given)] if given else [home / ".netrc", home / "_netrc"]
    for file in files:
        with suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
            if netrc.netrc(str(file)).authenticators(urlsplit(url).hostname or ""):
                return True
    return False
