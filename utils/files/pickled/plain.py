"""Read Kestrel's own checkpoints: tensors and plain values only."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from utils.files.pickled.interpreter import (
    MAX_DEPTH,
    MAX_PICKLE,
    MAX_STEPS,
    ClassName,
    PickledObject,
    PickleReader,
    is_args,
)
from utils.files.pickled.limited import open_limited
from utils.files.pickled.tensors import TensorReader, is_tensor
from utils.files.pickled.zip_layout import ZipLayout

PICKLED_BYTES = "_codecs.encode"  # the function that protocol 2 calls for bytes


def read_plain(path: Path) -> Any:
    """Return the content of a torch.save file that holds only tensors and plain values, a zip.

    Together they are no larger than the file. Like torch.load(weights_only=True), which does not
    run code either, but which hashes and allocates whatever the pickle asks for. Raises OSError,
    ValueError or BadZipFile.
    """
    with open_limited(path) as file:
        archive = ZipLayout(file)
        machine = PickleReader()
        content = machine.run(archive.read("data.pkl", MAX_PICKLE))
        if machine.skipped_keys:
            raise ValueError("it has keys that are neither text nor whole numbers")
        tensors = TensorReader(archive)
        return _plain(content, tensors, counted=iter(range(MAX_STEPS)), depth=0)


def _plain(value: Any, reader: TensorReader, counted: Iterator[int], depth: int) -> Any:
    """Return `value` with its `PickledObject`s replaced by tensors.

    A value that occurs twice is copied, and counted, twice.
    """
    if next(counted, None) is None or depth > MAX_DEPTH:
        raise ValueError("it is nested too deeply, or contains itself")
    if isinstance(value, dict):
        return {key: _plain(entry, reader, counted, depth + 1) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        entries = [_plain(entry, reader, counted, depth + 1) for entry in value]
        return tuple(entries) if isinstance(value, tuple) else entries
    if is_tensor(value):
        return reader.tensor(value)
    if isinstance(value, PickledObject) and value.kind == PICKLED_BYTES:
        text = value.args[0] if is_args(value.args, 1) else None
        return text.encode("latin-1") if isinstance(text, str) else b""
    if isinstance(value, (PickledObject, ClassName)):
        name = value.kind if isinstance(value, PickledObject) else value.name
        raise ValueError(f"it holds something other than tensors and plain values: {name}")
    return value
