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
    """A file that refuses reads of more than MAX_DIRECTORY bytes: zipfile reads a zip's directory
    in one call.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        size = MAX_DIRECTORY if size is None or size < 0 else size
        if size > MAX_DIRECTORY:
            raise ValueError(f"its directory has more than {MAX_DIRECTORY} bytes")
        return super().read(size) or b""


def open_limited(path: Path) -> LimitedReadFile:
    """Open a regular file of at most MAX_FILE bytes. Raises OSError or ValueError for others: a
    pipe would block.
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
        if file.read(4) != b"PK\x03\x04":
            raise ValueError(
                "it is empty"
                if self.size == 0
                else "it is not a zip file of torch.save (torch 1.6 or later)"
            )
        self._zip = zipfile.ZipFile(file)
        entries = self._zip.infolist()
        self._entries = {entry.filename: entry for entry in entries}
        if len(self._entries) != len(entries):
            raise ValueError("it has two entries with the same name")
        if any(
            e.compress_type != zipfile.ZIP_STORED or e.compress_size != e.file_size for e in entries
        ):
            raise ValueError("its entries are compressed")
        if sum(entry.file_size for entry in entries) > self.size:
            raise ValueError("its entries are larger than the file")
        folders = [
            name.removesuffix("data.pkl")
            for name in self._entries
            if re.fullmatch(r"[^/]+/data\.pkl", name)
        ]
        if len(folders) != 1:
            raise ValueError("it has no data.pkl as torch.save writes it")
        self._folder = folders[0]
        if f"{self._folder}byteorder" in self._entries and self.read("byteorder", 16) != b"little":
            raise ValueError("its numbers are not little-endian")

    def unpickled(self) -> Any:
        """The pickled value; each call in the pickle is a Record."""
        return PickleReader().run(self.read("data.pkl", MAX_PICKLE))

    def read(self, name: str, most: int) -> bytearray:
        """The bytes of an entry, checksum verified. Raises ValueError if there are more than
        `most`.
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
    """Stands for the object that `kind(*args)` would create, with the state and items that the
    pickle sets on it.
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
    """The ClassName of a name. Raises ValueError for names that no checkpoint needs and that do
    harm when called.
    """
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("it builds a class name from values that are not text")
    # a long text used in many names would be copied for each
    if len(module) + len(name) > MAX_LETTERS:
        raise ValueError(f"it has names of more than {MAX_LETTERS} letters")
    module = "builtins" if module == "__builtin__" else module
    root = module.partition(".")[0]
    if HARMFUL_MODULES.fullmatch(root) or (
        root == "builtins" and not HARMLESS_BUILTINS.fullmatch(name)
    ):
        raise ValueError(f"it names {module}.{name}")
    return ClassName(f"{module}.{name}")


