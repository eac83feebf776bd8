"""Read the pickle and the tensors of a torch.save file as data, without executing anything.

A pickle is a program. Here its names are never imported, its calls become `Record` objects, and
tensors are read from the file's own entries, whose sizes are checked. torch.load is not used: even
with weights_only it executes calls (bytearray, torch.Tensor) that allocate as much memory as the
pickle asks for.
"""

import io
import math
import pickletools
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Limits far above real checkpoints: yolov5x6 with its optimizer state has 1 GB, a pickle of 1 MB
# and 900 tensors.
MAX_FILE = 1 << 34  # bytes, as the next two
MAX_DIRECTORY = 1 << 22
MAX_PICKLE = 1 << 26
MAX_STEPS = 5_000_000  # an opcode allocates at most 200 bytes plus what it copies from the pickle
MAX_LETTERS = 500  # in a module and class name together
MAX_DEPTH = 32  # of nested values
CHUNK = 1 << 20
DTYPES = {
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.FloatStorage": torch.float32,
    "torch.DoubleStorage": torch.float64,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}

CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
MAPPINGS = {"collections.OrderedDict", "collections.defaultdict", "builtins.dict"}
EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": list}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
VALUES = re.compile("BININT[12]?|LONG1|BINFLOAT|(SHORT_)?BIN(UNICODE|STRING)|(SHORT_)?BINBYTES")
HARMLESS_BUILTINS = re.compile(
    "bool|bytearray|bytes|complex|dict|float|frozenset|int|list|object|range|set|slice|str|tuple"
)

HARMFUL_MODULES = re.compile(
    "asyncio|bdb|cProfile|code|codeop|commands|ctypes|ensurepip|ftplib|http|imp|importlib|marshal|multiprocessing|nt|"
    "operator|os|pdb|pickle|pip|pkgutil|posix|profile|pty|pydoc|runpy|shelve|shutil|site|smtplib|socket|subprocess|sys|"
    "timeit|trace|urllib|venv|webbrowser|zipimport"
)


