"""Files of torch.save since torch 1.6: an uncompressed zip of a pickle and an entry per storage."""

import io
import re
import zipfile
from typing import Any

from utils.files.pickled.interpreter import MAX_PICKLE, PickleReader, StorageReference
from utils.files.pickled.limited import LimitedReadFile
from utils.files.pickled.saved_file import CHUNK

SIGNATURE = b"PK\x03\x04"  # the first bytes


class ZipLayout:
    """The entries of a file written by torch.save, an uncompressed zip.

    Raises ValueError or BadZipFile for any other file.
    """

    def __init__(self, file: LimitedReadFile) -> None:
        self.size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if self.size == 0:
            raise ValueError("it is empty")
        if file.read(len(SIGNATURE)) != SIGNATURE:
            raise ValueError("it is not a zip file of torch.save (torch 1.6 or later)")

        # The zip's directory: names, sizes, no compression.
        self._zip = zipfile.ZipFile(file)
        entries = self._zip.infolist()
        self._entries = {entry.filename: entry for entry in entries}
        if len(self._entries) != len(entries):
            raise ValueError("it has two entries with the same name")
        for entry in entries:
            is_stored = entry.compress_type == zipfile.ZIP_STORED
            if not is_stored or entry.compress_size != entry.file_size:
                raise ValueError("its entries are compressed")
        if sum(entry.file_size for entry in entries) > self.size:
            raise ValueError("its entries are larger than the file")

        # torch.save writes everything below one folder.
        folders = [
            name.removesuffix("data.pkl")
            for name in self._entries
            if re.fullmatch(r"[^/]+/data\.pkl", name)
        ]
        if len(folders) != 1:
            raise ValueError("it has no data.pkl as torch.save writes it")
        self._folder = folders[0]
        states_order = f"{self._folder}byteorder" in self._entries
        if states_order and self.read("byteorder", 16) != b"little":
            raise ValueError("its numbers are not little-endian")

    def unpickled(self) -> Any:
        """Return the pickled value; each call in the pickle is a PickledObject."""
        return PickleReader().run(self.read("data.pkl", MAX_PICKLE))

    def storage(self, reference: StorageReference) -> bytearray:
        """Return the bytes of a storage, which is an entry data/KEY.

        Raises ValueError if it has another size than the reference says.
        """
        key = reference.key
        content = self.read(f"data/{key}", self.size)
        if len(content) != reference.count * reference.dtype.itemsize:
            raise ValueError(
                f"its data/{key} has {len(content)} bytes for {reference.count} {reference.dtype}"
            )
        return content

    def read(self, name: str, most: int) -> bytearray:
        """Return the bytes of an entry, checksum verified.

        Raises ValueError if there are more than `most`.
        """
        entry = self._entries.get(self._folder + name)
        if entry is None:
            raise ValueError(f"it has no entry {name}")
        if entry.file_size > most:
            raise ValueError(f"its {name} has more than {most} bytes")

        content = bytearray()
        with self._zip.open(entry) as stream:
            while chunk := stream.read(CHUNK):
                content += chunk
        if len(content) != entry.file_size:
            raise ValueError(f"its {name} is truncated")
        return content
