"""What the real loggers hold of a run: step -> value for each name, from all of their files."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.support.wandb_file import history_of

Found = dict[str, list[tuple[int, float]]]  # name -> sorted steps and values


def in_tensorboard(folder: Path) -> Found:
    """The scalars of all event files, read one by one: nothing is dropped as after a restart."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    found: Any = defaultdict(list)
    for file in folder.glob("*tfevents*"):
        for data in RawEventFileLoader(str(file)).Load():
            event = Event.FromString(data)
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found[value.tag].append((event.step, value.simple_value))
    return {name: sorted(values) for name, values in found.items()}


def in_wandb(folder: Path) -> Found:
    """The numbers of all files. Losses within an epoch have steps, all others epochs."""
    found: Any = defaultdict(list)
    for file in folder.glob("wandb/**/*.wandb"):
        for row in history_of(file):
            axis = "step" if "step" in row else "epoch"
            for name, value in row.items():
                if isinstance(value, float | int):
                    found[name].append((row[axis], value))
    return {name: sorted(values) for name, values in found.items()}


def in_mlflow(store: Path) -> Found:
    """The metrics of the only run in a store."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{store}/mlflow.db")
    experiment = client.get_experiment_by_name("kestrel")
    (run,) = client.search_runs([experiment.experiment_id])
    return {
        name: sorted(
            (metric.step, metric.value)
            for metric in client.get_metric_history(run.info.run_id, name)
        )
        for name in run.data.metrics
    }
