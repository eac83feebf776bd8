"""What the readers of torch.save files need of a file, whichever layout it has."""

from typing import Any, Protocol

from utils.files.pickled.interpreter import StorageReference

CHUNK = 1 << 20  # bytes read at a time


class SavedFile(Protocol):
    """An open file of torch.save. size: in bytes."""

    size: int

    def unpickled(self) -> Any:
        """Return the pickled value; each call in the pickle is a PickledObject.

        Raises ValueError if the pickle is damaged, or has what no checkpoint needs.
        """

    def storage(self, reference: StorageReference) -> bytearray:
        """Return the bytes of a storage that the value of `unpickled` refers to.

        Raises ValueError if the file does not hold as many as the reference says.
        """
