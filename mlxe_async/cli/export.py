"""`export RUN --to TARGET`: what a run told, in the files of other tools; once, or as long as it goes on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from mlxe_async.analysis import study
from mlxe_async.analysis.exporters import TARGETS, exporter_to
from mlxe_async.analysis.exporters.job import Job
from mlxe_async.analysis.past_runs import NAME
from mlxe_async.cli import export_policy
from mlxe_async.cli.arguments import RUN, Parser
from mlxe_async.errors import NotFound, RunFailed
from mlxe_async.logs.reader import log_of
from mlxe_async.storage.files import PLAIN_NAME
from mlxe_async.storage.run_folder import LOG
from mlxe_async.storage.safe_text import visible

ABOUT = """\
Write what a run told into the files of another tool: for TensorBoard, Weights & Biases (offline) and MLflow, values by
environment steps under the names that people know (charts/episodic_return, losses/value_loss, eval/episodic_return), at
the time of the log; or a CSV or Parquet file for each kind of line. An earlier export of the same run gives way. Of a
STUDY, as compare leaves it, each run whose folder was kept is written, under its settings' name and seed.

With --follow the files grow while the run does, until it ends. [logs] export = ["tensorboard"] in the settings does the
same from the start of a run, in its own folder.

Or write its saved policy, for programs without this one: as an ONNX file, which is compared with the policy before it
is kept; as a folder with a model card for the Hugging Face hub; or as a picture of the network."""


def run(arguments: Sequence[str]) -> int:
    """Write the files, and say how much that is. Returns the exit code."""
    parser = Parser(
        "export RUN|STUDY --to TARGET [PATH] [--dir FOLDER] [--out FOLDER] [--follow] "
        "[--checkpoint best|last|solved|N] [--trust NAME]",
        ABOUT,
        "export latest --to tensorboard --follow\nexport latest --to parquet --out tables\n"
        "export latest --to onnx policy.onnx --checkpoint best",
    )
    parser.add_argument("run", metavar="RUN|STUDY", help=f"{RUN}; or the folder of a study")
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
    base = asked.out or Path(asked.to)
    if study.is_study(Path(asked.run)):
        if asked.follow:
            parser.error("--follow: got a study, expected a run; a study's runs are written when they have ended")
        runs = _runs_of(Path(asked.run))
    else:
        runs = {asked.run: _name_of(log_of(asked.run))}
    for run, name in runs.items():
        folder = base if TARGETS[asked.to].shared else base / name
        job = Job(run, exporter_to(asked.to), folder)
        try:
            with contextlib.closing(job):
                if asked.follow:
                    uvloop.run(job.follow())
                else:
                    job.read()
        except KeyboardInterrupt:
            return 130
        if job.exporter is None:
            raise NotFound(f"{visible(run, 200)} is no run: expected a run folder, or a log with events")
        ending = f"; {job.ending()}" if job.ending() else ""
        sys.stdout.write(f"{visible(str(folder))}: {job.exporter.told()}{ending}\n")
    return 0


def _runs_of(folder: Path) -> dict[str, str]:
    """The run folders that a study has kept, and a name for each; not those that it made again since.

    Raises:
        NotFound: it has kept none.
        RunFailed: a file of it is damaged, or names what is no plain name.
    """
    outcomes = study.stored_outcomes(folder)
    odd = [one.name for one in outcomes if not PLAIN_NAME.fullmatch(one.name)]
    odd += [one.run for one in outcomes if one.run and not NAME.fullmatch(one.run)]
    if odd:  # it may be from elsewhere: names become paths
        raise RunFailed(
            f"{visible(str(folder), 200)}: got {visible(repr(odd[0]), 60)} for a run, expected a plain name"
        )
    named = {str(folder / study.RUNS / one.run): f"{one.name}-seed-{one.seed}" for one in outcomes if one.run}
    kept = {run: name for run, name in named.items() if (Path(run) / LOG).is_file()}
    if not kept:
        raise NotFound(
            f"{visible(str(folder), 200)} has kept none of its runs: expected a study without --no-keep-runs"
        )
    return kept


def _name_of(log: Path) -> str:
    """The run's name: that of its folder, or of a log that lies elsewhere under a name of its own."""
    return (log.parent.name if log.name == LOG else log.stem) or "run"
