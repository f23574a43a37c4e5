"""A run that is interrupted, and gone on with: a command that is killed, then a supervisor in this process."""

import random
import signal

from command import Command
from live_runs import LiveRun, on_loop, settings

from mlxe_async.settings import dump_settings
from mlxe_async.supervisor import Supervisor

SAVING = {"checkpoint": {"interval_s": 0.0, "interval_steps": 150, "keep": 3}}


def run_here(chosen, folder=None, resume=None):
    """(result, lines) of a run in this process."""

    async def main():
        run = LiveRun(chosen, folder)
        if resume is not None:
            run.supervisor = Supervisor(chosen, resume=resume)
            run.supervisor.subscribe(run._hear)
        return await run.supervisor.run(), run

    return on_loop(main)


def interrupted(folder, chosen, *, signal_number=signal.SIGKILL, chance=0, events=25):
    """The folder of a run that got a signal at some moment after its first whole checkpoint."""
    folder.mkdir(exist_ok=True)
    run = Command(folder, dump_settings(chosen), "--no-progress")
    try:
        run.saw("checkpoint")
        seen = len(run.lines())
        wanted = seen + random.Random(chance).randrange(events)  # noqa: S311 - chooses a moment, guards no secret
        for line in run.lines()[seen:wanted]:
            assert line
        while len(run.lines()) < wanted and run.process.poll() is None:
            pass
        run.signal(signal_number)
        run.process.wait(30)
        return (run.runs / "latest").resolve()
    finally:
        run.close()


def whole_numbers(run):
    return [line["number"] for line in run.all("checkpoint") if line["whole"]]


__all__ = ["SAVING", "interrupted", "run_here", "settings", "whole_numbers"]
