"""When a run has stopped getting better."""

from typing import Any


class EarlyStopping:
    """Remembers the best epoch, and says when `patience` epochs have passed without a better one (0: never).

    Epochs that were not validated count, but only after a validation it is said.
    """

    best_fitness: float
    best_epoch: int | None
    latest_epoch: int  # of those that were validated

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.reset()

    def reset(self) -> None:
        """Begin anew: the next epoch is the best so far."""
        self.best_fitness, self.best_epoch, self.latest_epoch = float("-inf"), None, -1

    def update(self, epoch: int, fitness: float) -> None:
        """Take in an epoch's fitness; only a higher one than all before is better.

        Until something is found at all (fitness 0) the latest epoch is the best: it has learned longest.
        """
        self.latest_epoch = epoch
        if fitness > self.best_fitness or fitness == 0 == self.best_fitness:
            self.best_fitness, self.best_epoch = fitness, epoch

    def should_stop(self) -> bool:
        """Whether to stop."""
        return self.stops_unless_better(self.latest_epoch)

    def stops_unless_better(self, epoch: int) -> bool:
        """Whether what `epoch`'s validation finds decides if the run stops."""
        return self.patience > 0 and self.best_epoch is not None and epoch - self.best_epoch >= self.patience

    def state_dict(self) -> dict[str, Any]:
        return {"fitness": self.best_fitness, "epoch": self.best_epoch, "latest": self.latest_epoch}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        epoch, self.latest_epoch = saved["epoch"], int(saved["latest"])
        self.best_fitness, self.best_epoch = float(saved["fitness"]), None if epoch is None else int(epoch)
