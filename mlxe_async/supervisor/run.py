"""The supervisor of one run: starts it up, runs its main loop, and shuts it down, however far it came."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxe_async.elsewhere import RUNS, Answering
from mlxe_async.errors import RunFailed, StoppedEarly, UnsupportedPlatform
from mlxe_async.ipc.processes.linux import lack
from mlxe_async.ipc.processes.nursery import Nursery
from mlxe_async.ipc.processes.process import Process
from mlxe_async.logs import events
from mlxe_async.logs.events import Event
from mlxe_async.logs.journal import Columns, Subscriber
from mlxe_async.logs.subscribers import Subscribers
from mlxe_async.rows import Array
from mlxe_async.settings import Settings
from mlxe_async.settings.rules import refuse_contradictions
from mlxe_async.storage.safe_text import redact
from mlxe_async.supervisor.assembly import Assembly
from mlxe_async.supervisor.context import RunContext
from mlxe_async.supervisor.ending import SIGNAL_EXITS, last_weights, tell_accounts, tell_end, what_is_saved
from mlxe_async.supervisor.main_loop import MainLoop
from mlxe_async.supervisor.monitoring.exports import FINISH_S, Exports
from mlxe_async.supervisor.monitoring.loop_lag import stacks, write_stacks
from mlxe_async.supervisor.monitoring.periodic import Periodic
from mlxe_async.supervisor.plan.budget import Measures
from mlxe_async.supervisor.plan.results import CheckReport, Result
from mlxe_async.supervisor.recording.pushes import replay_of
from mlxe_async.supervisor.run_files import RunFiles
from mlxe_async.supervisor.startup.preloading import Handed
from mlxe_async.supervisor.startup.start import Startup
from mlxe_async.supervisor.waiting import at_the_end, first_of, is_in_loop, let_go, to_the_end, unless_stopped
from mlxe_async.supervisor.whole_checkpoints import WholeCheckpoints
from mlxe_async.tasks.given import Maker

STOP_GRACE_S = 1.0
START_GRACE_S = 1.0  # for a start that is under way when a stop is asked for
GRACE_AT_ONCE_S = 0.2


class Supervisor(Answering):
    """One run. `await Supervisor(settings).run()` in any running loop; cancelling it stops everything cleanly.

    It runs, or checks, once: another run takes another Supervisor.

    Args:
        settings: from `load_settings`.
        run_dir: folder to make the run's folder in, instead of `[run] dir`.
        resume: folder of a run to go on with, from its newest whole checkpoint that is fit; its log goes on too.
        replay: folder of a run that was recorded, to be done again alike; `settings` are its own.
        env: a gymnasium.Env class, or a function that makes one, in place of `[task] env`; see `tasks.given`.

    Raises:
        TaskError: `env` cannot be carried to other processes, or is missing where a run was begun with one.
        SettingsError: keys contradict each other, in settings that were made by hand, or a package that `[logs] export`
            needs is missing.
        UnsupportedPlatform: this is not Linux.
    """

    elsewhere = RUNS

    def __init__(
        self,
        settings: Settings,
        *,
        run_dir: str | os.PathLike[str] | None = None,
        resume: str | os.PathLike[str] | None = None,
        replay: str | os.PathLike[str] | None = None,
        env: Maker | None = None,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise UnsupportedPlatform("mlxe_async needs Linux (memfd, pidfd, prctl); this is " + sys.platform)
        refuse_contradictions(settings)
        self._replay = None if replay is None else replay_of(Path(replay))
        settings = settings if self._replay is None else self._replay.prepared(settings)
        self._handed = Handed(settings, env)
        settings = self._handed.settings
        self._dumps = 0
        self._requested: str | None = None
        self._used = ""
        self._loop: asyncio.AbstractEventLoop
        self._subscribers = Subscribers()
        self._nursery = Nursery(
            on_exited=self._nursery_exited,
            restart_limit=settings.supervision.restart_limit,
            restart_window_s=settings.supervision.restart_window_s,
        )
        self._processes: list[Process] = []
        self._measures = Measures(settings, self._processes, self._nursery)
        self._exports = Exports(settings, self._measures)
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="mlxe-disk")  # ends with the run
        self._startup = Startup(
            settings,
            base=Path(run_dir or settings.run.dir),
            resume=resume,
            replay=self._replay,
            nursery=self._nursery,
            processes=self._processes,
            measures=self._measures,
            subscribers=self._subscribers,
            disk=self._disk,
        )
        # Each needs those before it, and a run may end after any of them.
        self._run: RunContext | None = None
        self._parts: Assembly | None = None
        self._periodic: Periodic | None = None
        self._main: MainLoop | None = None

    @property
    def settings(self) -> Settings:
        """The run's settings; once it has started, with the defaults that only the probe knows."""
        return self._startup.settings

    def subscribe(
        self, callback: Subscriber, events: Collection[str] | None = None, columns: Columns | None = None
    ) -> None:
        """Have `callback` called with every line of the log, as a dict, from the loop's thread.

        Args:
            callback: called with each line; one that raises is not called again.
            events: names of the events that it is called for, which costs the run less; None: all.
            columns: called instead for many lines at once, with what they share and columns of what they do not.
        """
        self._subscribers.add(callback, events, columns)

    def add_processor(self, processor: Callable[[Any, str, Any], Any]) -> None:
        """Have one of structlog's processors called with each line of the log before it is written."""
        self._subscribers.process(processor)

    def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield every line of the log from now on: `async for event in supervisor.events()`.

        Ends with the run. Lines wait in memory until they are taken.
        """
        return self._subscribers.stream()

    def request_stop(self, reason: str = "requested") -> None:
        """Stop soon: finish what is under way, save, and return. Call it from the loop's thread."""
        budget = self._measures.budget
        if budget.reason is None:
            self._tell(events.StopRequested(reason=reason))
        self._requested = reason
        budget.finish(reason, at_once=True)

    def progress(self) -> dict[str, Any]:
        """Return how far the run is: counters, rates, lag, recent returns and the share of each stop condition.

        Raises:
            RuntimeError: the run has not started yet, or is over.
        """
        if self._periodic is None:
            raise RuntimeError("Supervisor.progress(): expected a run that has started and is not over; await run()")
        return self._periodic.progress()

    async def check(self) -> CheckReport:
        """Probe the task, do one update on made-up rows, compute the memory plan; no run is begun, no folder made.

        Raises:
            SettingsError: `[algorithm]` is not acceptable, or its update goes wrong.
            TaskError: the environment is not.
            Hung: a call into it, or into the algorithm, did not return within its limit.
            ResourceError: the plan, or what is to be opened, does not fit.
            StoppedEarly: `request_stop` was called meanwhile.
            RunFailed: the run that is to be gone on with has no fit checkpoint.
            RunFolderBusy: another process holds its folder.
            RuntimeError: this object has run or checked before.
        """
        self._use("check")
        report: CheckReport | None = None

        async def check() -> None:
            nonlocal report
            report = await self._startup.check()

        try:
            await self._unless_stopped(check())
        except BaseExceptionGroup as error:
            raise first_of(error) from None
        finally:
            await to_the_end(self._shut_down(None))
        if report is None:
            raise self._stopped_early()
        return report

    async def run(self) -> Result:
        """Run until a stop condition is met.

        Raises:
            MlxeError: what went wrong, with the exit code it leads to; everything is cleaned up before. `StoppedEarly`
                where a stop was requested before there was anything to stop.
            asyncio.CancelledError: the task was cancelled; everything is cleaned up before.
            RuntimeError: this object has run or checked before, or still does.
        """
        self._use("run")
        failure: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        try:
            if await self._unless_stopped(self._start()):
                await self._run_main_loop()
        except BaseException as error:  # noqa: BLE001 - told to the log, then raised again below
            failure = first_of(error)
            if lacking := lack(failure):
                lacking.__cause__ = failure
                failure = lacking
        result: Result | None = await at_the_end(self._shut_down(failure))
        self._subscribers.end()
        if failure is not None:
            let_go(failure)
            raise failure
        if result is None:
            raise self._stopped_early()
        return result

    def _use(self, verb: str) -> None:
        """Once only: processes, memory and threads are made for one run and given back with it."""
        if self._used:
            raise RuntimeError(
                f"Supervisor.{verb}(): expected a Supervisor that was not used yet, got one whose {self._used}() was "
                "called; make another one: Supervisor(settings)"
            )
        self._used = verb
        self._handed.hand_to(self._nursery)

    def run_sync(self) -> Result:
        """`run` for a program without a loop, in one of uvloop; see there.

        Raises:
            RuntimeError: a loop is running in this thread, as in a notebook; `run` is to be awaited there.
        """
        if is_in_loop():
            raise RuntimeError(
                "Supervisor.run_sync() was called inside a running loop, as a notebook has one, and would block it; "
                "write `result = await supervisor.run()` instead"
            )
        import uvloop  # a caller that brings its own loop does not need it

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(self.run())

    def dump_stacks(self, reason: str = "requested") -> Path | None:
        """Write what all threads and tasks are doing, and the status, to a file in the run folder, and tell the log.

        May be called from a signal handler. Returns the file, None before there is a run folder.
        """
        text, folder = stacks(), self._startup.folder
        if folder is None or self._startup.files is None or not folder.is_there:
            return None
        self._dumps += 1
        status = "{}" if self._periodic is None else json.dumps(redact(self.progress()))
        told = write_stacks(folder, self._dumps, text, status)
        event = events.Stacks(reason=reason, path=str(told) if told else None, stacks=text)
        self._loop.call_soon_threadsafe(self._tell, event)
        return told

    def _tell(self, event: Event, role: str = "supervisor") -> None:
        """Tell the log, if there is one yet."""
        if self._startup.files is not None:
            self._startup.files.log.emit(event, role)

    # -- start up, main loop, shut down -------------------------------------------------------------------------------

    async def _unless_stopped(self, start: Coroutine[Any, Any, None]) -> bool:
        """Await a start, but for a moment only once a stop is asked for; whether it came to its end."""
        budget = self._measures.budget
        stop = self._measures.bell.wait_until(lambda: budget.reason is not None)
        return await unless_stopped(start, stop, START_GRACE_S)

    def _stopped_early(self) -> StoppedEarly:
        reason = self._requested or "requested"
        return StoppedEarly(reason, SIGNAL_EXITS.get(reason, RunFailed.exit_code))

    async def _start(self) -> None:
        async with self._startup.begun() as run:
            self._run, self._parts = run, Assembly(run)
            self._periodic = Periodic(run, self._parts)
            self._processes += self._parts.processes
            if run.point is not None:
                with run.point.taking_up():
                    self._parts.restore()
        async with asyncio.TaskGroup() as group:
            for process in self._processes:
                group.create_task(process.start())
        self._exports.start(run.folder.path, run.log)

    async def _run_main_loop(self) -> None:
        run, parts, periodic = self._run, self._parts, self._periodic
        assert run is not None and parts is not None and periodic is not None  # noqa: S101, PT018 - it has started
        self._main = MainLoop(run, parts, WholeCheckpoints(run, parts))
        await self._main.run(self._processes, periodic.tasks())
        if self._requested or run.replay is not None:
            return
        if why := parts.learner.never_learned:
            raise RunFailed(why)
        if not run.counters.updates:
            run.log.warn(f"nothing was learned: no update was due within {run.counters.env_steps} steps")

    def _nursery_exited(self, pid: int, sentence: str, expected: bool) -> None:
        self._tell(events.ProcExit("mlxe-nursery", pid, epoch=0, expected=expected, sentence=sentence), "nursery")

    async def _shut_down(self, failure: BaseException | None) -> Result | None:
        self._disk.shutdown()
        self._measures.look_at_cpu()
        files, parts, main = self._startup.files, self._parts, self._main
        flat = last_weights(self._startup)
        if files is not None and flat is not None and not (main and main.is_saved):
            files.saver.save(*flat, solved_at=files.solved.at)
            if main and main.not_whole and files.folder.is_there:
                files.log.warn(what_is_saved(main.not_whole, files.saver.unsaved))
        # Who cancels, as a second signal does, does not wait for an executor that hangs.
        grace_s = GRACE_AT_ONCE_S if isinstance(failure, asyncio.CancelledError) else STOP_GRACE_S
        self._nursery.wake()
        async with asyncio.TaskGroup() as group:
            for process in self._processes:
                group.create_task(process.stop(grace_s))
        await self._nursery.stop()
        result = None if files is None else self._tell_end(files, flat, failure)
        unexported = await self._exports.finish(FINISH_S if grace_s == STOP_GRACE_S else GRACE_AT_ONCE_S)
        self._processes.clear()
        if parts is not None:
            parts.close()
        self._run = self._parts = self._periodic = self._main = None
        self._startup.close()
        self._handed.close()
        return result and replace(result, unexported=unexported)

    def _tell_end(self, files: RunFiles, flat: tuple[int, Array] | None, failure: BaseException | None) -> Result:
        parts, periodic = self._parts, self._periodic
        if parts and periodic:
            tell_accounts(periodic, files)
        result = tell_end(
            files,
            self._measures,
            periodic,
            flat,
            failure,
            busy=parts is None or parts.learner.busy,
            requested=self._requested,
            replayed=self._main.replayed if self._main else None,
        )
        files.end()
        return result
