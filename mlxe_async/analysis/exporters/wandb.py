"""An offline run of Weights & Biases: `offline-run-<time>-<run>` with its one file, which `wandb sync` uploads.

The records are the package's own protocol buffers, in the frame that its own writer uses: LevelDB's log of blocks of
32 KiB, each piece with its CRC-32, after a head of seven bytes. Nothing of the package is started, and nothing asks the
network. Each line that tells values is a row of history; the x axis is `env_steps`.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from mlxe_async.analysis.exporters.scalars import Scalars, time_of
from mlxe_async.storage.files import PLAIN_NAME, make_folder
from mlxe_async.storage.safe_text import visible

# Its types are made when it is imported, and known to no checker of types.
records: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")

HEAD = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
BLOCK, PIECE = 32768, struct.Struct("<IHB")
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
BEGUN = [zlib.crc32(bytes([kind])) for kind in range(5)]
PROJECT, STEPS = "mlxe_async", "env_steps"
LONGEST_NAME, LONGEST_TAG = 200, 64
OLDEST_READER = "0.15.0"


class Files:
    """An offline run in a folder, which may hold others; see `Exporter`."""

    forgets = False

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._folder, self._place = folder, folder
        self._file: IO[bytes] | None = None
        self._at = self._number = self._rows = 0
        self._began = self._last = 0.0
        self._scalars = Scalars()
        self._summary: dict[str, str] = {}
        self._exit: int | None = None

    def feed(self, line: Mapping[str, Any]) -> None:
        """Take in the next line."""
        self._last, event = time_of(line), line["event"]
        if self._file is None:
            self._begin(line)
        if event == "run_start":
            self._write(records.Record(config=records.ConfigRecord(update=_config(line))))
        if event == "run_end":
            self._summary["ending"] = _json(str(line.get("reason")))
            code = line.get("exit_code")
            self._exit = code if type(code) is int and 0 <= code < 256 else 1
        elif self._exit is not None:  # the run was resumed
            self._exit = None
        if points := self._scalars.feed(line):
            step = points[0].step
            told = {visible(point.name, LONGEST_NAME): _json(point.value) for point in points}
            for one in self._scalars.histograms(line):
                drawn = {"_type": "histogram", "bins": one.edges, "values": one.counts}
                told[visible(one.name, LONGEST_NAME)] = _json(drawn)
            told |= {STEPS: _json(step), "_step": _json(self._rows), "_timestamp": _json(self._last)}
            told["_runtime"] = _json(max(0.0, self._last - self._began))
            items = [records.HistoryItem(nested_key=[name], value_json=value) for name, value in told.items()]
            history = records.HistoryRecord(item=items, step=records.HistoryStep(num=self._rows))
            self._write(records.Record(history=history))
            self._summary |= told
            self._rows += 1

    def flush(self) -> None:
        """Let readers see all that was fed so far."""
        if self._file is None:
            return
        if self._summary:
            items = [records.SummaryItem(nested_key=[name], value_json=told) for name, told in self._summary.items()]
            self._write(records.Record(summary=records.SummaryRecord(update=items)))
            self._summary.clear()
        self._file.flush()

    def close(self, died: str = "") -> None:
        """Write what is left, and how the run ended, if it did."""
        if self._file is None or self._file.closed:
            return
        if died:
            self._summary["ending"], self._exit = _json(died), 1
        self.flush()
        if self._exit is not None:
            runtime = round(max(0.0, self._last - self._began))
            self._write(records.Record(exit=records.RunExitRecord(exit_code=self._exit, runtime=runtime)))
        self._file.close()

    def told(self) -> str:
        """Return how much was written, and how it is uploaded."""
        return f"{self._rows:,} rows of history; wandb sync {shlex.quote(visible(str(self._place)))}"

    def _begin(self, line: Mapping[str, Any]) -> None:
        name = str(line["run"])
        if not PLAIN_NAME.fullmatch(name):
            raise ValueError(f"got {visible(repr(name), 60)} as the name of a run")
        self._began = self._last
        date = line["ts"][:19].translate(str.maketrans("T", "_", "-:"))
        if not date.replace("_", "").isdigit():
            raise ValueError(f"got {visible(repr(line['ts']), 60)} as a time")
        for earlier in self._folder.glob(f"offline-run-*-{name}/run-{name}.wandb*"):
            earlier.unlink()
        self._place = self._folder / f"offline-run-{date}-{name}"
        for folder in (self._place, self._place / "files", self._place / "logs"):
            make_folder(folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(self._place / f"run-{name}.wandb", flags, 0o600), "wb")
        self._file.write(HEAD)
        self._at = len(HEAD)
        about = records.VersionInfo(producer="mlxe_async", min_consumer=OLDEST_READER)
        self._write(records.Record(header=records.HeaderRecord(version_info=about)))
        tags = [visible(str(line[key]), LONGEST_TAG - 1) for key in ("env", "algorithm", "schedule") if line.get(key)]
        run = records.RunRecord(run_id=name, display_name=name, project=PROJECT, tags=tags)
        run.start_time.FromMilliseconds(round(self._began * 1000))
        self._write(records.Record(run=run))
        axis = records.MetricRecord(name=STEPS)
        axis.options.defined = True
        every = records.MetricRecord(glob_name="*", step_metric=STEPS)
        every.options.defined = every.options.step_sync = True
        for metric in (axis, every):
            self._write(records.Record(metric=metric))

    def _write(self, record: Any) -> None:
        """Append a record: in one piece, or in several where it does not fit into what is left of a block."""
        assert self._file is not None  # noqa: S101 - it has begun
        self._number += 1
        record.num = self._number
        rest, is_first = memoryview(record.SerializeToString()), True
        while is_first or rest:
            left = BLOCK - self._at % BLOCK
            if left < PIECE.size:
                self._file.write(bytes(left))
                self._at += left
                continue
            piece, rest = rest[: left - PIECE.size], rest[left - PIECE.size :]
            kind = (WHOLE if is_first else LAST) if not rest else FIRST if is_first else MIDDLE
            self._file.write(PIECE.pack(zlib.crc32(piece, BEGUN[kind]), len(piece), kind) + piece)
            self._at, is_first = self._at + PIECE.size + len(piece), False


def _config(line: Mapping[str, Any]) -> list[Any]:
    """Settings, a table each, with seed and versions."""
    told = dict(line.get("settings") or {}) | {"seed": line.get("seed"), "versions": line.get("versions")}
    return [records.ConfigItem(key=str(name), value_json=_json(value)) for name, value in told.items()]


def _json(value: Any) -> str:
    return json.dumps(value)
