"""Files of torch.save that are no zips: those before torch 1.6, and those of other projects' tools.

Five pickles stand one after another: a magic number, a version, facts about the machine, the saved
value, and the sorted keys of its storages. Then, for each key in this order, the number of its
elements (int64) and their values, to the end of the file. Source: the files themselves, which torch
writes with _use_new_zipfile_serialization=False.
"""

import io
import struct
from typing import Any

from utils.files.pickled.interpreter import MAX_PICKLE, PickleReader, StorageReference
from utils.files.pickled.limited import LimitedReadFile
from utils.files.pickled.saved_file import CHUNK
from utils.printable import excerpt

# the first pickle: protocol 2, a number of 10 bytes, the end
MAGIC = b"\x80\x02\x8a\n" + 0x1950A86A20F9469CFC6C.to_bytes(10, "little") + b"."
VERSION = 1001
HEADER_STEPS = 1000  # opcodes of the version and of the facts about the machine
COUNT = struct.Struct("<q")


class LegacyLayout:
    """The pickles and storages of a file that begins with MAGIC."""

    def __init__(self, file: LimitedReadFile) -> None:
        self._file = file
        self.size = file.seek(0, io.SEEK_END)
        self._start = self.size  # of the first storage
        self._storages: list[StorageReference] = []
        self._offsets: dict[StorageReference, int] | None = None

    def unpickled(self) -> Any:
        """Return the pickled value; each call in the pickle is a PickledObject.

        Raises ValueError for pickles that are no such five. The storages after them are not checked
        before one of them is read: so it is known what a truncated file was.
        """
        with PickleStream(self._file, len(MAGIC), self.size) as stream:
            version = PickleReader(HEADER_STEPS).run(stream)
            if type(version) is not int or version != VERSION:
                raise ValueError(f"its layout is not version {VERSION} of torch.save")

            machine = PickleReader(HEADER_STEPS).run(stream)
            if not isinstance(machine, dict) or machine.get("little_endian") is not True:
                raise ValueError("its numbers are not little-endian")

            reader = PickleReader()
            value = reader.run(stream)
            keys = PickleReader().run(stream)
            self._start = stream.position

        self._storages = _in_order(reader.storages, keys)
        self._offsets = None
        return value

    def storage(self, reference: StorageReference) -> bytearray:
        """Return the bytes of a storage of the unpickled value.

        Raises ValueError for any other, and unless all storages have the sizes that the pickle says
        and end where the file does.
        """
        if self._offsets is None:
            self._offsets = self._located()
        offset = self._offsets.get(reference)
        if offset is None:
            raise ValueError(f"it has no storage {excerpt(reference.key)}")

        content = bytearray()
        left = reference.count * reference.dtype.itemsize
        self._file.seek(offset)
        while chunk := self._file.read(min(left, CHUNK)):
            content += chunk
            left -= len(chunk)
        if left:
            raise ValueError("it is truncated")
        return content

    def _located(self) -> dict[StorageReference, int]:
        """Return where the values of each storage begin. Raises ValueError as `storage` does."""
        offsets = {}
        position = self._start
        for storage in self._storages:
            values = position + COUNT.size
            end = values + storage.count * storage.dtype.itemsize
            if end > self.size:
                raise ValueError("it is truncated, or claims more values than it has")

            self._file.seek(position)
            (count,) = COUNT.unpack(self._file.read(COUNT.size))
            if count != storage.count:
                key = excerpt(storage.key)
                raise ValueError(f"its storage {key} has {count} values for {storage.count}")
            offsets[storage] = values
            position = end

        if position != self.size:
            raise ValueError("it has content after its last storage")
        return offsets


def _in_order(storages: set[StorageReference], keys: Any) -> list[StorageReference]:
    """Return the storages in the order of their keys.

    Raises ValueError unless each key is listed once, and stands for one storage.
    """
    by_key = {storage.key: storage for storage in storages}
    if len(by_key) != len(storages):
        raise ValueError("one of its storages has two types or sizes")

    is_list = isinstance(keys, list) and all(isinstance(key, str) for key in keys)
    if not is_list or len(keys) != len(by_key) or set(keys) != by_key.keys():
        raise ValueError("its list of storages does not name each of them once")
    return [by_key[key] for key in keys]


class PickleStream:
    """The pickles at the start of a file, one after another, as pickletools reads them.

    All together have at most MAX_PICKLE bytes. No more is allocated than the file has.
    """

    def __init__(self, file: LimitedReadFile, start: int, size: int) -> None:
        file.seek(start)
        self.position = start
        self._size = size
        self._last = min(size, start + MAX_PICKLE)
        self._file = io.BufferedReader(file, 1 << 16)

    def __enter__(self) -> "PickleStream":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.detach()  # else the file would be closed together with its buffer

    def read(self, count: int) -> bytes:
        """Return the next bytes, fewer than `count` only at the end of the file.

        Raises ValueError above the limit.
        """
        end = self.position + count
        if end > self._last:
            end = self._limited(end)
        content = self._file.read(end - self.position)
        self.position += len(content)
        return content

    def readline(self) -> bytes:
        """Return the next bytes up to the end of a line. Raises ValueError above the limit."""
        line = self._file.readline(self._last - self.position)
        self.position += len(line)
        if not line.endswith(b"\n") and self.position == self._last:
            self._limited(self._last + 1)
        return line

    def _limited(self, end: int) -> int:
        """Return the end of the file, which is before `end`. Raises ValueError above the limit."""
        if self._last < self._size:
            raise ValueError(f"its pickles have more than {MAX_PICKLE} bytes")
        return self._last
