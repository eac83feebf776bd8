"""When a run has stopped getting better."""

from typing import Any


class Plateau:
    """Remembers the best epoch, and says when `patience` epochs have passed without a better one (0: never)."""

    best_fitness: float
    best_epoch: int | None

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.forget()

    def forget(self) -> None:
        """Begin anew: the next epoch is the best so far."""
        self.best_fitness, self.best_epoch = float("-inf"), None

    def update(self, epoch: int, fitness: float) -> None:
        """Take in an epoch's fitness; only a higher one than all before is better.

        Until something is found at all (fitness 0) the latest epoch is the best: it has learned longest.
        """
        if fitness > self.best_fitness or fitness == 0 == self.best_fitness:
            self.best_fitness, self.best_epoch = fitness, epoch

    def over(self, epoch: int) -> bool:
        """Whether to stop after `epoch`."""
        return self.patience > 0 and self.best_epoch is not None and epoch - self.best_epoch >= self.patience

    def state_dict(self) -> dict[str, Any]:
        return {"fitness": self.best_fitness, "epoch": self.best_epoch}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        epoch = saved["epoch"]
        self.best_fitness, self.best_epoch = float(saved["fitness"]), None if epoch is None else int(epoch)
