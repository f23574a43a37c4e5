"""A file store of MLflow: a run with its metrics by environment steps, its settings as parameters, and how it ended.

The store is a folder of plain files, the layout that MLflow's own `FileStore` reads: no package is needed to write it.
Experiments are environments. Metrics keep their names, `charts/episodic_return`; what MLflow does not take in a name
becomes `_`, and further slashes become points.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxe_async.analysis.exporters.scalars import Scalars, entries_of, time_of
from mlxe_async.storage.files import make_folder, replace_file, write_new
from mlxe_async.storage.safe_text import visible

RUNNING, FINISHED, FAILED, KILLED = 1, 3, 4, 5
LONGEST_NAME, LONGEST_VALUE = 200, 6000
WAITING_VALUES = 50_000
STOPPED = (129, 130, 143)


class Files:
    """A run in a file store; see `Exporter`."""

    forgets = False

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._store, self._place = folder, folder
        self._about: dict[str, Any] = {}
        self._scalars = Scalars()
        self._waiting: dict[str, list[str]] = {}
        self._values = self._held = 0
        self._told: dict[str, str] = {}
        self._last, self._is_closed = 0, False

    def feed(self, line: Mapping[str, Any]) -> None:
        """Take in the next line."""
        self._last = round(time_of(line) * 1000)
        if not self._about:
            self._begin(line)
        event = line["event"]
        if event == "run_start":
            self._tell("tags", {f"mlxe.{key}": line.get(key) for key in ("env", "algorithm", "schedule", "seed")})
            self._tell("params", dict(entries_of(line.get("settings") or {})))
        if event == "run_end":
            code = line.get("exit_code")
            status = FINISHED if code == 0 else KILLED if code in STOPPED else FAILED
            self._about |= {"status": status, "end_time": self._last}
            self._tell("tags", {"mlxe.ending": line.get("reason")})
        elif self._about["end_time"] is not None:  # the run was resumed
            self._about |= {"status": RUNNING, "end_time": None}
        for point in self._scalars.feed(line):
            told = f"{round(point.time * 1000)} {point.value!r} {point.step}\n"
            self._waiting.setdefault(_metric(point.name), []).append(told)
            self._held += 1
        if self._held >= WAITING_VALUES:
            self.flush()

    def flush(self) -> None:
        """Let readers see all that was fed so far."""
        for name, told in self._waiting.items():
            path = self._place / "metrics" / name
            make_folder(path.parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            with os.fdopen(os.open(path, flags, 0o600), "w") as file:
                file.write("".join(told))
        self._values, self._held = self._values + self._held, 0
        self._waiting.clear()

    def close(self, died: str = "") -> None:
        """Write what is left, and how the run ended, if it did."""
        if self._is_closed or not self._about:
            return
        self.flush()
        self._is_closed = True
        if died:
            self._about |= {"status": KILLED, "end_time": self._last}
            self._tell("tags", {"mlxe.ending": died})
        replace_file(self._place / "meta.yaml", _yaml(self._about), durable=False)

    def told(self) -> str:
        """Return how much was written, and how it is looked at."""
        store = shlex.quote(visible(str(self._store)))
        return f"{self._values:,} values; MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {store}"

    def _begin(self, line: Mapping[str, Any]) -> None:
        name = visible(str(line["run"]), LONGEST_NAME)
        env = visible(str(line.get("env", "runs")), LONGEST_NAME)
        experiment = str(int(hashlib.sha256(env.encode()).hexdigest(), 16))[:18]
        number = hashlib.sha256(name.encode()).hexdigest()[:32]
        for earlier in self._store.glob(f"*/{number}"):
            shutil.rmtree(earlier)
        place = self._store / experiment
        self._place = place / number
        for folder in (place, *(self._place / part for part in ("metrics", "params", "tags", "artifacts"))):
            make_folder(folder)
        if not (place / "meta.yaml").exists():
            about = {
                "artifact_location": place.absolute().as_uri(),
                "creation_time": self._last,
                "experiment_id": experiment,
                "last_update_time": self._last,
                "lifecycle_stage": "active",
                "name": env,
            }
            write_new(place / "meta.yaml", _yaml(about), durable=False)
        self._about = {
            "artifact_uri": (self._place / "artifacts").absolute().as_uri(),
            "end_time": None,
            "entry_point_name": "",
            "experiment_id": experiment,
            "lifecycle_stage": "active",
            "run_id": number,
            "run_name": name,
            "run_uuid": number,
            "source_name": "mlxe_async",
            "source_type": 4,
            "source_version": "",
            "start_time": self._last,
            "status": RUNNING,
            "tags": [],
            "user_id": "",
        }
        write_new(self._place / "meta.yaml", _yaml(self._about), durable=False)
        self._tell("tags", {"mlflow.runName": name})

    def _tell(self, part: str, values: Mapping[str, Any]) -> None:
        """Write texts, a file for each, where they are others than before."""
        for key, value in values.items():
            name = re.sub(r"[^\w. -]", "_", key, flags=re.ASCII)[:LONGEST_NAME].strip(".") or "_"
            text = visible(value if isinstance(value, str) else json.dumps(value), LONGEST_VALUE - 1)
            if self._told.get(f"{part}/{name}") != text:
                self._told[f"{part}/{name}"] = text
                data = text.encode("utf-8", "backslashreplace")
                replace_file(self._place / part / name, data, durable=False)


def _metric(name: str) -> str:
    """The path of a metric's file: one folder, one name."""
    group, _, rest = name.partition("/")
    rest = re.sub(r"[^\w. -]", "_", rest.replace("/", "."), flags=re.ASCII)
    return f"{group}/{rest[:LONGEST_NAME].strip('.') or '_'}"


def _yaml(values: Mapping[str, Any]) -> bytes:
    """The values as YAML, of which JSON is a part."""
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items()).encode()
