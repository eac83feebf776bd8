"""What follows from the batch size: images per process, accumulation, loss scale, weight decay."""

from dataclasses import dataclass, replace

from utils.log import Say, say_nothing
from utils.printable import counted

NOMINAL_BATCH = 64  # YOLOv5's: gradients of about this many images make one optimizer step


@dataclass(frozen=True)
class GlobalBatch:
    """The number of images in one forward pass over all processes.

    Raises ValueError for a size that is not a multiple of the number of processes.

    Args:
        size: images; -1 if still to be measured.
        processes: that share the images.
        nominal: images per optimizer step, if they are more than one batch.
    """

    size: int
    processes: int = 1
    nominal: float = NOMINAL_BATCH

    def __post_init__(self) -> None:
        if self.size > 0 and self.size % self.processes:
            raise ValueError(
                f"--batch-size {self.size} is the total over all processes: choose a multiple of "
                f"{self.processes}, the number of processes (WORLD_SIZE)"
            )

    @property
    def per_process(self) -> int:
        """Images per process."""
        return self.size // self.processes

    @property
    def accumulate(self) -> int:
        """Batches per optimizer step, after warm-up."""
        return max(round(self.batches_to_nominal), 1)

    @property
    def batches_to_nominal(self) -> float:
        """Batches that hold `nominal` images together; below 1 if one batch holds more."""
        return self.nominal / self.size

    @property
    def loss_scale(self) -> int:
        """The factor of a process's share of the loss before the backward pass.

        The gradient of a step is a sum over the images of its batches, and the all-reduce divides
        it by the number of processes.
        """
        return self.size * self.processes

    def weight_decay(self, of_nominal_batch: float) -> float:
        """Return the weight decay for a step of `accumulate` batches.

        of_nominal_batch: for a step of `nominal` images.

        >>> GlobalBatch(16).weight_decay(0.5), GlobalBatch(128).weight_decay(0.5)
        (0.5, 1.0)
        """
        return of_nominal_batch * self.size * self.accumulate / self.nominal

    def limited_to(self, images: int, say: Say = say_nothing) -> "GlobalBatch":
        """Return this batch or, if there are too few images for it, a smaller one.

        Its size is the largest divisor of this size that the images fill: a divisor, so that it
        does not depend on the number of processes. Raises ValueError if it is not a multiple of
        that number. say: logs a line if the batch is smaller.
        """
        most = min(self.size, images)
        size = max(divisor for divisor in range(1, most + 1) if self.size % divisor == 0)
        many = counted(images, "training image")
        try:
            batch = replace(self, size=size)
        except ValueError:
            few = f"{many} are too few for {self.processes} processes"
            raise ValueError(f"{few}: the batch would be {size}") from None

        if size < self.size:
            say(f"--batch-size {self.size}: {many}, so {size}, its largest divisor that they fill")
        return batch
