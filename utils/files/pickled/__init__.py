"""Read the pickle and the tensors of a torch.save file as data, without executing anything.

`open_saved` opens a file of either layout: a zip, or the older one of pickles and storages. Its
pickle becomes plain values and `PickledObject`s, its tensors are read from the file's own bytes,
whose sizes are checked.
"""

from utils.files.pickled.interpreter import (
    MAX_DEPTH,
    ClassName,
    PickledObject,
    PickleReader,
    StorageReference,
    entries_if_mapping,
    is_args,
    mapping_entries,
    without_subclass,
)
from utils.files.pickled.limited import open_limited
from utils.files.pickled.opening import open_saved
from utils.files.pickled.plain import read_plain
from utils.files.pickled.saved_file import CHUNK, SavedFile
from utils.files.pickled.tensors import TensorReader, are_same_tensor, is_tensor, is_view

__all__ = [
    "CHUNK",
    "MAX_DEPTH",
    "ClassName",
    "PickleReader",
    "PickledObject",
    "SavedFile",
    "StorageReference",
    "TensorReader",
    "are_same_tensor",
    "entries_if_mapping",
    "is_args",
    "is_tensor",
    "is_view",
    "mapping_entries",
    "open_limited",
    "open_saved",
    "read_plain",
    "without_subclass",
]