class LimitedReadFile(io.FileIO):
    """A file that refuses reads of more than MAX_DIRECTORY bytes.

    zipfile reads a zip's directory in one call.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = MAX_DIRECTORY
        if size > MAX_DIRECTORY:
            raise ValueError(f"its directory has more than {MAX_DIRECTORY} bytes")
        return super().read(size) or b""


def open_limited(path: Path) -> LimitedReadFile:
    """Open a regular file of at most MAX_FILE bytes.

    Raises OSError or ValueError for others: a pipe would block.
    """
    size = path.stat().st_size
    if not path.is_file():
        raise ValueError("it is not a regular file")
    if size > MAX_FILE:
        raise ValueError(f"it has more than {MAX_FILE} bytes")
    return LimitedReadFile(path)


class Archive:
    """The entries of a file written by torch.save, an uncompressed zip.

    Raises ValueError or BadZipFile for any other file.
    """

    def __init__(self, file: LimitedReadFile) -> None:
        self.size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if self.size == 0:
            raise ValueError("it is empty")
        if file.read(4) != b"PK\x03\x04":
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
        """Return the pickled value; each call in the pickle is a Record."""
        return PickleReader().run(self.read("data.pkl", MAX_PICKLE))

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


@dataclass(frozen=True)
class ClassName:
    """A class or function that a pickle names. It is never imported."""

    name: str


@dataclass(eq=False)
class Record:
    """Stands for the object that `kind(*args)` would create.

    state, items: what the pickle sets on it.
    """

    kind: str
    args: Any
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StorageReference:
    """A tensor storage: `count` numbers in the entry data/`key`."""

    dtype: torch.dtype
    key: str
    count: int


def kind(module: Any, name: Any) -> ClassName:
    """Return the ClassName of a name.

    Raises ValueError for names that no checkpoint needs and that do harm when called.
    """
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("it builds a class name from values that are not text")
    # a long text used in many names would be copied for each
    if len(module) + len(name) > MAX_LETTERS:
        raise ValueError(f"it has names of more than {MAX_LETTERS} letters")

    if module == "__builtin__":  # of Python 2
        module = "builtins"
    root = module.partition(".")[0]
    is_harmful = HARMFUL_MODULES.fullmatch(root) is not None
    if root == "builtins" and not HARMLESS_BUILTINS.fullmatch(name):
        is_harmful = True
    if is_harmful:
        raise ValueError(f"it names {module}.{name}")
    return ClassName(f"{module}.{name}")


class PickleReader:
    """A pickle interpreter that builds plain values and Records, and cannot call anything.

    skipped_keys: how many dict items were dropped because their keys are neither text nor small
    whole numbers.
    """

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.skipped_keys = 0

    def run(self, pickled: bytes | bytearray) -> Any:
        """Return the pickled value; each call in the pickle is a Record.

        Raises ValueError if the pickle is damaged, too long, or has opcodes that no checkpoint
        needs.
        """
        for count, (opcode, value, _) in enumerate(pickletools.genops(bytes(pickled))):
            if count == MAX_STEPS:
                raise ValueError(f"its pickle has more than {MAX_STEPS} opcodes")
            if opcode.name == "STOP":
                break
            try:
                self._put(opcode.name, value)
            except (IndexError, KeyError) as error:
                raise ValueError("its pickle is damaged") from error
        if len(self.stack) != 1 or self.marked:
            raise ValueError("its pickle is damaged")
        return self.stack[0]

    def _put(self, opcode: str, value: Any) -> None:
        """Run an opcode that puts a value on the stack, or that only notes one."""
        if VALUES.fullmatch(opcode):
            self.stack.append(value)
        elif opcode in CONSTANTS:
            self.stack.append(CONSTANTS[opcode])
        elif opcode in EMPTY:
            self.stack.append(EMPTY[opcode]())
        elif opcode in TUPLES:
            size = TUPLES[opcode]
            reversed_values = [self.stack.pop() for _ in range(size)]
            self.stack.append(tuple(reversed_values[::-1]))
        elif opcode in {"BINPUT", "LONG_BINPUT"}:
            self.memo[value] = self.stack[-1]
        elif opcode == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif opcode in {"BINGET", "LONG_BINGET"}:
            self.stack.append(self.memo[value])
        elif opcode not in {"PROTO", "FRAME"}:
            self._combine(opcode, value)

    def _combine(self, opcode: str, value: Any) -> None:
        """Run an opcode that takes values off the stack."""
        match opcode:
            case "MARK":
                self.marked.append(self.stack)
                self.stack = []
            case "TUPLE":
                joined = tuple(self._since_mark())
                self.stack.append(joined)

            # Names of functions and classes, none of which is imported.
            case "GLOBAL":
                module, name = value.split(" ", 1)
                self.stack.append(kind(module, name))
            case "STACK_GLOBAL":
                name = self.stack.pop()
                module = self.stack.pop()
                self.stack.append(kind(module, name))

            # Calls and states, which are only recorded.
            case "NEWOBJ" | "REDUCE":
                self._record(self.stack.pop())
            case "NEWOBJ_EX":
                self.stack.pop()  # keyword arguments
                self._record(self.stack.pop())
            case "BUILD":
                state = self.stack.pop()
                self._target(Record).state = state

            case "SETITEM" | "SETITEMS":
                if opcode == "SETITEM":
                    values = [self.stack.pop(-2), self.stack.pop()]  # key, value
                else:
                    values = self._since_mark()

                target = self._target(dict, Record)
                items = target.items if isinstance(target, Record) else target
                self.skipped_keys += _set_items(items, values)

            case "APPEND" | "APPENDS" | "ADDITEMS":
                values = [self.stack.pop()] if opcode == "APPEND" else self._since_mark()
                target = self._target(list, Record)
                if isinstance(target, list):
                    target.extend(values)

            case "BINPERSID":
                self.stack.append(_storage_reference(self.stack.pop()))

            case _:
                raise ValueError(f"its pickle has an opcode {opcode}, which no checkpoint needs")

    def _since_mark(self) -> list[Any]:
        """Take off the values since the last mark, and return them."""
        values = self.stack
        self.stack = self.marked.pop()
        return values

    def _record(self, args: Any) -> None:
        """Replace the class or function on the stack by the Record of a call with `args`."""
        callee = self.stack.pop()
        if not isinstance(callee, ClassName):
            raise ValueError("its pickle calls a value that is not callable")
        self.stack.append(Record(callee.name, args))

    def _target(self, *kinds: type) -> Any:
        """Return the value on top of the stack; ValueError unless it is of one of the kinds."""
        target = self.stack[-1]
        if not isinstance(target, kinds):
            raise ValueError("its pickle adds items or state to a value that has none")
        return target


def _set_items(target: dict[Any, Any], values: list[Any]) -> int:
    """Set the items whose keys are text or small whole numbers; return the number of others.

    Other keys are not hashed: hashing nested tuples may take forever.

    values: key, value, key, value ...
    """
    if len(values) % 2:
        raise ValueError("its pickle is damaged")
    skipped = 0
    for key, value in zip(values[::2], values[1::2], strict=True):
        if isinstance(key, str) or (type(key) is int and abs(key) < 1 << 31):
            target[key] = value
        else:
            skipped += 1
    return skipped


def _storage_reference(reference: Any) -> StorageReference:
    """Read a reference as torch.save writes it: ("storage", class, key, device, count)."""
    if not isinstance(reference, tuple) or len(reference) != 5:
        raise ValueError("it has an invalid storage reference")
    word, storage, key, _, count = reference
    if word != "storage" or not isinstance(storage, ClassName) or not isinstance(key, str):
        raise ValueError("it has an invalid storage reference")
    if type(count) is not int or count < 0:
        raise ValueError("it has an invalid storage reference")
    if storage.name not in DTYPES:
        raise ValueError(f"it has tensors of {storage.name}, which is unknown")
    return StorageReference(DTYPES[storage.name], key, count)


class TensorReader:
    """Reads the tensors of an archive; all together they may be no larger than the archive."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._left = archive.size  # bytes that further tensors may have
        self._read: dict[str, bytearray] = {}

    def tensor(self, value: Any) -> Tensor:
        """Return the tensor or parameter of a Record, a view of the bytes read from the file.

        It has the saved strides. Raises ValueError if the Record is something else, or the tensor
        reaches outside its storage.
        """
        kind = value.kind if isinstance(value, Record) else ""
        if kind == "torch._utils._rebuild_parameter" and is_args(value.args, 1):
            value = value.args[0]  # the parameter's tensor
        if not is_tensor(value):
            raise ValueError("it has something else where a tensor should be")
        if not is_args(value.args, 4):
            raise ValueError("one of its tensors is damaged")
        storage, offset, size, strides = value.args[:4]
        is_inside = isinstance(storage, StorageReference) and is_view(
            storage.count, offset, size, strides
        )
        if not is_inside:
            raise ValueError("one of its tensors reaches outside its storage")

        count = math.prod(size)
        self._left -= count * storage.dtype.itemsize
        if self._left < 0:
            raise ValueError("its tensors are larger than the file")

        content = self._content(storage)
        if count == 0:
            return torch.empty(size, dtype=storage.dtype)
        return torch.frombuffer(content, dtype=storage.dtype).as_strided(size, strides, offset)

    def _content(self, storage: StorageReference) -> bytearray:
        """Return the bytes of a storage, which are read once."""
        key = storage.key
        if key not in self._read:
            self._read[key] = self._archive.read(f"data/{key}", self._archive.size)
        content = self._read[key]
        if len(content) != storage.count * storage.dtype.itemsize:
            raise ValueError(
                f"its data/{key} has {len(content)} bytes for {storage.count} {storage.dtype}"
            )
        return content


