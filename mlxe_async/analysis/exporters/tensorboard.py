"""TensorBoard's event files: scalars by environment steps, at the time that the log has, and the settings as text."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.summary.writer.record_writer import RecordWriter

from mlxe_async.analysis.exporters.scalars import Histogram, Point, Scalars, entries_of, time_of
from mlxe_async.storage.files import make_folder
from mlxe_async.storage.safe_text import visible

SUFFIX = ".mlxe_async"
LARGEST = 3.4028234e38  # values are kept in single precision
LONGEST_NAME = 200
BUCKETS = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="histograms"))
TEXT = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))


class Files:
    """An event file in a folder; see `Exporter`."""

    forgets = True

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        for earlier in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
            earlier.unlink()
        path = folder / f"events.out.tfevents.{os.getpid()}{SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(path, flags, 0o600), "wb")
        self._records = RecordWriter(self._file)
        self._scalars = Scalars()
        self._folder, self._values, self._is_begun, self._last = folder, 0, False, 0.0

    def feed(self, line: Mapping[str, Any]) -> None:
        """Take in the next line."""
        time, event = time_of(line), line["event"]
        self._last = time
        if not self._is_begun:
            self._is_begun = True
            self._records.write(Event(wall_time=time, file_version="brain.Event:2").SerializeToString())
        if event == "run_start" and not line.get("resumed"):
            self._tell_settings(line, time)
        if event == "run_end":
            self._tell_text("ending", str(line.get("reason")), time)
        if event == "run_resume" and type(line.get("env_steps")) is int:
            # Readers that heard of what is void now forget it.
            begun = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time, step=line["env_steps"] + 1, session_log=begun))
        for point in self._scalars.feed(line):
            if abs(point.value) <= LARGEST:
                self._put(point)
        for one in self._scalars.histograms(line):
            self._put_histogram(one)

    def flush(self) -> None:
        """Let readers see all that was fed so far."""
        self._file.flush()

    def close(self, died: str = "") -> None:
        """Close the file."""
        if not self._file.closed:
            if died:
                self._tell_text("ending", died, self._last)
            self._file.close()

    def _put(self, point: Point) -> None:
        value = Summary.Value(tag=visible(point.name, LONGEST_NAME), simple_value=point.value)
        self._write(Event(wall_time=point.time, step=point.step, summary=Summary(value=[value])))
        self._values += 1

    def _put_histogram(self, told: Histogram) -> None:
        """Write its buckets as the tensor (buckets, 3) that TensorBoard draws: begin, end and count of each."""
        rows = [float(one) for row in zip(told.edges, told.edges[1:], told.counts, strict=False) for one in row]
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(told.counts)), TensorShapeProto.Dim(size=3)])
        tensor = TensorProto(dtype="DT_DOUBLE", double_val=rows, tensor_shape=shape)
        value = Summary.Value(tag=visible(told.name, LONGEST_NAME), metadata=BUCKETS, tensor=tensor)
        self._write(Event(wall_time=told.time, step=told.step, summary=Summary(value=[value])))
        self._values += 1

    def _tell_settings(self, line: Mapping[str, Any], time: float) -> None:
        """Tell them as a table, which TensorBoard shows among its texts."""
        rows = [f"|{name}|{_cell(value)}|\n" for name, value in entries_of(line.get("settings") or {})]
        self._tell_text("settings", "|key|value|\n|-|-|\n" + "".join(rows), time)

    def _tell_text(self, name: str, text: str, time: float) -> None:
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        told = TensorProto(dtype="DT_STRING", string_val=[text.encode("utf-8", "backslashreplace")], tensor_shape=shape)
        value = Summary.Value(tag=f"{name}/text_summary", metadata=TEXT, tensor=told)
        self._write(Event(wall_time=time, step=0, summary=Summary(value=[value])))

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())

    def told(self) -> str:
        """Return how much was written, and how it is looked at."""
        return f"{self._values:,} values; tensorboard --logdir {shlex.quote(visible(str(self._folder.parent)))}"


def _cell(value: Any) -> str:
    return visible(json.dumps(value)).replace("|", "\\|")
