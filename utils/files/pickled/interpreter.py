"""Run a pickle as data: names are never imported, calls become `PickledObject` objects.

A pickle is a program. torch.load is not used: even with weights_only it executes calls (bytearray,
torch.Tensor) that allocate as much memory as the pickle asks for.
"""

import pickletools
import re
from dataclasses import dataclass, field
from typing import IO, Any, Protocol, cast

import torch

# Limits far above real checkpoints: yolov5x6 with its optimizer state has a pickle of 1 MB and 900
# tensors; RTMDet's files have 15 MB of loss histories.
MAX_PICKLE = 1 << 26  # bytes
MAX_STEPS = 5_000_000  # an opcode allocates at most 200 bytes plus what it copies from the pickle
MAX_LETTERS = 500  # in a module and class name together
MAX_DEPTH = 32  # of nested values
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
VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINSTRING", "SHORT_BINSTRING"),
    *("BINBYTES", "SHORT_BINBYTES"),
}
# getattr is harmless as a name: mmengine's loss histories name methods by it, and nothing calls it
HARMLESS_BUILTINS = re.compile(
    "bool|bytearray|bytes|complex|dict|float|frozenset|getattr|int|list|object|range|set|slice|str|"
    "tuple"
)

HARMFUL_MODULES = re.compile(
    "asyncio|bdb|cProfile|code|codeop|commands|ctypes|ensurepip|ftplib|http|imp|importlib|marshal|multiprocessing|nt|"
    "operator|os|pdb|pickle|pip|pkgutil|posix|profile|pty|pydoc|runpy|shelve|shutil|site|smtplib|socket|subprocess|sys|"
    "timeit|trace|urllib|venv|webbrowser|zipimport"
)


@dataclass(frozen=True)
class ClassName:
    """A class or function that a pickle names. It is never imported."""

    name: str


@dataclass(eq=False)
class PickledObject:
    """Stands for the object that `kind(*args)` would create.

    state, items: what the pickle sets on it.
    """

    kind: str
    args: Any
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StorageReference:
    """A tensor storage: `count` numbers that the file has under `key`."""

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


class PickleSource(Protocol):
    """A file as pickletools reads it."""

    def read(self, count: int, /) -> bytes: ...

    def readline(self) -> bytes: ...


class PickleReader:
    """A pickle interpreter that builds plain values and `PickledObject`s, and cannot call anything.

    skipped_keys: how many dict items were dropped because their keys are neither text nor small
    whole numbers. storages: what its tensors refer to.
    """

    def __init__(self, max_steps: int | None = None) -> None:
        self._max_steps = MAX_STEPS if max_steps is None else max_steps
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.skipped_keys = 0
        self.storages: set[StorageReference] = set()

    def run(self, pickled: bytes | bytearray | PickleSource) -> Any:
        """Return the pickled value; each call in the pickle is a PickledObject.

        pickled: the pickle, or a file that is at its start; no more than the pickle is read of it.

        Raises ValueError if the pickle is damaged, too long, or has opcodes that no checkpoint
        needs.
        """
        source = bytes(pickled) if isinstance(pickled, bytearray) else cast(IO[bytes], pickled)
        for count, (opcode, value, _) in enumerate(pickletools.genops(source)):
            if count == self._max_steps:
                raise ValueError(f"its pickle has more than {self._max_steps} opcodes")
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
        if opcode in VALUES:
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
                self._target(PickledObject).state = state

            case "SETITEM" | "SETITEMS":
                if opcode == "SETITEM":
                    values = [self.stack.pop(-2), self.stack.pop()]  # key, value
                else:
                    values = self._since_mark()

                target = self._target(dict, PickledObject)
                items = target.items if isinstance(target, PickledObject) else target
                self.skipped_keys += _set_items(items, values)

            case "APPEND" | "APPENDS" | "ADDITEMS":
                values = [self.stack.pop()] if opcode == "APPEND" else self._since_mark()
                target = self._target(list, PickledObject)
                if isinstance(target, list):
                    target.extend(values)

            case "BINPERSID":
                self._refer(self.stack.pop())

            case _:
                raise ValueError(f"its pickle has an opcode {opcode}, which no checkpoint needs")

    def _since_mark(self) -> list[Any]:
        """Take off the values since the last mark, and return them."""
        values = self.stack
        self.stack = self.marked.pop()
        return values

    def _record(self, args: Any) -> None:
        """Replace the class or function on the stack by the PickledObject of a call with `args`."""
        callee = self.stack.pop()
        if not isinstance(callee, ClassName):
            raise ValueError("its pickle calls a value that is not callable")
        self.stack.append(PickledObject(callee.name, args))

    def _refer(self, reference: Any) -> None:
        """Put on the stack what a reference stands for: a storage, or a class.

        Files that are no zips refer to each class of a module by ("module", class, file, source).
        """
        is_module = isinstance(reference, tuple) and len(reference) == 4
        if is_module and reference[0] == "module" and isinstance(reference[1], ClassName):
            self.stack.append(reference[1])
            return

        storage = _storage_reference(reference)
        self.storages.add(storage)
        self.stack.append(storage)

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
    """Read a reference as torch.save writes it: ("storage", class, key, device, count).

    Files that are no zips have a sixth part, None; torch has stopped to write views there.
    """
    if not isinstance(reference, tuple) or len(reference) not in (5, 6):
        raise ValueError("it has an invalid storage reference")
    word, storage, key, _, count = reference[:5]
    if word != "storage" or not isinstance(storage, ClassName) or not isinstance(key, str):
        raise ValueError("it has an invalid storage reference")
    if type(count) is not int or count < 0:
        raise ValueError("it has an invalid storage reference")
    if len(reference) == 6 and reference[5] is not None:
        raise ValueError("it has a storage that is a part of another one")
    if storage.name not in DTYPES:
        raise ValueError(f"it has tensors of {storage.name}, which is unknown")
    return StorageReference(DTYPES[storage.name], key, count)


def mapping_entries(value: Any) -> dict[Any, Any]:
    """Return the entries of a dict, or of a pickled dict subclass; ValueError for others."""
    entries = without_subclass(value)
    if not isinstance(entries, dict):
        raise ValueError("one of its modules is damaged")
    return entries


def entries_if_mapping(value: Any) -> dict[Any, Any]:
    """Return the entries of a dict, or of a pickled dict subclass; none of anything else."""
    entries = without_subclass(value)
    return entries if isinstance(entries, dict) else {}


def without_subclass(value: Any) -> Any:
    """Return a pickled dict subclass as the dict of its entries, any other value as it is."""
    if isinstance(value, PickledObject) and value.kind in MAPPINGS:
        return value.items
    return value


def is_args(args: Any, least: int) -> bool:
    return isinstance(args, tuple) and len(args) >= least
