"""The pictures of a run folder, drawn in the background while training goes on."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from utils.background import run_in_background

BATCHES = 3  # number of batches that are drawn


class Pictures:
    """Draws into a run's folder, one picture after another. Draws nothing unless active.

    Pictures of training are drawn in a background thread, since other processes would wait for this
    one's next step. That thread also loads matplotlib, which takes longer than building a model.
    DataLoader workers that are forked meanwhile inherit a half-loaded matplotlib, which does no
    harm: they do not import it.

    written: called with the path of each picture after it is written, in the thread that drew it.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        *,
        active: bool = True,
        written: Callable[[Path], None] = lambda _: None,
    ) -> None:
        self.folder, self.names, self.active, self.written = folder, names, active, written
        self._drawn: list[Future[None]] = []

    def labels(self, classes: NDArray[np.int64], boxes_cxcywh_norm: NDArray[np.float64]) -> None:
        """labels.png: the training labels. classes: [N]. boxes: [N, 4] as fractions of the image
        size.
        """

        def draw() -> None:
            from utils.plots.labels import plot_labels

            self._plot(
                "labels.png", lambda file: plot_labels(classes, boxes_cxcywh_norm, self.names, file)
            )

        self._draw_in_background(draw)

    def train_batch(self, number: int, images: Any, targets: Any) -> None:
        """train_batch0.jpg to train_batch2.jpg: a batch as the model sees it. images: uint8 [B, H,
        W, 3]. targets:
        [T, 6] image, class, x1, y1, x2, y2 in pixels. Both are tensors.

        Raises the error of an earlier picture that failed.
        """
        for drawing in filter(Future.done, self._drawn):
            drawing.result()
        if self.active and number < BATCHES:
            pixels, boxes = images.cpu().numpy().copy(), targets.cpu().numpy().copy()
            self._draw_in_background(lambda: self._batch(f"train_batch{number}.jpg", pixels, boxes))

    def wait(self) -> None:
        """Wait until all pictures are drawn. Raises the error of one that failed."""
        for drawing in self._drawn:
            drawing.result()

    def results(
        self, curves: Sequence[Any], best_confidence: float, confusion: NDArray[np.int64]
    ) -> None:
        """Draw results.png if there is a results.csv, the curves, and the confusion matrix [K + 1,
        K + 1].

        curves: confidence, precision, recall, F1, recall and precision of the PR curve, as
        `plot_curves` takes them.
        """
        if not self.active:
            return
        from utils.plots.confusion import plot_confusion
        from utils.plots.operating import plot_curves
        from utils.plots.results import plot_results

        self.wait()
        if (self.folder / "results.csv").exists():
            self._plot("results.png", lambda file: plot_results(self.folder / "results.csv", file))
        confidence, precision, recall, f1, pr_recall, pr_precision = curves
        points = {"confidence": confidence, "precision": precision, "recall": recall, "f1": f1}
        points |= {"pr_recall": pr_recall, "pr_precision": pr_precision}
        for file in plot_curves(
            **points, names=self.names, folder=self.folder, best_confidence=best_confidence
        ):
            self.written(file)
        self._plot("confusion_matrix.png", lambda file: plot_confusion(confusion, self.names, file))

    def val_batch(
        self,
        number: int,
        images: NDArray[np.uint8],
        targets: NDArray[Any],
        predicted: NDArray[Any],
        titles: Sequence[str],
    ) -> None:
        """val_batchN_labels.jpg and val_batchN_pred.jpg: the ground truth and the detections.

        predicted: [D, 7] image, class, x1, y1, x2, y2 in pixels, score.
        """
        self._batch(f"val_batch{number}_labels.jpg", images, targets, titles=titles)
        pred_name = f"val_batch{number}_pred.jpg"
        self._batch(pred_name, images, predicted[:, :6], scores=predicted[:, 6], titles=titles)

    def _draw_in_background(self, draw: Callable[[], None]) -> None:
        if self.active:
            self._drawn.append(
                run_in_background(draw, after=self._drawn[-1] if self._drawn else None)
            )

    def _batch(
        self, name: str, images: NDArray[np.uint8], targets: NDArray[Any], **more: Any
    ) -> None:
        from utils.plots.batches import plot_batch

        self._plot(name, lambda file: plot_batch(images, targets, self.names, file, **more))

    def _plot(self, name: str, plot: Callable[[Path], object]) -> None:
        plot(self.folder / name)
        self.written(self.folder / name)