class PickleReader:
    """A pickle interpreter that builds plain values and Records. None of its opcodes can call
    anything.

    skipped_keys: how many dict items were dropped because their keys are neither text nor small
    whole numbers.
    """

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.skipped_keys = 0

    def run(self, pickled: bytes | bytearray) -> Any:
        """The pickled value; each call in the pickle is a Record.

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
        if VALUES.fullmatch(opcode):
            self.stack.append(value)
        elif opcode in CONSTANTS:
            self.stack.append(CONSTANTS[opcode])
        elif opcode in EMPTY:
            self.stack.append(EMPTY[opcode]())
        elif opcode in TUPLES:
            self.stack.append(tuple([self.stack.pop() for _ in range(TUPLES[opcode])][::-1]))
        elif opcode in {"BINPUT", "LONG_BINPUT"}:
            self.memo[value] = self.stack[-1]
        elif opcode == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif opcode in {"BINGET", "LONG_BINGET"}:
            self.stack.append(self.memo[value])
        elif opcode not in {"PROTO", "FRAME"}:
            self._combine(opcode, value)

    def _combine(self, opcode: str, value: Any) -> None:
        match opcode:
            case "MARK":
                self.marked.append(self.stack)
                self.stack = []
            case "TUPLE":
                joined = tuple(self._since_mark())
                self.stack.append(joined)
            case "GLOBAL":
                self.stack.append(kind(*value.split(" ", 1)))
            case "STACK_GLOBAL":
                name = self.stack.pop()
                self.stack.append(kind(self.stack.pop(), name))
            case "NEWOBJ" | "REDUCE":
                self._record(self.stack.pop())
            case "NEWOBJ_EX":
                self.stack.pop()  # keyword arguments
                self._record(self.stack.pop())
            case "BUILD":
                state = self.stack.pop()
                self._target(Record).state = state
            case "SETITEM" | "SETITEMS":
                values = (
                    self._since_mark()
                    if opcode == "SETITEMS"
                    else [self.stack.pop(-2), self.stack.pop()]
                )
                target = self._target(dict, Record)
                self.skipped_keys += _set_items(
                    target.items if isinstance(target, Record) else target, values
                )
            case "APPEND" | "APPENDS" | "ADDITEMS":
                values = [self.stack.pop()] if opcode == "APPEND" else self._since_mark()
                target = self._target(list, Record)
                if isinstance(target, list):
                    target.extend(values)
            case "BINPERSID":
                self.stack.append(_stored(self.stack.pop()))
            case _:
                raise ValueError(f"its pickle has an opcode {opcode}, which no checkpoint needs")

    def _since_mark(self) -> list[Any]:
        values, self.stack = self.stack, self.marked.pop()
        return values

    def _record(self, args: Any) -> None:
        callee = self.stack.pop()
        if not isinstance(callee, ClassName):
            raise ValueError("its pickle calls a value that is not callable")
        self.stack.append(Record(callee.name, args))

    def _target(self, *kinds: type) -> Any:
        target = self.stack[-1]
        if not isinstance(target, kinds):
            raise ValueError("its pickle adds items or state to a value that has none")
        return target


def _set_items(target: dict[Any, Any], values: list[Any]) -> int:
    """Set the items whose keys are text or small whole numbers; return how many items were left
    out.

    Other keys are not hashed: hashing nested tuples may take forever.
    """
    if len(values) % 2:
        raise ValueError("its pickle is damaged")
    pairs = list(zip(values[::2], values[1::2], strict=True))
    fit = [(k, v) for k, v in pairs if isinstance(k, str) or (type(k) is int and abs(k) < 1 << 31)]
    target.update(fit)
    return len(pairs) - len(fit)


def _stored(reference: Any) -> StorageReference:
    """The storage of a torch.save reference: ("storage", class, key, device, count)."""
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
        self._archive, self._left = archive, archive.size
        self._read: dict[str, bytearray] = {}

    def tensor(self, value: Any) -> Tensor:
        """The tensor or parameter of a Record, with its saved strides, as a view of the bytes read
        from the file.

        Raises ValueError if the Record is something else, or the tensor reaches outside its
        storage.
        """
        if (
            isinstance(value, Record)
            and value.kind == "torch._utils._rebuild_parameter"
            and is_args(value.args, 1)
        ):
            value = value.args[0]
        if not is_tensor(value):
            raise ValueError("it has something else where a tensor should be")
        if not is_args(value.args, 4):
            raise ValueError("one of its tensors is damaged")
        stored, offset, size, strides = value.args[:4]
        if not isinstance(stored, StorageReference) or not is_view(
            stored.count, offset, size, strides
        ):
            raise ValueError("one of its tensors reaches outside its storage")
        self._left -= math.prod(size) * stored.dtype.itemsize
        if self._left < 0:
            raise ValueError("its tensors are larger than the file")
        content = self._storage(stored)
        if math.prod(size) == 0:
            return torch.empty(size, dtype=stored.dtype)
        return torch.frombuffer(content, dtype=stored.dtype).as_strided(size, strides, offset)

    def _storage(self, stored: StorageReference) -> bytearray:
        if stored.key not in self._read:
            self._read[stored.key] = self._archive.read(f"data/{stored.key}", self._archive.size)
        content = self._read[stored.key]
        if len(content) != stored.count * stored.dtype.itemsize:
            raise ValueError(
                f"its data/{stored.key} has {len(content)} bytes for {stored.count} {stored.dtype}"
            )
        return content


def mapping_entries(value: Any) -> dict[Any, Any]:
    """The entries of a dict, or of the record of a dict subclass. Raises ValueError for anything
    else.
    """
    found = value.items if isinstance(value, Record) and value.kind in MAPPINGS else value
    if not isinstance(found, dict):
        raise ValueError("one of its modules is damaged")
    return found


def is_tensor(value: Any) -> bool:
    return isinstance(value, Record) and value.kind == "torch._utils._rebuild_tensor_v2"


def is_args(args: Any, least: int) -> bool:
    return isinstance(args, tuple) and len(args) >= least


def is_view(count: int, offset: Any, size: Any, strides: Any) -> bool:
    """Whether offset, size and strides describe a view of a storage of `count` numbers, no larger
    than that storage.
    """
    if (
        not isinstance(size, tuple)
        or not isinstance(strides, tuple)
        or not len(size) == len(strides) <= 8
    ):
        return False
    if not all(type(value) is int and 0 <= value < 1 << 40 for value in (offset, *size, *strides)):
        return False
    last = offset + sum((n - 1) * stride for n, stride in zip(size, strides, strict=True))
    return math.prod(size) <= count and (math.prod(size) == 0 or last < count)


def read_plain(path: Path) -> Any:
    """The content of a torch.save file that holds only tensors and plain values, together no larger
    than the file.

    Like torch.load(weights_only=True), which does not run code either, but which hashes and
    allocates whatever the pickle asks for. Raises OSError, ValueError or BadZipFile.
    """
    with open_limited(path) as file:
        archive, machine = Archive(file), PickleReader()
        content = machine.run(archive.read("data.pkl", MAX_PICKLE))
        if machine.skipped_keys:
            raise ValueError("it has keys that are neither text nor whole numbers")
        return _plain(content, TensorReader(archive), iter(range(MAX_STEPS)), 0)


def _plain(value: Any, reader: TensorReader, counted: Iterator[int], depth: int) -> Any:
    """`value` with its Records replaced by tensors. A value that occurs twice is copied, and
    counted, twice.
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
