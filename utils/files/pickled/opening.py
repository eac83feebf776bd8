"""Open a torch.save file of either layout."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from utils.files.pickled.legacy_layout import MAGIC, LegacyLayout
from utils.files.pickled.limited import open_limited
from utils.files.pickled.saved_file import SavedFile
from utils.files.pickled.zip_layout import SIGNATURE, ZipLayout


@contextmanager
def open_saved(path: Path) -> Iterator[SavedFile]:
    """Open a file of torch.save for reading as data.

    The first bytes decide on the layout, as they do in torch.load. Raises OSError, ValueError or
    BadZipFile for any other file.
    """
    with open_limited(path) as file:
        start = file.read(len(MAGIC))
        if start.startswith(SIGNATURE):
            yield ZipLayout(file)
        elif start == MAGIC:
            yield LegacyLayout(file)
        elif not start:
            raise ValueError("it is empty")
        else:
            raise ValueError("it is not a file of torch.save")
