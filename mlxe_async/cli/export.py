"""`export RUN --to TARGET`: what a run told, in the files of other tools; once, or as long as it goes on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from mlxe_async.analysis.exporters import TARGETS, exporter_to
from mlxe_async.analysis.exporters.job import Job
from mlxe_async.cli import export_policy
from mlxe_async.cli.arguments import RUN, Parser
from mlxe_async.errors import NotFound
from mlxe_async.logs.reader import log_of
from mlxe_async.storage.run_folder import LOG
from mlxe_async.storage.safe_text import visible

ABOUT = """\
Write what a run told into the files of another tool: for TensorBoard, Weights & Biases (offline) and MLflow, values by
environment steps under the names that people know (charts/episodic_return, losses/value_loss, eval/episodic_return), at
the time of the log; or a CSV or Parquet file for each kind of line. An earlier export of the same run gives way.

With --follow the files grow while the run does, until it ends. [logs] export = ["tensorboard"] in the settings does the
same from the start of a run, in its own folder.

Or write its saved policy, for programs without this one: as an ONNX file, which is compared with the policy before it
is kept; as a folder with a model card for the Hugging Face hub; or as a picture of the network."""


def run(arguments: Sequence[str]) -> int:
    """Write the files, and say how much that is. Returns the exit code."""
    parser = Parser(
        "export RUN --to TARGET [PATH] [--dir FOLDER] [--out FOLDER] [--follow] "
        "[--checkpoint best|last|solved|N] [--trust NAME]",
        ABOUT,
        "export latest --to tensorboard --follow\nexport latest --to parquet --out tables\n"
        "export latest --to onnx policy.onnx --checkpoint best",
    )
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_dir()
    abouts = {name: target.about for name, target in TARGETS.items()} | export_policy.TARGETS
    about = "; ".join(f"{name}: {one}" for name, one in abouts.items())
    parser.add_argument("--to", choices=[*TARGETS, *export_policy.TARGETS], required=True, metavar="TARGET", help=about)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where; the target's name when left out")
    export_policy.add_arguments(parser)
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")
    asked = parser.parse_args(arguments)
    if asked.to in export_policy.TARGETS:
        return export_policy.run(asked)
    export_policy.refuse_arguments(asked)
    path, base = log_of(asked.run), asked.out or Path(asked.to)
    folder = base if TARGETS[asked.to].shared else base / _name_of(path)
    job = Job(asked.run, exporter_to(asked.to), folder)
    try:
        with contextlib.closing(job):
            if asked.follow:
                uvloop.run(job.follow())
            else:
                job.read()
    except KeyboardInterrupt:
        return 130
    if job.exporter is None:
        raise NotFound(f"{visible(asked.run, 200)} is no run: expected a run folder, or a log with events")
    ending = f"; {job.ending()}" if job.ending() else ""
    sys.stdout.write(f"{visible(str(folder))}: {job.exporter.told()}{ending}\n")
    return 0


def _name_of(log: Path) -> str:
    """The run's name: that of its folder, or of a log that lies elsewhere under a name of its own."""
    return (log.parent.name if log.name == LOG else log.stem) or "run"