def mapping_entries(value: Any) -> dict[Any, Any]:
    """Return the entries of a dict, or of the record of a dict subclass; ValueError for others."""
    entries = value
    if isinstance(value, Record) and value.kind in MAPPINGS:
        entries = value.items
    if not isinstance(entries, dict):
        raise ValueError("one of its modules is damaged")
    return entries


def is_tensor(value: Any) -> bool:
    return isinstance(value, Record) and value.kind == "torch._utils._rebuild_tensor_v2"


def is_args(args: Any, least: int) -> bool:
    return isinstance(args, tuple) and len(args) >= least


def is_view(count: int, offset: Any, size: Any, strides: Any) -> bool:
    """Return whether offset, size and strides describe a view of a storage of `count` numbers.

    The view must be no larger than the storage.
    """
    if not isinstance(size, tuple) or not isinstance(strides, tuple):
        return False
    if len(size) != len(strides) or len(size) > 8:
        return False
    for value in (offset, *size, *strides):
        if type(value) is not int or not 0 <= value < 1 << 40:
            return False

    numbers = math.prod(size)
    if numbers == 0:
        return True
    last = offset + sum((n - 1) * stride for n, stride in zip(size, strides, strict=True))
    return numbers <= count and last < count


def read_plain(path: Path) -> Any:
    """Return the content of a torch.save file that holds only tensors and plain values.

    Together they are no larger than the file. Like torch.load(weights_only=True), which does not
    run code either, but which hashes and allocates whatever the pickle asks for. Raises OSError,
    ValueError or BadZipFile.
    """
    with open_limited(path) as file:
        archive = Archive(file)
        machine = PickleReader()
        content = machine.run(archive.read("data.pkl", MAX_PICKLE))
        if machine.skipped_keys:
            raise ValueError("it has keys that are neither text nor whole numbers")
        tensors = TensorReader(archive)
        return _plain(content, tensors, counted=iter(range(MAX_STEPS)), depth=0)


def _plain(value: Any, reader: TensorReader, counted: Iterator[int], depth: int) -> Any:
    """Return `value` with its Records replaced by tensors.

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
    if isinstance(value, Record) and value.kind == "_codecs.encode":  # how protocol 2 pickles bytes
        text = value.args[0] if is_args(value.args, 1) else None
        return text.encode("latin-1") if isinstance(text, str) else b""
    if isinstance(value, (Record, ClassName)):
        name = value.kind if isinstance(value, Record) else value.name
        raise ValueError(f"it holds something other than tensors and plain values: {name}")
    return value
