"""An export while the run goes on, by a companion process: what `[logs] export` asks for."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import uvloop

from mlxe_async.analysis.exporters import exporter_to
from mlxe_async.analysis.exporters.job import Job


def export(spec: Mapping[str, str], _beside: object) -> None:
    """Follow a run until it ends, or is dead: that ends the process, too.

    Args:
        spec: `folder`, of the run, and `target`, whose name is that of a folder inside.

    Raises:
        ResourceError: the files cannot be written.
        RunFailed: the log is none of this program's.
    """
    job = Job(spec["folder"], exporter_to(spec["target"]), Path(spec["folder"], spec["target"]))
    with contextlib.closing(job):
        uvloop.run(job.follow())
