"""A training without a model, for searches: it writes the files of a run folder that they read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from training.search.trial import Trial
from training.settings.config import TrainConfig
from training.settings.hyperparameters import Hyp, write_hyp
from utils.distributed.world import World
from utils.files.writers import write_json, write_yaml

Score = Callable[[TrainConfig, Hyp], float]


def by_learning_rate(config: TrainConfig, hyp: Hyp) -> float:
    """A fitness that is highest at lr0 0.02."""
    return 1 - abs(hyp.lr0 - 0.02)


class PretendedTraining:
    """Called as train.main; keeps the settings and hyper-parameters of each call.

    score: returns the fitness of the last epoch, or raises what a training raises.
    """

    def __init__(self, score: Score = by_learning_rate) -> None:
        self.score = score
        self.calls: list[tuple[TrainConfig, Hyp]] = []

    def __call__(self, config: TrainConfig, world: World, trial: Trial) -> None:
        hyp = replace(Hyp(), **trial.hyp)
        self.calls.append((config, hyp))
        optimizer = "Muon" if config.optimizer == "auto" else config.optimizer
        run = Path(config.project, config.name)
        if world.is_main:
            (run / "weights").mkdir(parents=True, exist_ok=True)
            write_yaml(run / "args.yaml", replace(config, optimizer=optimizer).as_dict())
            write_hyp(run / "hyp.yaml", optimizer, hyp)
            for name in ("last.pt", "best.pt"):
                (run / "weights" / name).touch()

        fitness = self.score(config, hyp)
        for epoch in range(1, config.epochs + 1):
            trial.validated(epoch, fitness * epoch / config.epochs)
        metrics = {
            "fitness": fitness,
            "precision": 0.25,
            "recall": 0.5,
            "AP50": 0.75,
            "AP": fitness,
        }
        if world.is_main:
            write_json(run / "metrics.json", {"status": "finished", "best": metrics})
