"""Store the result of a scan on disk.

An .npz without pickle, valid until a file that it was made from changes.
"""

import hashlib
import io
import json
import os
import secrets
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.labels import Labels
from data.report import Report, report_from_dict
from utils.images.decode import DECODER_VERSION
from utils.images.opencv import cv2
from utils.printable import one_line

VERSION = 8  # increase it when the meaning of a stored array changes, or the way labels are read
DIGEST_BYTES = 32


class StoredScan(NamedTuple):
    """A scan and what it was made from.

    `listed`: paths of the images that only a file with all labels (COCO) names.
    """

    labels: Labels
    report: Report
    fingerprint: str
    listed: list[str]


def cache_file(cache_dir: Path, sources: Sequence[Path], names: Sequence[str]) -> Path:
    """Return the path where the scan of these sources with these class names is stored."""
    key = json.dumps(
        [
            VERSION,
            DECODER_VERSION,
            cv2.__version__,
            [str(source) for source in sources],
            list(names),
        ]
    )
    return cache_dir / f"labels-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"


def store(file: Path, stored: StoredScan) -> None:
    """Write `file` atomically, also if other processes write it at the same time.

    Raises OSError.
    """
    # All fields as arrays of one archive, texts as their bytes.
    texts = {
        "report": json.dumps(stored.report.as_dict()),
        "fingerprint": stored.fingerprint,
        "listed": json.dumps(stored.listed),
    }
    arrays = {name: np.frombuffer(text.encode(), np.uint8) for name, text in texts.items()}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **stored.labels.arrays(), **arrays)
    data = buffer.getvalue()

    file.parent.mkdir(parents=True, exist_ok=True)
    # process ids repeat between containers
    temporary = file.with_name(f"{file.name}.tmp.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as stream:
            stream.write(data + hashlib.sha256(data).digest())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def load(file: Path) -> StoredScan | None:
    """Return what `store` wrote, or None if the file does not exist.

    Raises ValueError if it is damaged.
    """
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):
            raise ValueError("not a regular file")
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(str(error.strerror)) from None

    data = content[:-DIGEST_BYTES]
    digest = content[-DIGEST_BYTES:]
    if hashlib.sha256(data).digest() != digest:
        raise ValueError("the checksum is wrong")
    try:
        return _unpacked(data)
    except Exception as error:
        # with a foreign file, zipfile and np.load can raise almost any exception
        raise ValueError(f"not a stored scan: {one_line(error)}") from None


def _unpacked(data: bytes) -> StoredScan:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        # `store` does not compress
        size = sum(entry.file_size for entry in archive.infolist())
        if size > len(data):
            raise ValueError("it would unpack to more bytes than it has")

    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    texts = {}
    for name in ("report", "fingerprint", "listed"):
        texts[name] = arrays.pop(name).tobytes().decode()

    listed = json.loads(texts["listed"])
    if not isinstance(listed, list) or not all(isinstance(path, str) for path in listed):
        raise ValueError("its list of images is not a list of strings")
    labels = Labels(**arrays)
    report = report_from_dict(json.loads(texts["report"]))
    return StoredScan(labels, report, texts["fingerprint"], listed)
