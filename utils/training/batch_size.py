"""Everything that the batch size means: each process's share, accumulation, the scale of gradients and of decay."""

from collections.abc import Callable
from dataclasses import dataclass

NOMINAL_BATCH = 64  # gradients of about this many images make one optimizer step


@dataclass(frozen=True)
class GlobalBatch:
    """The images of one forward pass of all processes together. size -1: not known yet, to be measured.

    Raises ValueError for a size that the processes cannot share evenly.
    """

    size: int
    processes: int = 1

    def __post_init__(self) -> None:
        if self.size > 0 and self.size % self.processes:
            raise ValueError(
                f"--batch-size {self.size} is the total over all processes: choose a multiple of WORLD_SIZE, "
                f"{self.processes}"
            )

    @property
    def per_process(self) -> int:
        """Images of each process."""
        return self.size // self.processes

    @property
    def accumulate(self) -> int:
        """Batches to an optimizer step after warm-up."""
        return max(round(self.batches_to_nominal), 1)

    @property
    def batches_to_nominal(self) -> float:
        """Batches that hold NOMINAL_BATCH images together, below 1 for a larger one."""
        return NOMINAL_BATCH / self.size

    @property
    def loss_scale(self) -> int:
        """What a process's share of the loss is multiplied by before the backward pass.

        The gradient of a step is a sum over the images of its batches, and the mean over processes is taken of it.
        """
        return self.size * self.processes

    def weight_decay(self, of_nominal_batch: float) -> float:
        """The decay of a step of `accumulate` batches, from that of a step of NOMINAL_BATCH images.

        >>> GlobalBatch(16).weight_decay(0.5), GlobalBatch(128).weight_decay(0.5)
        (0.5, 1.0)
        """
        return of_nominal_batch * self.size * self.accumulate / NOMINAL_BATCH

    def limited_to(self, images: int, say: Callable[[str], None] = lambda _: None) -> "GlobalBatch":
        """This batch; where there are fewer images, one of the largest divisor of its size that they fill.

        A divisor, so that it does not depend on the number of processes. Raises ValueError if they cannot share it.
        """
        size = max(size for size in range(1, min(self.size, images) + 1) if self.size % size == 0)
        try:
            batch = GlobalBatch(size, self.processes)
        except ValueError:
            shared = f"{images} training images, in batches of {size}, cannot be shared by {self.processes} processes"
            raise ValueError(shared) from None
        if size < self.size:
            say(f"--batch-size {self.size} is more than the {images} training images: using {size}")
        return batch
