"""The training state of a linear layer, and its run folder, for tests that need no detector."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from data import Draws
from training.averages.ema import EMA
from training.checkpoints.contents import Description
from training.checkpoints.manager import CheckpointManager
from training.checkpoints.preemption import SaveTrigger
from training.early_stopping import EarlyStopping
from training.global_batch import GlobalBatch
from training.nonfinite import NonFiniteGuard
from training.progress import EpochLosses, RunProgress
from training.results import results_row
from training.schedule import Schedule
from training.settings.config import TrainConfig
from training.settings.hyperparameters import Hyp
from training.state import TrainState
from utils.distributed.precision import autocast_for
from utils.distributed.replica import Model, Replica
from utils.distributed.world import World
from utils.threads import BackgroundTask

CPU = torch.device("cpu")
NAMES = ["disc", "square"]


def state_with(
    model: Model,
    optimizer: torch.optim.Optimizer,
    world: World,
    *,
    patience: int = 0,
    batch_size: int = 64,
) -> TrainState[Model]:
    """The state of a new run of a model with this optimizer, in float32, without BatchNorm."""
    return TrainState(
        replica=Replica(model, world),
        ema=EMA(model),
        optimizer=optimizer,
        schedule=Schedule(total_batches=9, epochs=1, batch_size=64),
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        guard=NonFiniteGuard(optimizer, [], CPU),
        autocast=autocast_for(torch.float32, CPU),
        batch=GlobalBatch(batch_size),
        progress=RunProgress(EarlyStopping(patience), EpochLosses(["box"], world)),
        world=world,
        precision=torch.float32,
        synchronized=False,
    )


def small_state(
    world: World | None = None, *, patience: int = 0, batch_size: int = 16
) -> TrainState[nn.Linear]:
    """The state of a new run of a linear layer whose weights are 0."""
    world = world or World(CPU)
    model = nn.Linear(2, 1)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return state_with(model, optimizer, world, patience=patience, batch_size=batch_size)


def small_description(**config: Any) -> Description:
    """The description of a run with these settings."""
    settings = TrainConfig(**config).as_dict()
    hyp = Hyp().as_dict()
    return Description(
        table={},
        names=NAMES,
        data="shapes.yaml",
        images="abc",
        draws=Draws.once(200).digest(),
        class_weights_file="",
        config=settings,
        hyp=hyp,
        versions={},
    )


def run_folder(folder: Path) -> Path:
    """Create a run folder without files."""
    (folder / "weights").mkdir(parents=True)
    return folder


def files_of(folder: Path) -> set[str]:
    """The paths of all files in a folder."""
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def set_averaged_weight(state: TrainState[nn.Linear], value: float) -> None:
    """Fill the averaged weights with a number, to see which epoch a checkpoint is from."""
    nn.init.constant_(state.ema.model.weight, value)


def train_steps(state: TrainState[nn.Linear]) -> None:
    """Train the steps of an epoch: its number, counted from 1, is the averaged weight."""
    state.progress.losses.add({"box": torch.tensor(0.5)})
    set_averaged_weight(state, state.progress.epoch + 1)


def end_epoch(state: TrainState[nn.Linear]) -> None:
    """Train an epoch. It is pending afterwards."""
    train_steps(state)
    state.progress.end_epoch("9 images/s", 0.01)


def small_manager(
    folder: Path, state: TrainState[nn.Linear] | None = None, **flags: Any
) -> CheckpointManager:
    """The checkpoint manager of a run in a folder that exists, with these flags of train.py."""
    cfg = TrainConfig(**flags)
    state = state or small_state()
    background = BackgroundTask("evaluating detections")
    trigger = SaveTrigger(state.world, cfg.minutes_between_saves, background)
    return CheckpointManager(
        folder,
        state,
        small_description(),
        trigger,
        background,
        final_only=cfg.nosave,
        period=cfg.save_period,
    )


def complete_epoch(state: TrainState[nn.Linear], fitness: float | None) -> None:
    """Record the pending epoch with this fitness; None: it was not validated."""
    progress = state.progress
    if fitness is not None:
        progress.metrics = {"fitness": fitness}
        progress.early_stopping.update(progress.epoch - 1, fitness)

    def columns(losses: Mapping[str, float]) -> dict[str, float]:
        return results_row(losses, {}, {})

    progress.complete_epoch(columns)
