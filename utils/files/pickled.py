"""A pickle in a file of torch.save, followed as data.

A pickle is a program. Here a name in it is never looked up, a call in it becomes a `Record`, and the numbers are taken
from the file's own entries, each checked against the size that it claims. torch.load is not used: what it allows under
weights_only (bytearray, torch.Tensor) allocates as much memory as the pickle asks for.
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

# Limits far above what checkpoints have: yolov5x6 with its optimizer has 1 GB, a pickle of 1 MB, 900 tensors.
MOST_FILE = 1 << 34
MOST_DIRECTORY = 1 << 22
MOST_PICKLE = 1 << 26
MOST_STEPS = 5_000_000  # a step makes 200 bytes at most, and what it copies from the pickle
MOST_LETTERS = 500  # in a name
MOST_DEPTH = 32
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


class NarrowFile(io.FileIO):
    """A file that hands out no more than MOST_DIRECTORY bytes at once: zipfile reads a directory in one piece."""

    def read(self, size: int | None = -1, /) -> bytes:
        size = MOST_DIRECTORY if size is None or size < 0 else size
        if size > MOST_DIRECTORY:
            raise ValueError(f"its directory has more than {MOST_DIRECTORY} bytes")
        return super().read(size) or b""


def open_narrow(path: Path) -> NarrowFile:
    """Open a file. Raises OSError or ValueError if there is no such file; opening a pipe would block."""
    size = path.stat().st_size
    if not path.is_file():
        raise ValueError("it is no file")
    if size > MOST_FILE:
        raise ValueError(f"it has more than {MOST_FILE} bytes")
    return NarrowFile(path)


class Archive:
    """The entries of a file that torch.save has written, which compresses nothing.

    Raises ValueError or BadZipFile for any other file.
    """

    def __init__(self, file: NarrowFile) -> None:
        self.size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if file.read(4) != b"PK\x03\x04":
            raise ValueError("it is empty" if self.size == 0 else "it is no zip file as torch writes them since 1.6")
        self._zip = zipfile.ZipFile(file)
        entries = self._zip.infolist()
        self._entries = {entry.filename: entry for entry in entries}
        if len(self._entries) != len(entries):
            raise ValueError("it has two entries of one name")
        if any(e.compress_type != zipfile.ZIP_STORED or e.compress_size != e.file_size for e in entries):
            raise ValueError("its entries are compressed")
        if sum(entry.file_size for entry in entries) > self.size:
            raise ValueError("its entries are larger than the file")
        roots = [name.removesuffix("data.pkl") for name in self._entries if re.fullmatch(r"[^/]+/data\.pkl", name)]
        if len(roots) != 1:
            raise ValueError("it has no data.pkl as torch.save writes it")
        self._root = roots[0]
        if f"{self._root}byteorder" in self._entries and self.read("byteorder", 16) != b"little":
            raise ValueError("its numbers are not little-endian")

    def unpickled(self) -> Any:
        """What the pickle would have made, in records."""
        return Machine().run(self.read("data.pkl", MOST_PICKLE))

    def read(self, name: str, most: int) -> bytearray:
        """An entry, its checksum verified."""
        entry = self._entries.get(self._root + name)
        if entry is None:
            raise ValueError(f"it has no entry {name}")
        if entry.file_size > most:
            raise ValueError(f"its {name} has more than {most} bytes")
        content = bytearray()
        with self._zip.open(entry) as stream:
            while chunk := stream.read(CHUNK):
                content += chunk
        if len(content) != entry.file_size:
            raise ValueError(f"its {name} is cut")
        return content


@dataclass(frozen=True)
class Kind:
    """A class or function that a pickle names. It is not looked up."""

    name: str


@dataclass(eq=False)
class Record:
    """What calling `kind` with `args` would have made, with the state and items that it would have been given."""

    kind: str
    args: Any
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """Where a tensor's numbers are: `count` of them in the entry data/`key`."""

    dtype: torch.dtype
    key: str
    count: int


def kind(module: Any, name: Any) -> Kind:
    """Raises ValueError for what a checkpoint never names, and other programs would run."""
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("it makes up names")
    if len(module) + len(name) > MOST_LETTERS:  # one long text in many names would be copied for each
        raise ValueError(f"it has names of more than {MOST_LETTERS} letters")
    module = "builtins" if module == "__builtin__" else module
    root = module.partition(".")[0]
    if HARMFUL_MODULES.fullmatch(root) or (root == "builtins" and not HARMLESS_BUILTINS.fullmatch(name)):
        raise ValueError(f"names {module}.{name}")
    return Kind(f"{module}.{name}")


