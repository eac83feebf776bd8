"""Read a TorchScript file as data, and refuse whatever Kestrel's own export does not need.

TorchScript is a program: code.py checks its code. The tensors of its pickles must lie
within their storages. A checksum covers all entries, and torch loads a new archive of the entries
that were checked.
"""

import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from models.export.metadata import ExportedModel, read_metadata
from models.export.torchscript.code import check_code
from models.export.torchscript.write import METADATA, packed, torchscript_digest
from utils.files.pickled import (
    CHUNK,
    ClassName,
    PickledObject,
    PickleReader,
    StorageReference,
    is_view,
    open_limited,
)
from utils.printable import excerpt, one_line, printable

MAX_CODE = 1 << 24  # bytes: 20 times that of a large model
MAX_ENTRIES = 100_000
# Of functions with GELU and other operations that torch has changed once, the version is in .data/.
ENTRY = re.compile(
    r"version|\.data/version|byteorder|data\.pkl|constants\.pkl|(data|constants)/\d+|"
    rf"code/__torch__(/\w+)*\.py|{re.escape(METADATA)}"
)
# Of files from before there was a checksum. Their content is not read; they are refused by a
# sentence of their own.
FORMER_ENTRY = re.compile(r"\.data/serialization_id|code/__torch__(/\w+)*\.py\.debug_pkl")


def read_torchscript(path: Path) -> tuple[bytes, ExportedModel]:
    """Return an archive of a file's checked entries, for torch.jit.load, and its metadata.

    Raises ValueError that names the file if it is damaged or changed, comes from another program,
    or is refused.
    """
    shown = printable(path)

    # The entries as they are in the archive, and the metadata among them.
    try:
        entries = read_entries(path)
        text = entries[METADATA].decode() if METADATA in entries else None
    except OSError as error:
        raise ValueError(f"{shown}: cannot be read as TorchScript: {error.strerror}") from None
    except Exception as error:
        # zipfile and the decoders raise errors of many types for a damaged file
        raise ValueError(
            f"{shown}: is not a TorchScript file of Kestrel, or is damaged ({one_line(error)})"
        ) from None
    if text is None:
        raise ValueError(
            f"{shown}: has no metadata of Kestrel: export the checkpoint with export.py"
        )
    model = read_metadata(text, path)
    if not model.payload:
        raise ValueError(
            f"{shown}: has no checksum, an older Kestrel exported it: export the checkpoint again"
        )

    # What they hold, and the checksum of all.
    try:
        check_entries(entries)
    except Exception as error:  # the same, of pickles and of Python's parser
        raise ValueError(
            f"{shown}: is not TorchScript that Kestrel exported, or is damaged ({one_line(error)})"
        ) from None
    if model.sealed(torchscript_digest(entries)) != model:
        raise ValueError(
            f"{shown}: its content does not match its checksum: it is damaged, or was changed "
            "after the export"
        )
    return packed(entries), model


def read_entries(path: Path) -> dict[str, bytes]:
    """Return the entries of the archive that torch needs, by name; their checksums are verified.

    Raises OSError, ValueError or BadZipFile.
    """
    with open_limited(path) as file:
        archive = zipfile.ZipFile(file)
        infos = archive.infolist()
        stored = sum(info.compress_size for info in infos)
        if len(infos) > MAX_ENTRIES or stored > path.stat().st_size:
            raise ValueError("its entries are larger than the file")

        entries: dict[str, bytes] = {}
        for info in infos:
            name = info.filename.partition("/")[2]
            is_former = FORMER_ENTRY.fullmatch(name) is not None
            is_known = is_former or ENTRY.fullmatch(name) is not None
            if name in entries or not is_known:
                raise ValueError(f"it has an entry {excerpt(info.filename)}")
            entries[name] = b"" if is_former else _content(archive, info, name)
        return entries


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> bytes:
    """Return the bytes of an entry. Only code may be compressed, as torch and older files do."""
    is_code = name.startswith("code/")
    stored = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
    if not stored and not (is_code and info.compress_type == zipfile.ZIP_DEFLATED):
        raise ValueError("its entries are compressed")
    if is_code and info.file_size > MAX_CODE:
        raise ValueError(f"its code has more than {MAX_CODE} bytes")

    content = bytearray()
    with archive.open(info) as stream:  # which ends at the size that the directory says
        while chunk := stream.read(CHUNK):
            content += chunk
    if len(content) != info.file_size:
        raise ValueError(f"its {excerpt(name)} is truncated")
    return bytes(content)


def check_entries(entries: Mapping[str, bytes]) -> None:
    """Raise ValueError unless the code is one allowed function and all tensors fit."""
    if entries.get("byteorder", b"little") != b"little":
        raise ValueError("its numbers are not little-endian")
    former = next((name for name in entries if FORMER_ENTRY.fullmatch(name)), None)
    if former is not None:
        raise ValueError(f"it has an entry {excerpt(former)}")

    sources = [content for name, content in entries.items() if name.startswith("code/")]
    if len(sources) != 1 or len(sources[0]) > MAX_CODE:
        raise ValueError("it has no code, or too much")
    kind = check_code(sources[0].decode())
    for folder in ("data", "constants"):
        check_pickle(entries, folder, kind)


def check_pickle(entries: Mapping[str, bytes], folder: str, kind: str) -> None:
    """Raise ValueError unless a pickle holds tensors within their storages, and a `kind` object."""
    own_class = re.compile(rf"__torch__(\.\w+)*\.{re.escape(kind)}")
    left = sum(map(len, entries.values()))  # bytes that tensors may still have together
    root = PickleReader().run(entries[f"{folder}.pkl"])
    for value in values_of(root):
        if not isinstance(value, PickledObject) or own_class.fullmatch(value.kind):
            continue
        if value.kind != "torch._utils._rebuild_tensor_v2":
            raise ValueError(f"it builds a {excerpt(value.kind)}")

        stored, offset, size, strides = value.args[:4]
        if not isinstance(stored, StorageReference):
            raise ValueError("one of its tensors has another size than its storage")
        content = entries.get(f"{folder}/{stored.key}", b"")
        if len(content) != stored.count * stored.dtype.itemsize:
            raise ValueError("one of its tensors has another size than its storage")
        if not is_view(stored.count, offset, size, strides):
            raise ValueError("one of its tensors reaches outside its storage")

        left -= len(content)
        if left < 0:
            raise ValueError("its tensors are larger than the file")


def values_of(root: Any) -> Iterator[Any]:
    """Yield the values nested in an unpickled value.

    Raises ValueError for types that the export does not write.
    """
    pending = [root]
    for _ in range(1_000_000):
        if not pending:
            return
        value = pending.pop()
        yield value

        if isinstance(value, (list, tuple)):
            pending += value
        elif isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, PickledObject):
            if value.items:
                raise ValueError("it has an object with items")
            if not value.kind.startswith("torch._utils."):  # a tensor is checked as a whole
                pending += [value.args, value.state]
        elif not isinstance(value, (str, int, float, bool, type(None), ClassName)):
            raise ValueError(f"it holds a {type(value).__name__}")
    raise ValueError("it is nested too deeply, or contains itself")
