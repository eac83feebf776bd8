"""Early stopping: end a run that no longer improves."""

from typing import Any


class EarlyStopping:
    """Tracks the best epoch, and stops a run after `patience` epochs without a better one (0:
    never).

    Epochs without validation count too, but the run stops only after a validation.
    """

    best_fitness: float
    best_epoch: int | None
    latest_epoch: int  # the last one that was validated

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.reset()

    def reset(self) -> None:
        """Forget the best epoch, so that the next one is the best."""
        self.best_fitness, self.best_epoch, self.latest_epoch = float("-inf"), None, -1

    def update(self, epoch: int, fitness: float) -> None:
        """Record an epoch's fitness; an epoch is better only if its fitness is higher than all
        before.

        While all fitness is 0 the latest epoch counts as the best: it has trained longest.
        """
        self.latest_epoch = epoch
        if fitness > self.best_fitness or fitness == 0 == self.best_fitness:
            self.best_fitness, self.best_epoch = fitness, epoch

    def should_stop(self) -> bool:
        """Whether the run should stop now."""
        return self.stops_if_not_better(self.latest_epoch)

    def stops_if_not_better(self, epoch: int) -> bool:
        """Whether the run stops after `epoch` unless its validation is better than the best so
        far.
        """
        return (
            self.patience > 0
            and self.best_epoch is not None
            and epoch - self.best_epoch >= self.patience
        )

    def state_dict(self) -> dict[str, Any]:
        return {"fitness": self.best_fitness, "epoch": self.best_epoch, "latest": self.latest_epoch}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        epoch, self.latest_epoch = saved["epoch"], int(saved["latest"])
        self.best_fitness, self.best_epoch = (
            float(saved["fitness"]),
            None if epoch is None else int(epoch),
        )
