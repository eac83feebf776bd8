"""The pictures of a run folder, drawn in the background while training goes on."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from utils.threads import fork_lock, run_in_background

BATCHES = 3  # number of batches that are drawn


def load_fonts() -> None:
    """Load matplotlib and its list of fonts, for which it runs a program if it has none yet."""
    import matplotlib  # most of the time goes here, where workers need not wait

    with fork_lock:
        import matplotlib.font_manager  # noqa: F401


class Pictures:
    """Draws into a run's folder, one picture after another.

    Pictures of training are drawn in a background thread, since other processes would wait for this
    one's next step. That thread also loads matplotlib, which takes longer than building a model.
    DataLoader workers that are forked meanwhile inherit a half-loaded matplotlib, which does no
    harm: they do not import it.

    Args:
        folder: of the run.
        names: of the classes.
        active: False to draw nothing.
        written: called with the path of each picture after it is written, in the thread that drew
            it.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        *,
        active: bool = True,
        written: Callable[[Path], None] = lambda _: None,
    ) -> None:
        self.folder = folder
        self.names = names
        self.active = active
        self.written = written
        self._drawn: list[Future[None]] = []

    def labels(self, classes: NDArray[np.int64], boxes_cxcywh_norm: NDArray[np.float64]) -> None:
        """Draw labels.png: the training labels.

        classes: [N]. boxes_cxcywh_norm: [N, 4] as fractions of the image size.
        """

        def draw() -> None:
            from utils.plots.labels import plot_labels

            def plot(file: Path) -> None:
                plot_labels(classes, boxes_cxcywh_norm, self.names, file)

            self._plot("labels.png", plot)

        self._draw_in_background(draw)

    def train_batch(self, number: int, images: Any, targets: Any) -> None:
        """Draw train_batch0.jpg to train_batch2.jpg: a batch as the model sees it.

        images: uint8 [B, H, W, 3]. targets: [T, 6] image, class, x1, y1, x2, y2 in pixels. Both are
        tensors.

        Raises: the error of an earlier picture that failed.
        """
        for drawing in self._drawn:
            if drawing.done():
                drawing.result()
        if not self.active or number >= BATCHES:
            return

        # Copies: the tensors may have changed when the thread draws them.
        pixels = images.cpu().numpy().copy()
        boxes = targets.cpu().numpy().copy()
        name = f"train_batch{number}.jpg"
        self._draw_in_background(lambda: self._batch(name, pixels, boxes))

    def wait(self) -> None:
        """Wait until all pictures are drawn.

        Raises: the error of one that failed.
        """
        for drawing in self._drawn:
            drawing.result()

    def results(
        self,
        curves: Mapping[str, NDArray[np.float64]],
        best_confidence: float,
        confusion: NDArray[np.int64],
    ) -> None:
        """Draw results.png if there is a results.csv, the curves, and the confusion matrix.

        Args:
            curves: those that `plot_curves` draws, by its names.
            best_confidence: where the mean F1 is highest.
            confusion: [K + 1, K + 1].
        """
        if not self.active:
            return
        from utils.plots.confusion import plot_confusion
        from utils.plots.operating import plot_curves
        from utils.plots.results import plot_results

        self.wait()
        table = self.folder / "results.csv"
        if table.exists():
            self._plot("results.png", lambda file: plot_results(table, file))

        files = plot_curves(
            **curves,
            names=self.names,
            folder=self.folder,
            best_confidence=best_confidence,
        )
        for file in files:
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
        """Draw val_batchN_labels.jpg and val_batchN_pred.jpg: the ground truth and the detections.

        Args:
            number: N.
            images: uint8 [B, H, W, 3].
            targets: [T, 6] image, class, x1, y1, x2, y2 in pixels.
            predicted: [D, 7] image, class, x1, y1, x2, y2 in pixels, score.
            titles: of the images.
        """
        self._batch(f"val_batch{number}_labels.jpg", images, targets, titles=titles)

        boxes = predicted[:, :6]
        scores = predicted[:, 6]
        self._batch(f"val_batch{number}_pred.jpg", images, boxes, scores=scores, titles=titles)

    def _draw_in_background(self, draw: Callable[[], None]) -> None:
        """Call `draw` in a thread, after the drawings before it. Does nothing unless active."""
        if not self.active:
            return

        def load_and_draw() -> None:
            load_fonts()
            draw()

        previous = self._drawn[-1] if self._drawn else None
        self._drawn.append(run_in_background(load_and_draw, after=previous))

    def _batch(
        self, name: str, images: NDArray[np.uint8], targets: NDArray[Any], **more: Any
    ) -> None:
        """Draw a batch into the file of this name. more: as for `plot_batch`."""
        from utils.plots.batches import plot_batch

        self._plot(name, lambda file: plot_batch(images, targets, self.names, file, **more))

    def _plot(self, name: str, plot: Callable[[Path], object]) -> None:
        """Call `plot` with the path of this name in the folder, then `written`."""
        path = self.folder / name
        plot(path)
        self.written(path)
