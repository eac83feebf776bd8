"""Run a pickle as data: names are never imported, calls become `PickledObject` objects.

A pickle is a program. torch.load is not used: even with weights_only it executes calls (bytearray,
torch.Tensor) that allocate as much memory as the pickle asks for.
"""

import io
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

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

MAPPINGS = {"collections.OrderedDict", "collections.defaultdict", "builtins.dict"}
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
        source = io.BytesIO(pickled) if isinstance(pickled, bytes | bytearray) else pickled
        try:
            self._run_until_stop(source)
        except (IndexError, KeyError) as error:
            raise ValueError("its pickle is damaged") from error
        if len(self.stack) != 1 or self.marked:
            raise ValueError("its pickle is damaged")
        return self.stack[0]

    def _run_until_stop(self, source: PickleSource) -> None:
        """Run the opcodes up to the one that ends a pickle.

        A file of a module has tens of thousands of them, so the loop is short.
        """
        for _ in range(self._max_steps):
            code = source.read(1)
            if code == STOP:
                return
            if code not in OPCODES:
                unknown = f"opcode {code!r} unknown"
                raise ValueError(unknown if code else "pickle exhausted before seeing STOP")
            read_argument, run_opcode = OPCODES[code]
            run_opcode(self, read_argument(source) if read_argument else None)
        raise ValueError(f"its pickle has more than {self._max_steps} opcodes")

    # Each opcode has a method, which gets its argument. These put a value on the stack.

    def _push(self, value: Any) -> None:
        self.stack.append(value)

    def _push_none(self, _: None) -> None:
        self.stack.append(None)

    def _push_true(self, _: None) -> None:
        self.stack.append(True)

    def _push_false(self, _: None) -> None:
        self.stack.append(False)

    def _push_dict(self, _: None) -> None:
        self.stack.append({})

    def _push_list(self, _: None) -> None:
        self.stack.append([])

    def _push_empty_tuple(self, _: None) -> None:
        self.stack.append(())

    # These note the value on top of the stack under a number, or put it there again.

    def _memoize(self, _: None) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _memoize_as(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def _push_memoized(self, number: int) -> None:
        self.stack.append(self.memo[number])

    def _pass(self, _: Any) -> None:
        """PROTO and FRAME change nothing."""

    # Tuples of the values since a mark, or of the last ones.

    def _mark(self, _: None) -> None:
        self.marked.append(self.stack)
        self.stack = []

    def _join_since_mark(self, _: None) -> None:
        joined = tuple(self._since_mark())
        self.stack.append(joined)

    def _join_one(self, _: None) -> None:
        self.stack.append((self.stack.pop(),))

    def _join_two(self, _: None) -> None:
        second = self.stack.pop()
        self.stack.append((self.stack.pop(), second))

    def _join_three(self, _: None) -> None:
        third = self.stack.pop()
        second = self.stack.pop()
        self.stack.append((self.stack.pop(), second, third))

    # Names of functions and classes, none of which is imported.

    def _name(self, module_and_name: str) -> None:
        module, name = module_and_name.split(" ", 1)
        self.stack.append(kind(module, name))

    def _name_on_stack(self, _: None) -> None:
        name = self.stack.pop()
        module = self.stack.pop()
        self.stack.append(kind(module, name))

    # Calls and states, which are only recorded.

    def _call(self, _: None) -> None:
        self._record(self.stack.pop())

    def _call_with_keywords(self, _: None) -> None:
        self.stack.pop()  # keyword arguments
        self._record(self.stack.pop())

    def _set_state(self, _: None) -> None:
        state = self.stack.pop()
        self._target(PickledObject).state = state

    # Entries of dicts and lists.

    def _set_item(self, _: None) -> None:
        self._set_items([self.stack.pop(-2), self.stack.pop()])  # key, value

    def _set_items_since_mark(self, _: None) -> None:
        self._set_items(self._since_mark())

    def _set_items(self, values: list[Any]) -> None:
        target = self._target(dict, PickledObject)
        items = target.items if isinstance(target, PickledObject) else target
        self.skipped_keys += _set_items(items, values)

    def _append(self, _: None) -> None:
        self._extend([self.stack.pop()])

    def _extend_since_mark(self, _: None) -> None:
        self._extend(self._since_mark())

    def _extend(self, values: list[Any]) -> None:
        target = self._target(list, PickledObject)
        if isinstance(target, list):
            target.extend(values)

    def _refer_on_stack(self, _: None) -> None:
        self._refer(self.stack.pop())

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


Method = Callable[[PickleReader, Any], None]  # takes the opcode's argument, None without one
# The method of each opcode that checkpoints need, by its name in pickletools.
METHODS: dict[str, Method] = {
    "BININT": PickleReader._push,
    "BININT1": PickleReader._push,
    "BININT2": PickleReader._push,
    "LONG1": PickleReader._push,
    "BINFLOAT": PickleReader._push,
    "BINUNICODE": PickleReader._push,
    "SHORT_BINUNICODE": PickleReader._push,
    "BINSTRING": PickleReader._push,
    "SHORT_BINSTRING": PickleReader._push,
    "BINBYTES": PickleReader._push,
    "SHORT_BINBYTES": PickleReader._push,
    "NONE": PickleReader._push_none,
    "NEWTRUE": PickleReader._push_true,
    "NEWFALSE": PickleReader._push_false,
    "EMPTY_DICT": PickleReader._push_dict,
    "EMPTY_LIST": PickleReader._push_list,
    "EMPTY_SET": PickleReader._push_list,
    "EMPTY_TUPLE": PickleReader._push_empty_tuple,
    "MEMOIZE": PickleReader._memoize,
    "BINPUT": PickleReader._memoize_as,
    "LONG_BINPUT": PickleReader._memoize_as,
    "BINGET": PickleReader._push_memoized,
    "LONG_BINGET": PickleReader._push_memoized,
    "PROTO": PickleReader._pass,
    "FRAME": PickleReader._pass,
    "MARK": PickleReader._mark,
    "TUPLE": PickleReader._join_since_mark,
    "TUPLE1": PickleReader._join_one,
    "TUPLE2": PickleReader._join_two,
    "TUPLE3": PickleReader._join_three,
    "GLOBAL": PickleReader._name,
    "STACK_GLOBAL": PickleReader._name_on_stack,
    "NEWOBJ": PickleReader._call,
    "REDUCE": PickleReader._call,
    "NEWOBJ_EX": PickleReader._call_with_keywords,
    "BUILD": PickleReader._set_state,
    "SETITEM": PickleReader._set_item,
    "SETITEMS": PickleReader._set_items_since_mark,
    "APPEND": PickleReader._append,
    "APPENDS": PickleReader._extend_since_mark,
    "ADDITEMS": PickleReader._extend_since_mark,
    "BINPERSID": PickleReader._refer_on_stack,
}
STOP = b"."


def _refusing(name: str) -> Method:
    """Return the method of an opcode that is not in METHODS."""

    def refuse(_: PickleReader, __: Any) -> None:
        raise ValueError(f"its pickle has an opcode {name}, which no checkpoint needs")

    return refuse


# How to read the argument, None without one, and the method, by the byte in the pickle.
OPCODES: dict[bytes, tuple[Callable[[Any], Any] | None, Method]] = {
    opcode.code.encode("latin-1"): (
        opcode.arg.reader if opcode.arg else None,
        METHODS.get(opcode.name, _refusing(opcode.name)),
    )
    for opcode in pickletools.opcodes
}


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