class Machine:
    """Follows a pickle and makes plain values and records of it. It has no step that could call anything."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.left_out = 0  # entries of dicts, for their keys

    def run(self, pickled: bytes | bytearray) -> Any:
        """What the pickle would have made.

        Raises ValueError if it is damaged, too long, or has steps that no checkpoint needs.
        """
        for count, (step, value, _) in enumerate(pickletools.genops(bytes(pickled))):
            if count == MOST_STEPS:
                raise ValueError(f"its pickle has more than {MOST_STEPS} steps")
            if step.name == "STOP":
                break
            try:
                self._put(step.name, value)
            except (IndexError, KeyError) as error:
                raise ValueError("its pickle is damaged") from error
        if len(self.stack) != 1 or self.marked:
            raise ValueError("its pickle is damaged")
        return self.stack[0]

    def _put(self, step: str, value: Any) -> None:
        if VALUES.fullmatch(step):
            self.stack.append(value)
        elif step in CONSTANTS:
            self.stack.append(CONSTANTS[step])
        elif step in EMPTY:
            self.stack.append(EMPTY[step]())
        elif step in TUPLES:
            self.stack.append(tuple([self.stack.pop() for _ in range(TUPLES[step])][::-1]))
        elif step in {"BINPUT", "LONG_BINPUT"}:
            self.memo[value] = self.stack[-1]
        elif step == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif step in {"BINGET", "LONG_BINGET"}:
            self.stack.append(self.memo[value])
        elif step not in {"PROTO", "FRAME"}:
            self._join(step, value)

    def _join(self, step: str, value: Any) -> None:
        match step:
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
                self.stack.pop()  # keywords
                self._record(self.stack.pop())
            case "BUILD":
                state = self.stack.pop()
                self._target(Record).state = state
            case "SETITEM" | "SETITEMS":
                values = self._since_mark() if step == "SETITEMS" else [self.stack.pop(-2), self.stack.pop()]
                target = self._target(dict, Record)
                self.left_out += _set_items(target.items if isinstance(target, Record) else target, values)
            case "APPEND" | "APPENDS" | "ADDITEMS":
                values = [self.stack.pop()] if step == "APPEND" else self._since_mark()
                target = self._target(list, Record)
                if isinstance(target, list):
                    target.extend(values)
            case "BINPERSID":
                self.stack.append(_stored(self.stack.pop()))
            case _:
                raise ValueError(f"its pickle has a step {step}, which no checkpoint needs")

    def _since_mark(self) -> list[Any]:
        values, self.stack = self.stack, self.marked.pop()
        return values

    def _record(self, args: Any) -> None:
        made = self.stack.pop()
        if not isinstance(made, Kind):
            raise ValueError("its pickle calls what is no class")
        self.stack.append(Record(made.name, args))

    def _target(self, *kinds: type) -> Any:
        target = self.stack[-1]
        if not isinstance(target, kinds):
            raise ValueError("its pickle fills what cannot be filled")
        return target


def _set_items(target: dict[Any, Any], values: list[Any]) -> int:
    """Set the items; return how many keys were left out, all but texts and numbers: hashing tuples may not end."""
    if len(values) % 2:
        raise ValueError("its pickle is damaged")
    pairs = list(zip(values[::2], values[1::2], strict=True))
    fit = [(k, v) for k, v in pairs if isinstance(k, str) or (type(k) is int and abs(k) < 1 << 31)]
    target.update(fit)
    return len(pairs) - len(fit)


def _stored(reference: Any) -> Stored:
    """A storage as torch.save refers to it: "storage", its class, key, device, count."""
    if not isinstance(reference, tuple) or len(reference) != 5:
        raise ValueError("it refers to what is no storage")
    word, storage, key, _, count = reference
    if word != "storage" or not isinstance(storage, Kind) or not isinstance(key, str):
        raise ValueError("it refers to what is no storage")
    if type(count) is not int or count < 0:
        raise ValueError("it refers to what is no storage")
    if storage.name not in DTYPES:
        raise ValueError(f"it has tensors of {storage.name}, which are not known")
    return Stored(DTYPES[storage.name], key, count)


class TensorReader:
    """Tensors of an archive, all together no larger than the archive."""

    def __init__(self, archive: Archive) -> None:
        self._archive, self._left = archive, archive.size
        self._read: dict[str, bytearray] = {}

    def tensor(self, value: Any) -> Tensor:
        """A tensor or parameter on the bytes that were read, with the strides that it was saved with.

        Raises ValueError if the record is of something else, or reaches outside its storage.
        """
        if isinstance(value, Record) and value.kind == "torch._utils._rebuild_parameter" and is_args(value.args, 1):
            value = value.args[0]
        if not is_tensor(value):
            raise ValueError("it has something else where a tensor should be")
        if not is_args(value.args, 4):
            raise ValueError("a tensor of it is damaged")
        stored, offset, size, strides = value.args[:4]
        if not isinstance(stored, Stored) or not _is_view(stored.count, offset, size, strides):
            raise ValueError("a tensor of it reaches outside its storage")
        self._left -= math.prod(size) * stored.dtype.itemsize
        if self._left < 0:
            raise ValueError("its tensors are larger than the file")
        content = self._storage(stored)
        if math.prod(size) == 0:
            return torch.empty(size, dtype=stored.dtype)
        return torch.frombuffer(content, dtype=stored.dtype).as_strided(size, strides, offset)

    def _storage(self, stored: Stored) -> bytearray:
        if stored.key not in self._read:
            self._read[stored.key] = self._archive.read(f"data/{stored.key}", self._archive.size)
        content = self._read[stored.key]
        if len(content) != stored.count * stored.dtype.itemsize:
            raise ValueError(f"its data/{stored.key} has {len(content)} bytes for {stored.count} {stored.dtype}")
        return content


def is_tensor(value: Any) -> bool:
    return isinstance(value, Record) and value.kind == "torch._utils._rebuild_tensor_v2"


def is_args(args: Any, least: int) -> bool:
    return isinstance(args, tuple) and len(args) >= least


def _is_view(count: int, offset: Any, size: Any, strides: Any) -> bool:
    """Whether they describe a view, no larger than its storage, of a storage of `count` numbers."""
    if not isinstance(size, tuple) or not isinstance(strides, tuple) or not len(size) == len(strides) <= 8:
        return False
    if not all(type(value) is int and 0 <= value < 1 << 40 for value in (offset, *size, *strides)):
        return False
    last = offset + sum((n - 1) * stride for n, stride in zip(size, strides, strict=True))
    return math.prod(size) <= count and (math.prod(size) == 0 or last < count)


def read_plain(path: Path) -> Any:
    """What torch.save has written, if that is tensors and plain values alone; all of it is no larger than the file.

    As torch.load(weights_only=True), which runs nothing either, but hashes and allocates whatever the pickle asks for.
    Raises OSError, ValueError or BadZipFile.
    """
    with open_narrow(path) as file:
        archive, machine = Archive(file), Machine()
        found = machine.run(archive.read("data.pkl", MOST_PICKLE))
        if machine.left_out:
            raise ValueError("it has keys that are neither texts nor whole numbers")
        return _plain(found, TensorReader(archive), iter(range(MOST_STEPS)), 0)


def _plain(value: Any, reader: TensorReader, counted: Iterator[int], depth: int) -> Any:
    """`value` with its records replaced by tensors. A value that is in two places is copied, and counted, for each."""
    if next(counted, None) is None or depth > MOST_DEPTH:
        raise ValueError("it is nested too deeply, or without end")
    if isinstance(value, dict):
        return {key: _plain(entry, reader, counted, depth + 1) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        entries = [_plain(entry, reader, counted, depth + 1) for entry in value]
        return tuple(entries) if isinstance(value, tuple) else entries
    if is_tensor(value):
        return reader.tensor(value)
    if isinstance(value, Record) and value.kind == "_codecs.encode":  # of bytes, by pickles of protocol 2
        text = value.args[0] if is_args(value.args, 1) else None
        return text.encode("latin-1") if isinstance(text, str) else b""
    if isinstance(value, (Record, Kind)):
        name = value.kind if isinstance(value, Record) else value.name
        raise ValueError(f"it holds more than tensors and plain values: {name}")
    return value
