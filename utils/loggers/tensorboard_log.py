"""TensorBoard: an event file in the run folder."""

import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from utils.loggers.base import (
    STEPS,
    ClassResult,
    LoggedRun,
    Logger,
    Record,
)
from utils.optional_packages import import_all_optional, import_optional

HEADER = struct.Struct("<QI")  # of an entry: length of its data, checksum of that
FOOTER_BYTES = 4  # a checksum
PREFIX = "events.out.tfevents"
HPARAMS = "_hparams_/"  # how the tags of hyper-parameters begin
MODULES = (
    "torch.utils.tensorboard.summary",
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.compat.proto.summary_pb2",
    "tensorboard.summary.writer.record_writer",
    "google.protobuf.message",
)


class TensorBoardLogger(Logger):
    """Appends to one event file, for all processes of a run.

    Each record is one event. So the number of events says how many records there are, and an event
    that a killed process has not written to its end is cut off.
    """

    title = "TensorBoard"
    help = "log to TensorBoard: event files in the run folder"

    def prepare(self) -> str:
        import_optional("tensorboard", "--tensorboard")
        self.summary, event, summaries, writer, message = import_all_optional(
            MODULES, "--tensorboard"
        )
        self.Event: Any = event.Event
        self.Summary: Any = summaries.Summary
        self.RecordWriter: Any = writer.RecordWriter
        self.DecodeError: Any = message.DecodeError
        return ""

    def start(self, run: LoggedRun) -> int:
        self.run = run
        name = Path(run.kept().get("file", "")).name
        if not name.startswith(PREFIX):
            name = ""
        before = run.folder / name
        is_ours = before.is_file() and not before.is_symlink()  # the folder may be a stranger's
        if name and is_ours and run.resumed and not run.restarts:
            self.stream: BinaryIO = open(before, "r+b")  # noqa: SIM115
            known = self._count_and_repair()
        else:
            if name:
                before.unlink(missing_ok=True)
            host = socket.gethostname()
            name = f"{PREFIX}.{time.time_ns() // 10**9}.{host}.{os.getpid()}.kestrel"
            self.stream = open(run.folder / name, "wb")  # noqa: SIM115
            run.keep(file=name)
            known = 0

        self.writer = self.RecordWriter(self.stream)
        if not self.stream.tell():
            self._write(self.Event(wall_time=time.time(), file_version="brain.Event:2"))
            self._write_settings(run)
        self.stream.flush()
        return known

    def log(self, records: Sequence[Record]) -> None:
        for record in records:
            values = self._values(record)
            summary = self.Summary(value=values)
            step = record.step if record.kind == STEPS else record.epoch
            self._write(self.Event(wall_time=record.time, step=step, summary=summary))
        self.stream.flush()

    def finish(self, status: str) -> None:
        self.stream.close()

    # ---- the file

    def _write(self, event: Any) -> None:
        self.writer.write(event.SerializeToString())

    def _count_and_repair(self) -> int:
        """Return how many records the file holds; cut off what is not complete behind them.

        What comes after damage is cut off, too, and written again.
        """
        count = 0
        end = 0
        for data in entries_of(self.stream):
            try:
                event = self.Event.FromString(data)
            except self.DecodeError:
                break
            tags = [value.tag for value in event.summary.value]
            is_record = event.HasField("summary") and not any(
                tag.startswith(HPARAMS) for tag in tags
            )
            count += is_record
            end = self.stream.tell()
        self.stream.seek(end)
        self.stream.truncate()
        return count

    # ---- summaries

    def _write_settings(self, run: LoggedRun) -> None:
        """Write the hyper-parameters and the flags, for the page HPARAMS."""
        metrics = {"metrics/mAP_0.5:0.95": 0.0, "metrics/mAP_0.5": 0.0}
        for summary in self.summary.hparams(run.settings(), metrics):
            self._write(self.Event(wall_time=time.time(), summary=summary))

    def _values(self, record: Record) -> list[Any]:
        """Return the summary values of a record."""
        values = [
            self.Summary.Value(tag=name, simple_value=value)
            for name, value in record.values.items()
        ]
        if path := self.run.picture(record):
            values.append(self._picture(path))
        for result in record.classes:
            values += self._class_values(result)
        return values

    def _picture(self, path: Path) -> Any:
        """Return a picture, as it is now."""
        from PIL import Image

        with Image.open(path) as image:
            width, height = image.size
        encoded = path.read_bytes()
        picture = self.Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=encoded
        )
        return self.Summary.Value(tag=path.stem, image=picture)

    def _class_values(self, result: ClassResult) -> Iterator[Any]:
        """Yield the numbers and the PR curve of a class."""
        for name, value in result.values.items():
            yield self.Summary.Value(tag=f"class_{name}/{result.name}", simple_value=value)

        import numpy as np

        precision = np.array(result.precision)
        recall = np.array(result.recall)
        true_positives = recall * result.instances
        false_negatives = result.instances - true_positives
        false_positives = true_positives * (1 - precision) / np.maximum(precision, 1e-9)
        curve = self.summary.pr_curve_raw(
            f"PR/{result.name}",
            true_positives,
            false_positives,
            np.zeros(len(recall)),  # true negatives: a detector has none
            false_negatives,
            precision,
            recall,
            num_thresholds=len(recall),
        )
        yield from curve.value


def entries_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the data of each complete entry of an event file, which is a TFRecord file.

    They end where a length is not followed by as many bytes.
    """
    file_end = os.fstat(stream.fileno()).st_size
    while True:
        header = stream.read(HEADER.size)
        if len(header) < HEADER.size:
            return
        length, _ = HEADER.unpack(header)
        if stream.tell() + length + FOOTER_BYTES > file_end:
            return
        data = stream.read(length)
        stream.seek(FOOTER_BYTES, os.SEEK_CUR)
        yield data
