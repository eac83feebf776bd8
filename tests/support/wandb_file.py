"""Read the file that W&B writes offline: LevelDB's log format, with protocol buffers of W&B.

Source: https://github.com/google/leveldb/blob/main/doc/log_format.md, after a header of 7 bytes.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32768
HEADER = struct.Struct("<IHB")  # checksum, length, kind
FULL, LAST = 1, 4  # kinds of chunks that end a record


def records_of(file: Path) -> Iterator[Any]:
    """All records of a .wandb file."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = file.read_bytes()
    assert data[:4] == b":W&B"
    position, parts = 7, b""
    while position + HEADER.size <= len(data):
        left = BLOCK - position % BLOCK
        if left < HEADER.size:
            position += left
            continue
        _, length, kind = HEADER.unpack_from(data, position)
        position += HEADER.size
        parts += data[position : position + length]
        position += length
        if kind in (FULL, LAST):
            yield Record.FromString(parts)
            parts = b""


def history_of(file: Path) -> list[dict[str, Any]]:
    """The rows that were logged, as name -> value; names of nested values are joined by dots."""
    rows = []
    for record in records_of(file):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            names = [item.key or ".".join(item.nested_key) for item in items]
            rows.append(
                {name: json.loads(item.value_json) for name, item in zip(names, items, strict=True)}
            )
    return rows
