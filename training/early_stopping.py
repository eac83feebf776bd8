"""Early stopping: end a run that no longer improves."""

from typing import Any


class EarlyStopping:
    """Tracks the best epoch, and stops a run after `patience` epochs without a better one.

    patience: 0 to never stop. Epochs without validation count too, but the run stops only after a
    validation.
    """

    best_fitness: float
    best_epoch: int | None
    latest_epoch: int  # the last one that was validated

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.reset()

    def reset(self) -> None:
        """Forget the best epoch, so that the next one is the best."""
        self.best_fitness = float("-inf")
        self.best_epoch = None
        self.latest_epoch = -1

    def update(self, epoch: int, fitness: float) -> None:
        """Record an epoch's fitness; only a fitness higher than all before is better.

        While all fitness is 0 the latest epoch counts as the best: it has trained longest.
        """
        self.latest_epoch = epoch
        all_zero = fitness == 0 and self.best_fitness == 0
        if fitness > self.best_fitness or all_zero:
            self.best_fitness = fitness
            self.best_epoch = epoch

    def should_stop(self) -> bool:
        """Return whether the run should stop now."""
        return self.stops_if_not_better(self.latest_epoch)

    def stops_if_not_better(self, epoch: int) -> bool:
        """Return whether the run stops after `epoch`, unless its validation is the best so far."""
        if self.patience == 0 or self.best_epoch is None:
            return False
        return epoch - self.best_epoch >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Return the best and the latest epoch, as plain values."""
        return {"fitness": self.best_fitness, "epoch": self.best_epoch, "latest": self.latest_epoch}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        best_epoch = saved["epoch"]
        self.latest_epoch = int(saved["latest"])
        self.best_fitness = float(saved["fitness"])
        self.best_epoch = None if best_epoch is None else int(best_epoch)
