"""The report of val.py."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data import Dataset
from training.report.facts import data_facts, environment_facts, setting_rows
from training.report.page import ReportPage, report_or_say
from training.report.result import error_values, images_figure, result_values, speed_figure
from utils.distributed.world import World
from utils.log import Say
from utils.metrics.evaluation import Evaluation


def write_validation_report(
    folder: Path,
    evaluation: Evaluation,
    dataset: Dataset,
    split: str,
    world: World,
    *,
    weights: str,
    flags: Mapping[str, Any],
    defaults: Mapping[str, Any],
    say: Say,
) -> None:
    """Write report.html of an evaluation into its run folder, or say why that was not possible.

    Args:
        folder: of the run.
        evaluation: on all images of the split.
        dataset: with the labels of the split.
        split: its name.
        world: of the processes.
        weights: what was evaluated, as text.
        flags: of the command line.
        defaults: of the flags.
        say: shows a sentence to the user.
    """
    with report_or_say(say):
        names = dataset.names
        result = result_values(evaluation, names, f"{weights} on the {split} split.")
        with report_or_say(say):
            result |= error_values(evaluation, dataset.labels[split].whole, names)
        page = ReportPage(
            script="val.py",
            state="finished",
            status="validation",
            figures=[images_figure(evaluation), speed_figure(evaluation)],
            facts=[("Data", data_facts(dataset)), ("Environment", environment_facts(world))],
            settings=setting_rows(flags, defaults),
            evaluation=result,
        )
        page.write(folder)
