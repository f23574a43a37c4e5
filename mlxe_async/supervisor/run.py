"""The life of one run: it is started up, runs its main loop, and is shut down, however far it came."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mlxe_async.errors import MlxeError, ResourceError, RunFailed, StoppedEarly, UnsupportedPlatform
from mlxe_async.ipc.linux import lack, refusal
from mlxe_async.ipc.nursery import Nursery
from mlxe_async.ipc.process import Process
from mlxe_async.ipc.segments import Segment, available_memory
from mlxe_async.ipc.weights import WeightsWriter
from mlxe_async.logs import events
from mlxe_async.logs.events import Event
from mlxe_async.logs.subscribers import Subscribers
from mlxe_async.rows import Array
from mlxe_async.settings import Settings
from mlxe_async.storage.files import write_new
from mlxe_async.storage.run_folder import RunFolder
from mlxe_async.storage.safe_text import redact
from mlxe_async.supervisor.checkpointing.resume_memory import fill
from mlxe_async.supervisor.checkpointing.resume_point import ResumePoint
from mlxe_async.supervisor.checkpointing.weights import Origin, published_weights, weights_to_begin_with
from mlxe_async.supervisor.ending import SIGNAL_EXITS, digest_of, tell_end
from mlxe_async.supervisor.main_loop import MainLoop
from mlxe_async.supervisor.measures import Measures
from mlxe_async.supervisor.monitoring.loop_lag import stacks
from mlxe_async.supervisor.recording.replay import Replay
from mlxe_async.supervisor.results import CheckReport, Result
from mlxe_async.supervisor.startup.blueprint import Blueprint
from mlxe_async.supervisor.startup.host_limits import reserve_descriptors
from mlxe_async.supervisor.startup.probe import probed, rehearsed
from mlxe_async.supervisor.startup.run_files import Opened
from mlxe_async.supervisor.team import Team
from mlxe_async.supervisor.waiting import first_of, let_go, to_the_end

STOP_GRACE_S = 1.0
START_GRACE_S = 1.0  # for a start that is under way when a stop is asked for
GRACE_AT_ONCE_S = 0.2


class Supervisor:
    """One run. `await Supervisor(settings).run()` in any running loop; cancelling it stops everything cleanly.

    It runs, or checks, once: another run takes another Supervisor.

    Args:
        settings: from `load_settings`.
        run_dir: folder to make the run's folder in, instead of `[run] dir`.
        resume: folder of a run to go on with, from its newest whole checkpoint that is fit; its log goes on too.
        replay: folder of a run that was recorded, to be done again alike; `settings` are its own.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        run_dir: str | os.PathLike[str] | None = None,
        resume: str | os.PathLike[str] | None = None,
        replay: str | os.PathLike[str] | None = None,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise UnsupportedPlatform("mlxe_async needs Linux (memfd, pidfd, prctl); this is " + sys.platform)
        self._base = Path(run_dir or settings.run.dir)
        self._replay = None if replay is None else Replay(Path(replay))
        self.settings = settings = settings if self._replay is None else self._replay.prepared(settings)
        self._resume = resume
        self._point: ResumePoint | None = None
        self._anew: ResumePoint | None = None
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
        self._facts: dict[str, Any] = {}
        self._cautions: list[str] = []
        self._segments: dict[str, Segment] = {}
        # A thread of our own, which ends with the run: the loop's is the embedding program's.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="mlxe-disk")
        self._blueprint: Blueprint
        # What there is so far: each needs those before it, and a run may end after any of them.
        self._folder: RunFolder | None = None
        self._opened: Opened | None = None
        self._team: Team | None = None
        self._main: MainLoop | None = None

    # -- for whoever embeds a run -----------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[dict[str, Any]], None], events: Collection[str] | None = None) -> None:
        """Have `callback` called with every line of the log, as a dict, from the loop's thread.

        Args:
            callback: called with each line; one that raises is not called again.
            events: names of the events that it is called for, which costs the run less; None: all.
        """
        self._subscribers.add(callback, events)

    def events(self) -> AsyncIterator[dict[str, Any]]:
        """Every line of the log from now on, as it is written: `async for event in supervisor.events()`.

        Ends with the run. Lines wait in memory until they are taken.
        """
        return self._subscribers.stream()

    def request_stop(self, reason: str = "requested") -> None:
        """Stop soon: finish what is under way, save, and return. Call it from the loop's thread."""
        budget = self._measures.budget
        if self._opened is not None and budget.reason is None:
            self._opened.story.emit(events.StopRequested(reason=reason))
        self._requested = reason
        budget.finish(reason, at_once=True)

    def progress(self) -> dict[str, Any]:
        """How far the run is: counters, rates, lag, recent returns and the share of each stop condition.

        Raises:
            RuntimeError: the run has not started yet, or is over.
        """
        if self._team is None:
            raise RuntimeError("Supervisor.progress(): expected a run that has started and is not over; await run()")
        return self._team.progress()

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
        report: list[CheckReport] = []
        try:
            reserve_descriptors(self.settings)
            await self._unless_stopped(self._check(report))
        except BaseExceptionGroup as error:
            raise first_of(error) from None
        finally:
            await to_the_end(self._shut_down(None))
        if not report:
            raise self._stopped_early()
        return report[0]

    async def _check(self, report: list[CheckReport]) -> None:
        past = None if self._resume is None else self._find(self._resume, writes=False)
        async with self._probed():
            settings, start = self.settings.with_algorithm(self._facts["algorithm"]), list[str]()
            if past is not None:
                past.judge(settings, self._facts)
                start += past.outlook(settings)
            if past is None or past.begins_anew(settings):
                origin = self._origin(past)
                start += [] if origin is None else [f"begins with   {origin}"]
            plan = Blueprint(self.settings, self._facts).byte_plan()
            plan.check(available_memory())
            await rehearsed(self.settings, self._processes[0])  # the probe's, the only one yet
            report.append(CheckReport(plan.lines(), self._facts, start))

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
        result: Result | None = await to_the_end(self._shut_down(failure))
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

    def run_sync(self) -> Result:
        """`run` for a program without a loop; see there.

        Raises:
            RuntimeError: a loop is running in this thread, as in a notebook; `run` is to be awaited there.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run())
        raise RuntimeError(
            "Supervisor.run_sync() was called inside a running loop, as a notebook has one, and would block it; "
            "write `result = await supervisor.run()` instead"
        )

    def dump_stacks(self, reason: str = "requested") -> Path | None:
        """Write what all threads and tasks are doing, and the status, to a file in the run folder, and tell the log.

        May be called from a signal handler. Returns the file, None before there is a run folder.
        """
        text = stacks()
        if self._folder is None or self._opened is None or not self._folder.is_there:
            return None
        self._dumps += 1
        status = "{}" if self._team is None else json.dumps(redact(self.progress()))
        try:
            path = self._folder.crash_path / f"supervisor.{os.getpid()}.{self._dumps}.stacks"
            write_new(path, f"{text}\nstatus: {status}\n".encode("utf-8", "backslashreplace"), durable=False)
            told: Path | None = path
        except OSError:
            told = None
        event = events.Stacks(reason=reason, path=str(told) if told else None, stacks=text)
        self._loop.call_soon_threadsafe(self._tell_late, event)
        return told

    def _tell_late(self, event: Event) -> None:
        if self._opened is not None:
            self._opened.story.emit(event)

    # -- start up ---------------------------------------------------------------------------------------------------

    async def _unless_stopped(self, start: Coroutine[Any, Any, None]) -> bool:
        """Await a start, but for a moment only once a stop is asked for; whether it came to its end."""
        budget = self._measures.budget
        starting = asyncio.ensure_future(start)
        stopped = asyncio.ensure_future(self._measures.bell.wait_until(lambda: budget.reason is not None))
        try:
            await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                await asyncio.wait([starting], timeout=START_GRACE_S)
            if starting.done():
                starting.result()
                return True
        finally:
            for task in (starting, stopped):
                task.cancel()
            await to_the_end(asyncio.wait([starting, stopped]))
        if not starting.cancelled():
            starting.result()  # what it raised instead
        return False

    def _stopped_early(self) -> StoppedEarly:
        reason = self._requested or "requested"
        return StoppedEarly(reason, SIGNAL_EXITS.get(reason, RunFailed.exit_code))

    async def _start(self) -> None:
        began = time.monotonic()
        reserve_descriptors(self.settings)
        try:
            self._disk.submit(int)  # it has its thread from now on
        except RuntimeError as error:
            raise ResourceError(f"the supervisor cannot start its thread for files: {refusal(error)}") from error
        if self._resume is not None:
            found = self._find(self._resume, writes=True)
            if found.begins_anew(self.settings):
                self._anew = found
            else:
                self._point = found
        async with self._probed():
            self._blueprint = blueprint = Blueprint(self.settings, self._facts)
            point = self._point
            if past := point or self._anew:
                past.judge(self.settings.with_algorithm(self._facts["algorithm"]), self._facts)
            origin = self._origin(self._anew) if point is None else None
            self._segments = blueprint.create_segments()
            if point is not None and point.whole is not None:
                with point.taking_up():
                    fill(point, self._segments, blueprint)
            if origin is not None:
                # The learner goes on from what is published, as it would after a restart.
                WeightsWriter(self._segments["weights"]).publish(origin.flat)
            opened = self._open(self.settings.with_algorithm(self._facts["algorithm"]), origin)
            opened.begin(blueprint.cores)
            opened.story.emit(
                events.ProbeOk(
                    seconds=time.monotonic() - began,
                    spaces=self._facts["spaces"],
                    parameters=blueprint.parameters,
                    plan_bytes=blueprint.byte_plan().total,
                    memory=self._facts["memory_kind"],
                ),
                "probe",
            )
            for note in (*self._facts["task"]["notes"], *self._cautions):
                opened.story.warn(note)
            if weakness := self._nursery.weakness:
                opened.story.warn(
                    f"{weakness}; what environments have started may be left behind when all processes of this run "
                    "are killed in one moment"
                )
            self._assemble(opened)
        async with asyncio.TaskGroup() as group:
            for process in self._processes:
                group.create_task(process.start())

    @contextlib.asynccontextmanager
    async def _probed(self) -> AsyncIterator[None]:
        async with probed(self._nursery, self.settings, self._processes) as found:
            self.settings, self._facts, self._cautions = found.settings, found.facts, found.cautions
            yield

    def _find(self, path: str | os.PathLike[str], *, writes: bool) -> ResumePoint:
        """What to go on from; its folder is held from now on."""
        found = ResumePoint.find(path, writes=writes)
        self._folder = found.folder
        found.refuse_another_algorithm(self.settings)
        return found

    def _origin(self, anew: ResumePoint | None) -> Origin | None:
        """The weights of another run to begin with, if any; those that a run which begins anew began with."""
        origin = weights_to_begin_with(self.settings, self._facts)
        if anew is not None:
            anew.refuse_other_weights(None if origin is None else origin.digest)
        return origin

    def _open(self, settings: Settings, origin: Origin | None) -> Opened:
        if self._folder is None:
            self._folder = RunFolder.create(self._base, settings.run.name)
        self._opened = Opened(
            self._folder, settings, self._facts, self._measures, self._subscribers, self._point, self._anew, origin
        )
        return self._opened

    def _assemble(self, opened: Opened) -> None:
        self._team = team = Team(
            self.settings,
            self._blueprint,
            self._segments,
            self._nursery,
            opened,
            self._measures,
            published=self._published,
            former_rows=self._point.former_rows if self._point else 0,
            disk=self._disk,
        )
        self._processes += team.staff.processes
        if self._point is not None:
            with self._point.taking_up():
                team.restore(self._point)

    # -- main loop ----------------------------------------------------------------------------------------------------

    async def _run_main_loop(self) -> None:
        opened, team, measures = self._opened, self._team, self._measures
        assert opened is not None and team is not None  # noqa: S101, PT018 - the run has started
        self._main = MainLoop(
            self.settings,
            team.staff,
            opened.story,
            measures.budget,
            measures.bell,
            keeper=team.keeper,
            point=self._point,
            resumption=opened.resumption,
            replay=self._replay,
            digest=lambda: digest_of(self._published()),
            flavour=self._blueprint.traits.flavour,
        )
        await self._main.run(self._processes, team.beside(drains=self._replay is None))
        if self._requested is not None or self._replay is not None:
            return
        if why := team.staff.learner.never_learned:
            raise RunFailed(why)
        if not measures.counters.updates:
            opened.story.warn(f"nothing was learned: no update was due within {measures.counters.env_steps} steps")

    def _published(self) -> tuple[int, Array] | None:
        return published_weights(self._segments["weights"], self._blueprint.parameters)

    def _nursery_exited(self, pid: int, sentence: str, expected: bool) -> None:
        if self._opened is not None:
            self._opened.story.emit(
                events.ProcExit(process="mlxe-nursery", pid=pid, epoch=0, expected=expected, sentence=sentence),
                "nursery",
            )

    # -- shut down ----------------------------------------------------------------------------------------------------

    def _last_weights(self) -> tuple[int, Array] | None:
        """Version and weights (P,) to end with, if there are any; where they are damaged the run still has its end."""
        if self._opened is None or not self._segments:
            return None
        try:
            return self._published()
        except MlxeError as error:
            self._opened.story.warn(f"the last weights cannot be saved: {error}")
            return None

    async def _shut_down(self, failure: BaseException | None) -> Result | None:
        self._disk.shutdown()
        self._measures.look_at_cpu()
        opened, team = self._opened, self._team
        flat = self._last_weights()
        if opened is not None and flat is not None and not (self._main and self._main.is_saved):
            opened.saver.save(*flat, solved_at=opened.solved.at)
        # Who cancels, as a second signal does, does not wait for an executor that hangs.
        grace_s = GRACE_AT_ONCE_S if isinstance(failure, asyncio.CancelledError) else STOP_GRACE_S
        self._nursery.wake()
        async with asyncio.TaskGroup() as group:
            for process in self._processes:
                group.create_task(process.stop(grace_s))
        await self._nursery.stop()
        result = None
        if opened is not None:
            if team is not None:
                try:
                    team.housekeeping.tell_ledger()
                except MlxeError as error:  # damaged shared memory has no account, but the run still has its end
                    opened.story.warn(str(error))
                opened.story.emit(opened.story.bottleneck(max(1, len(team.staff.executors))))
            replayed = self._main.replayed if self._main else None
            result = tell_end(opened, self._measures, team, flat, failure, requested=self._requested, replayed=replayed)
            opened.end()
        if self._folder is not None:
            self._folder.close()
        # Processes and their channels hold each other until the garbage collector comes by, and that may be long after.
        self._processes.clear()
        if team is not None:
            team.release()
        self._team = self._main = None
        for segment in self._segments.values():
            segment.close()
        return result
