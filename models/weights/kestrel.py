"""Load detectors from Kestrel's checkpoints.

Checkpoints of other projects are passed to their own readers.
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.build import differing_names, tensor_shapes
from models.detector import Detector
from models.export import FORMATS
from models.tables.find import model_names
from models.weights.conversion import load_module
from models.weights.external import WRONG_CONTENT, unpickled_or_none
from models.weights.network import holds_network, no_detector
from models.weights.pickled_module import holds_module
from models.weights.pretrained import (
    fetch_weights,
    require_published_digest,
    source_of_missing,
    where_published,
)
from models.weights.rtmdet import is_rtmdet, load_rtmdet
from models.weights.torchvision_files import torchvision_file
from models.weights.yolov9 import is_yolov9, load_yolov9
from models.weights.yolox import is_yolox, load_yolox
from utils.files import checkpoint_file
from utils.files.folders import best_checkpoint_in
from utils.files.stand_ins import require_no_stand_in
from utils.printable import counted, one_line, printable

WHERE_WEIGHTS_COME_FROM = (
    "Give a checkpoint of a training run (runs/train/exp/weights/best.pt), or a file that you have "
    "downloaded: Kestrel ships no weights (docs/weights.md)"
)

RGB = 3  # channels of the images
# files that val.py and detect.py run, but that are not trained
EXPORTED = (*(each.file_suffix for each in FORMATS.values()), ".engine")
ExternalReader = Callable[[Path], tuple[Detector, list[str]]]
# of other projects: whether a file holds such a checkpoint, and its reader
EXTERNAL: tuple[tuple[Callable[[Any], bool], ExternalReader], ...] = (
    (holds_module, load_module),
    (is_yolox, load_yolox),
    (is_rtmdet, load_rtmdet),
    (is_yolov9, load_yolov9),
)


def load_detector(path: Path, head: str = "") -> tuple[Detector, dict[str, Any]]:
    """Return the detector of a checkpoint, with its averaged weights, and the checkpoint's entries.

    head: the output that it decodes, of a head that has several; "" for its first. Of another
    project's checkpoint, the only entry is `names`, the class names. Raises ValueError if the file
    does not exist, is not a checkpoint, or holds weights that do not fit its table or are not
    finite, if it does not take RGB images, or if its head has no such output.
    """
    require_checkpoint(path)
    try:
        saved = checkpoint_file.load(path)
    except ValueError as error:
        detector, class_names = _load_external(path, error)
        saved = {"names": class_names}
    else:
        detector = _own_detector(path, saved)

    channels = detector.table["ch"]
    if channels != RGB:
        raise ValueError(
            f"{printable(path)}: takes images of {counted(channels, 'channel')}; only models of "
            f"{RGB} channels (RGB) can be used"
        )
    try:
        detector.choose_output(head)
    except ValueError as error:
        raise ValueError(f"{printable(path)}: {error}") from None
    return detector, saved


def fetch_detector(weights: str) -> None:
    """Download the missing file of a detector as `fetch_weights` does.

    Raises ValueError for the name of a network that classifies images, before it is downloaded.
    """
    path = Path(weights)
    if torchvision_file(path.name) and source_of_missing(weights):
        raise no_detector(path)
    fetch_weights(weights)


def _load_external(path: Path, own_error: ValueError) -> tuple[Detector, list[str]]:
    """Return the detector in another project's checkpoint, and its class names.

    Raises `own_error`, why it is none of ours, if no reader knows it; but if it has the name of a
    published file and another digest, an error that says so.
    """
    loaded = unpickled_or_none(path)
    read = external_reader(loaded)
    if read is not None:
        return read(path)
    require_published_digest(path)
    if holds_network(loaded):
        raise no_detector(path)
    raise own_error


def is_network(path: Path) -> bool:
    """Whether a file holds a network that classifies images, and no detector that can be read."""
    loaded = unpickled_or_none(path)
    return external_reader(loaded) is None and holds_network(loaded)


def external_reader(loaded: Any) -> ExternalReader | None:
    """Return the reader that knows what a file of another project holds; None if none does.

    loaded: what the file holds, unpickled.
    """
    for knows, read in EXTERNAL:
        with suppress(ValueError):  # it holds no mapping
            if knows(loaded):
                return read
    return None


def _own_detector(path: Path, saved: dict[str, Any]) -> Detector:
    """Return the detector of one of our checkpoints, with its averaged weights."""
    state = saved["ema"] if "ema" in saved else saved["model"]
    detector = detector_for_state(path, saved["table"], state, load=True)
    for key, value in detector.state_dict().items():
        if not value.isfinite().all():
            raise ValueError(f"{printable(path)}: {key} has values that are not finite")

    names = saved["names"]
    count = detector.num_classes
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not is_list or len(names) != count:
        raise ValueError(
            f"{path}: `names` must be a list of {count} names, one per class of its table"
        )
    return detector


def require_checkpoint(path: Path) -> None:
    """Raise ValueError if a file cannot be a checkpoint, without reading all of it.

    There is no such file, its name is that of an exported model, or it is a web page, for example.
    """
    problem = ""
    if not os.path.exists(path):  # False, not OSError, for a name that is too long
        advice = where_published(path) or _training_from_scratch(path) or WHERE_WEIGHTS_COME_FROM
        problem = f"No such file. {advice}"
    elif path.is_dir():
        best = best_checkpoint_in(path)
        advice = f"Did you mean {printable(best)}?" if best else WHERE_WEIGHTS_COME_FROM
        problem = f"Is a folder. {advice}"
    elif path.suffix in EXPORTED:
        problem = "Is an exported model; give the checkpoint that it was exported from"
    else:
        require_no_stand_in(path, printable(path))
    if problem:
        raise ValueError(f"{printable(path)}: cannot be read as a checkpoint: {problem}")


def _training_from_scratch(path: Path) -> str:
    """Return what to do without a file whose name is that of a model; "" for another name."""
    if path.stem not in model_names():
        return ""
    return (
        f"Kestrel ships no weights: --weights '' --cfg {path.stem}.yaml trains from random ones; "
        "docs/weights.md lists free ones to start from"
    )


def detector_for_state(path: Path, table: Any, state: Any, *, load: bool) -> Detector:
    """Return the detector of a checkpoint's table, into which this state fits.

    Memory for the model is allocated only after its shapes are known to equal those of the state.
    load: whether to load the state; a resumed run does so later, together with its optimizer.

    Raises ValueError if the state does not fit.
    """
    try:
        given = {key: tensor.shape for key, tensor in state.items()}
        unfit = differing_names(tensor_shapes(table), given)
        if unfit:
            raise ValueError(
                f"{len(unfit)} tensors are missing, unexpected or of another shape, such as "
                f"{unfit[0]}"
            )

        model = Detector(table)
        if load:
            model.load_state_dict(state)
    except WRONG_CONTENT as error:
        raise ValueError(f"{path}: its weights do not fit its table ({one_line(error)})") from error
    return model


def digest(model: nn.Module) -> str:
    """Return 8 hex digits of a SHA-256 over the state.

    They show whether two machines have loaded the same weights.
    """
    sha256 = hashlib.sha256()
    for value in model.state_dict().values():
        values = value.detach().cpu().reshape(-1)
        sha256.update(values.view(torch.uint8).numpy())
    return sha256.hexdigest()[:8]
