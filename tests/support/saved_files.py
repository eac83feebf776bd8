"""Files of torch.save made of pickles that are written by hand, in both layouts."""

import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from utils.files.pickled.legacy_layout import MAGIC

MACHINE = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}


def write_zip(path: Path, pickled: bytes, storages: Mapping[str, bytes] | None = None) -> Path:
    """Write the layout since torch 1.6."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/version", b"3\n")
        for key, content in (storages or {}).items():
            archive.writestr(f"a/data/{key}", content)
    return path


def write_legacy(path: Path, pickled: bytes, storages: Mapping[str, bytes] | None = None) -> Path:
    """Write the older layout. storages: of 4 bytes each element."""
    content = storages or {}
    parts = header_pickles() + [pickled, pickle.dumps(sorted(content), 2)]
    for _, values in sorted(content.items()):
        parts += [struct.pack("<q", len(values) // 4), values]
    path.write_bytes(b"".join(parts))
    return path


def header_pickles() -> list[bytes]:
    """Return the first three pickles of the older layout."""
    return [MAGIC, pickle.dumps(1001, 2), pickle.dumps(MACHINE, 2)]


LAYOUTS: dict[str, Callable[..., Path]] = {"zip": write_zip, "legacy": write_legacy}
