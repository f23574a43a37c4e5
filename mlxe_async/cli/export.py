"""`export RUN --to TARGET`: what a run told, in the files of other tools; once, or as long as it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

from mlxe_async.analysis.endings import ending_of, said_of
from mlxe_async.analysis.exporters import TARGETS, Exporter, exporter_to
from mlxe_async.cli import export_policy
from mlxe_async.cli.arguments import RUN, Parser
from mlxe_async.errors import NotFound, ResourceError, RunFailed
from mlxe_async.logs.reader import follow, log_of, read_log
from mlxe_async.storage.run_folder import LOG, is_held
from mlxe_async.storage.safe_text import visible

FLUSH_S = 0.5
ABOUT = """\
Write what a run told into the files of another tool, in a folder of the run's name: for TensorBoard, values by
environment steps under the names that people know (charts/episodic_return, losses/value_loss, eval/episodic_return), at
the time of the log; or a CSV file for each kind of line. What an earlier export left there gives way.

With --follow the files grow while the run does, until it ends.

Or write its saved policy, for programs without this one: as an ONNX file, which is compared with the policy before it
is kept; as a folder with a model card for the Hugging Face hub; or as a picture of the network."""


def run(arguments: Sequence[str]) -> int:
    """Write the files, and say how much that is. Returns the exit code."""
    parser = Parser(
        "export RUN --to TARGET [PATH] [--out FOLDER] [--follow] [--checkpoint best|last|solved|N] [--trust NAME]",
        ABOUT,
        "export latest --to tensorboard --follow\nexport latest --to csv --out tables\n"
        "export latest --to onnx policy.onnx --checkpoint best",
    )
    parser.add_argument("run", metavar="RUN", help=RUN)
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
    path = log_of(asked.run)
    folder = (asked.out or Path(asked.to)) / _name_of(path)
    job = _Job(asked.run, exporter_to(asked.to), folder)
    try:
        with _told(visible(str(folder), 200), visible(asked.run, 200)), contextlib.closing(job):
            code = job.follow() if asked.follow else job.read()
    except KeyboardInterrupt:
        return 130
    if job.exporter is None:
        raise NotFound(f"{visible(asked.run, 200)} is no run: expected a run folder, or a log with events")
    sys.stdout.write(f"{visible(str(folder))}: {job.exporter.told()}{job.ending()}\n")
    return code


class _Job:
    """Brings the lines of a run to an exporter, which is made with the first of them."""

    def __init__(self, run: str, make: Callable[[Path], Exporter], folder: Path) -> None:
        self._run, self._make, self._folder = run, make, folder
        self._held: bool | None = None
        self._has_end, self._last = False, ""
        self.exporter: Exporter | None = None

    def read(self) -> int:
        """Take in all lines so far. Returns the exit code."""
        self._held = is_held(log_of(self._run).parent)  # before: what a run wrote before it died is still told
        for line in read_log(self._run):
            self._feed(line)
        return 0

    def follow(self) -> int:
        """Take in all lines until the run ends. Returns the exit code."""
        uvloop.run(self._follow())
        self._held = is_held(log_of(self._run).parent)
        return 0

    def close(self) -> None:
        """Write what is left."""
        if self.exporter is not None:
            self.exporter.close()

    def ending(self) -> str:
        """Say how a run ended that has no last word, and when that was."""
        said = said_of(ending_of(has_end=self._has_end, is_held=self._held))
        return f"; {said}, its last line is of {self._last}" if said else ""

    async def _follow(self) -> None:
        flushing = asyncio.create_task(self._flush_again_and_again())
        try:
            async for line in follow(self._run):
                if flushing.done():
                    await flushing
                self._feed(line)
        finally:
            flushing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await flushing

    async def _flush_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            if self.exporter is not None:
                self.exporter.flush()

    def _feed(self, line: Mapping[str, Any]) -> None:
        if self.exporter is None:
            self.exporter = self._make(self._folder)
        self.exporter.feed(line)
        self._has_end = line["event"] == "run_end" or (self._has_end and line["event"] != "run_start")
        self._last = visible(str(line["ts"]), 60)


def _name_of(log: Path) -> str:
    """The run's name: that of its folder, or of a log that lies elsewhere under a name of its own."""
    return (log.parent.name if log.name == LOG else log.stem) or "run"


@contextlib.contextmanager
def _told(folder: str, run: str) -> Iterator[None]:
    """Have what goes wrong told in a line."""
    try:
        yield
    except OSError as error:
        raise ResourceError(f"{folder} cannot be written to: {error.strerror or error}") from error
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise RunFailed(f"{run}: expected a log of this program, a line of it cannot be used: {error!r}") from error
