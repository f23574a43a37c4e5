"""The life of one run: start up, main loop, shut down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mlxe_async.errors import MlxeError, ResourceError, RunFailed, UnsupportedPlatform
from mlxe_async.files import write_new
from mlxe_async.ipc.nursery import Nursery
from mlxe_async.ipc.process import Process
from mlxe_async.ipc.segments import Segment, available_memory
from mlxe_async.ipc.weights import WeightsWriter
from mlxe_async.ipc.words import ProgressPage
from mlxe_async.logs import events
from mlxe_async.logs.events import Event
from mlxe_async.logs.journal import Journal
from mlxe_async.logs.safe import redact
from mlxe_async.rows import Array
from mlxe_async.run_folder import RECORDING, RunFolder
from mlxe_async.settings import Settings, dump_settings
from mlxe_async.supervisor.accounts import memory_of, progress_of
from mlxe_async.supervisor.blueprint import Blueprint
from mlxe_async.supervisor.budget import Bell, Budget, Counters
from mlxe_async.supervisor.cpu import CpuClock
from mlxe_async.supervisor.crashes import Crashes
from mlxe_async.supervisor.descriptors import reserve_descriptors
from mlxe_async.supervisor.ending import digest_of, end_recording, trace_of, verdict
from mlxe_async.supervisor.handles.crew import Crew
from mlxe_async.supervisor.host import host, versions
from mlxe_async.supervisor.housekeeping import Housekeeping
from mlxe_async.supervisor.keeping import Keeper
from mlxe_async.supervisor.listening import Listener
from mlxe_async.supervisor.main_loop import MainLoop
from mlxe_async.supervisor.opening import Resumption, tell_start
from mlxe_async.supervisor.probing import probed
from mlxe_async.supervisor.recording import NoRecorder, Recorder, Recording
from mlxe_async.supervisor.replaying import Replay, facts_of
from mlxe_async.supervisor.results import CheckReport, Result
from mlxe_async.supervisor.resuming import ResumePoint
from mlxe_async.supervisor.saving import Saver, published_weights, weights_to_begin_with
from mlxe_async.supervisor.staff import Staff
from mlxe_async.supervisor.story import Story
from mlxe_async.supervisor.stragglers import Stragglers
from mlxe_async.supervisor.waiting import first_of, to_the_end
from mlxe_async.supervisor.watching import stacks, starved, watch_lag

STOP_GRACE_S = 1.0
CPU_LOOK_S = 0.1


class Supervisor:
    """One run. `await Supervisor(settings).run()` in any running loop; cancelling it stops everything cleanly.

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
        self._recorder: Recorder = NoRecorder()
        self._resume = resume
        self._point: ResumePoint | None = None
        self._resumption: Resumption | None = None
        self._began = time.monotonic()
        self._dumps = 0
        self._requested: str | None = None
        self._loop: asyncio.AbstractEventLoop
        self._subscribers: list[tuple[Callable[[dict[str, Any]], None], Collection[str] | None]] = []
        self._queues: list[asyncio.Queue[dict[str, Any] | None]] = []
        self._nursery = Nursery(
            on_exited=self._nursery_exited,
            restart_limit=settings.supervision.restart_limit,
            restart_window_s=settings.supervision.restart_window_s,
        )
        self._cpu = CpuClock()
        self._counters = Counters()
        self._bell = Bell()
        self._budget = Budget(settings.stop.model_dump(), self._counters, self._bell)
        self._facts: dict[str, Any] = {}
        self._cautions: list[str] = []
        self._segments: dict[str, Segment] = {}
        self._processes: list[Process] = []
        self._solved_at: dict[str, Any] | None = None
        self._drain = asyncio.Event()
        self._folder: RunFolder | None = None
        self._journal: Journal | None = None
        self._gap_ns = 0  # of all resumptions so far
        # A thread of our own, which ends with the run: the loop's is the embedding program's.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="mlxe-disk")
        self._story: Story
        self._saver: Saver
        self._keeper: Keeper
        self._blueprint: Blueprint
        self._staff: Staff
        self._beside: Housekeeping
        self._main: MainLoop | None = None

    # -- for whoever embeds a run -----------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[dict[str, Any]], None], events: Collection[str] | None = None) -> None:
        """Have `callback` called with every line of the log, as a dict, from the loop's thread.

        Args:
            callback: called with each line; one that raises is not called again.
            events: names of the events that it is called for, which costs the run less; None: all.
        """
        self._subscribers.append((callback, events))
        if self._journal is not None:
            self._journal.subscribe(callback, events)

    def events(self) -> AsyncIterator[dict[str, Any]]:
        """Every line of the log from now on, as it is written: `async for event in supervisor.events()`.

        Ends with the run. Lines wait in memory until they are taken.
        """
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.subscribe(queue.put_nowait)
        self._queues.append(queue)

        async def lines() -> AsyncIterator[dict[str, Any]]:
            while (line := await queue.get()) is not None:
                yield line

        return lines()

    def request_stop(self, reason: str = "requested") -> None:
        """Stop soon: finish what is under way, save, and return. Call it from the loop's thread."""
        if self._journal is not None and self._budget.reason is None:
            self._story.emit(events.StopRequested(reason=reason))
        self._requested = reason
        self._budget.finish(reason, at_once=True)

    def progress(self) -> dict[str, Any]:
        """How far the run is: counters, rates, lag, recent returns and the share of each stop condition."""
        self._counters.episodes_started = self._staff.episodes_started()
        return progress_of(self._counters, self._budget, self._story, self._staff.memorizer, self._cpu.by_name())

    async def check(self) -> CheckReport:
        """Probe the task and compute the memory plan; nothing is started and no folder is made.

        Raises:
            SettingsError: `[algorithm]` is not acceptable.
            TaskError: the environment is not.
            ResourceError: the plan does not fit.
        """
        try:
            async with self._probed():
                plan = Blueprint(self.settings, self._facts).byte_plan()
                plan.check(available_memory())
                return CheckReport(plan.lines(), self._facts)
        except BaseExceptionGroup as error:
            raise first_of(error) from None
        finally:
            await to_the_end(self._shut_down(None))

    async def run(self) -> Result:
        """Run until a stop condition is met.

        Raises:
            MlxeError: what went wrong, with the exit code it leads to; everything is cleaned up before.
            asyncio.CancelledError: the task was cancelled; everything is cleaned up before.
        """
        failure: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        try:
            await self._start()
            await self._run_main_loop()
        except BaseException as error:  # noqa: BLE001 - told to the log, then raised again below
            failure = first_of(error)
        result: Result | None = await to_the_end(self._shut_down(failure))
        for queue in self._queues:
            queue.put_nowait(None)
        if failure is not None:
            raise failure
        assert result is not None  # noqa: S101 - without a failure there is a folder and so a result
        return result

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
        if self._folder is None or self._journal is None or not self._folder.is_there:
            return None
        self._dumps += 1
        status = json.dumps(redact(self.progress())) if hasattr(self, "_staff") else "{}"
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
        if self._journal is not None:
            self._story.emit(event)

    # -- start up ---------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        began = time.monotonic()
        reserve_descriptors(self.settings)
        if self._resume is not None:
            self._point = ResumePoint.find(self._resume)
            self._folder = self._point.folder
        async with self._probed():
            self._blueprint = blueprint = Blueprint(self.settings, self._facts)
            point, first = self._point, None
            if point is None:
                first = weights_to_begin_with(self.settings, self._facts)
            else:
                point.judge(self.settings.with_algorithm(self._facts["algorithm"]), self._facts)
            self._segments = blueprint.create_segments()
            if point is not None and point.whole is not None:
                point.fill(self._segments, blueprint)
            if first is not None:
                # The learner goes on from what is published, as it would after a restart.
                WeightsWriter(self._segments["weights"]).publish(first)
            self._open_folder(blueprint)
            self._story.emit(
                events.ProbeOk(
                    seconds=time.monotonic() - began,
                    spaces=self._facts["spaces"],
                    parameters=blueprint.parameters,
                    plan_bytes=blueprint.byte_plan().total,
                ),
                "probe",
            )
            for note in (*self._facts["task"]["notes"], *self._cautions):
                self._story.warn(note)
            self._make_staff(blueprint)
        async with asyncio.TaskGroup() as group:
            for process in self._processes:
                group.create_task(process.start())

    @contextlib.asynccontextmanager
    async def _probed(self) -> AsyncIterator[None]:
        async with probed(self._nursery, self.settings, self._processes) as found:
            self.settings, self._facts, self._cautions = found.settings, found.facts, found.cautions
            yield

    def _open_folder(self, blueprint: Blueprint) -> None:
        # Written back with the algorithm's defaults, which only the probe knows.
        settings, point = self.settings.with_algorithm(self._facts["algorithm"]), self._point
        folder = RunFolder.create(self._base, settings.run.name) if point is None else point.folder
        self._folder = folder
        try:
            self._journal = Journal(folder.log_path, folder.name, first_seq=point.log.next_seq if point else 0)
        except OSError as error:
            raise ResourceError(f"{folder.log_path} cannot be written: {error.strerror}") from error
        for subscriber, wanted in self._subscribers:
            self._journal.subscribe(subscriber, wanted)
        self._story = Story(self._journal, self._counters, self._budget)
        self._saver = Saver(settings, self._facts, folder, self._story, self._counters)
        for number, cause in point.rejected if point else ():
            self._story.emit(events.CheckpointRejected(number=number, cause=cause))
        if point is not None and point.whole is None:
            raise RunFailed(point.cause)
        folder.write_settings(dump_settings(settings, hide_secrets=True))
        about, machine = versions(), host(blueprint.cores)
        folder.write_run_json(
            {"name": folder.name, "seed": settings.run.seed, "versions": about, "host": machine, "facts": self._facts}
        )
        tell_start(self._story, settings, about, machine, resumed=point is not None)
        if point is not None:
            self._take_up(point)
        if settings.run.record:
            self._record(folder)

    def _record(self, folder: RunFolder) -> None:
        if self._point is None:
            self._recorder = Recording(folder.path / RECORDING, facts_of(self.settings))
        else:
            self._story.warn("run.record: what a run does after it was resumed is not recorded")

    def _take_up(self, point: ResumePoint) -> None:
        """Go on counting where the run was interrupted."""
        state = point.state
        for name, count in state["counters"].items():
            setattr(self._counters, name, count)
        self._counters.version = point.first_version
        self._solved_at = state["solved_at"]
        self._cpu.go_on(state["cpu_seconds"])
        marks = state.get("log", {})  # checkpoints of older programs have none
        gap_ns = round(self._began * 1e9) - marks["clock_ns"] if marks else None
        self._gap_ns = gap_ns or 0
        self._began -= state["seconds"]
        self._budget.restore(state["budget"])
        self._saver.restore(state["saver"], point.own_arrays().get("best"))
        point.folder.point_latest()
        self._resumption = Resumption(self._story, point, self._counters, gap_ns)

    def _make_staff(self, blueprint: Blueprint) -> None:
        assert self._folder is not None  # noqa: S101 - it was just opened
        settings, folder = self.settings, self._folder
        pages: list[ProgressPage] = []
        crashes = Crashes(blueprint, self._segments, pages, folder.path, lambda: folder.crash_path, self._story)
        crew = Crew(
            self._budget,
            self._counters,
            self._bell,
            self._story,
            free_running=blueprint.free_running,
            alike=blueprint.alike,
            recorder=self._recorder,
            crashes=crashes,
        )
        self._staff = staff = Staff(
            settings,
            blueprint,
            self._segments,
            self._nursery,
            crew,
            Listener(self._story, self._drain, crashes),
            crash=self._folder.crash_path,
            judged=self._saver.tested,
            solved=self._on_solved,
            cpu_seconds=lambda: self._cpu_seconds(without="mlxe-eval"),
        )
        pages += staff.pages
        self._processes += staff.processes
        if self._point is not None:
            memory = memory_of(blueprint, self._segments)
            staff.restore(self._point, sum(lane["rows"] for lane in memory.ledger()))
        self._keeper = Keeper(
            settings,
            crew,
            self._saver,
            executors=staff.executors,
            memorizer=staff.memorizer,
            learner=staff.learner,
            evaluator=staff.evaluator,
            homes=staff.homes,
            published=self._published,
            more=self._facts_to_keep,
            disk=self._disk,
        )
        self._budget.at_boundary, self._budget.is_boundary_due = self._keeper.at_boundary, self._keeper.is_due
        self._beside = Housekeeping(
            settings,
            folder,
            blueprint,
            self._segments,
            staff,
            story=self._story,
            budget=self._budget,
            bell=self._bell,
            progress=self.progress,
            look_at_cpu=self._look_at_cpu,
            former_rows=self._point.former_rows if self._point else 0,
        )

    def _facts_to_keep(self) -> dict[str, Any]:
        shape = {**self._blueprint.memory_shape.to_json(), "block_rows": self._blueprint.chunk_rows}
        self._look_at_cpu()
        seconds = time.monotonic() - self._began
        assert self._journal is not None  # noqa: S101 - it is there before anything can be kept
        return {
            "memory_shape": shape,
            "log": {"next_seq": self._journal.next_seq, "clock_ns": time.monotonic_ns() - self._gap_ns},
            "seconds": seconds,
            "solved_at": self._solved_at,
            "cpu_seconds": self._cpu.by_name(),
        }

    async def _run_main_loop(self) -> None:
        beside = self._beside
        tasks = [beside.keep_status(), beside.keep_ledger(), beside.keep_time(), watch_lag(self._story)]
        tasks.append(starved(self._staff, self._story))
        if self._replay is None:
            tasks.append(beside.keep_draining(self._drain))
        if self.settings.schedule.kind != "serial":
            executors = self._staff.executors
            pages = [self._staff.pages[self._blueprint.page_of(f"executor-{e.index}")] for e in executors]
            tasks.append(Stragglers(executors, pages, self._story, self._blueprint.envs).watch())
        self._main = MainLoop(
            self.settings,
            self._staff,
            self._story,
            self._budget,
            self._bell,
            keeper=self._keeper,
            point=self._point,
            resumption=self._resumption,
            replay=self._replay,
            digest=lambda: digest_of(self._published()),
        )
        await self._main.run(self._processes, tasks)

    # -- what the processes tell ------------------------------------------------------------------------------------

    def _nursery_exited(self, pid: int, sentence: str, expected: bool) -> None:
        if self._journal is not None:
            self._story.emit(
                events.ProcExit(process="mlxe-nursery", pid=pid, epoch=0, expected=expected, sentence=sentence),
                "nursery",
            )

    def _on_solved(self, version: int, flat: Array) -> None:
        at = self._staff.crew.publications.get(version)
        if at is None:
            return
        self._solved_at = {"version": version, **at}
        self._story.emit(events.Solved(version=version, **at))
        self._saver.save(version, flat, solved_at=self._solved_at, solved=True)
        self._budget.note_solved()

    # -- shut down ----------------------------------------------------------------------------------------------------

    async def _shut_down(self, failure: BaseException | None) -> Result | None:
        self._disk.shutdown()
        self._look_at_cpu()
        flat = self._published() if self._segments and self._folder else None
        if (
            self._folder is not None
            and flat is not None
            and not (self._main and self._main.is_saved)
            and hasattr(self, "_saver")
        ):
            self._saver.save(*flat, solved_at=self._solved_at)
        async with asyncio.TaskGroup() as group:
            for process in self._processes:
                group.create_task(process.stop(STOP_GRACE_S))
        await self._nursery.stop()
        result = None
        if self._folder is not None and self._journal is not None:
            if hasattr(self, "_beside"):
                try:
                    self._beside.tell_ledger()
                except MlxeError as error:  # damaged shared memory has no account, but the run still has its end
                    self._story.warn(str(error))
                self._story.emit(self._story.bottleneck(max(1, len(self._staff.executors))))
            result = self._end(flat, failure)
            self._journal.close()
        if self._folder is not None:
            self._folder.close()
        # Processes and their channels hold each other until the garbage collector comes by, and that may be long after.
        self._processes.clear()
        self._budget.at_boundary, self._budget.is_boundary_due = None, lambda: False
        if hasattr(self, "_staff"):
            self._staff.release()
            del self._staff
        for name in ("_keeper", "_beside"):
            self.__dict__.pop(name, None)
        self._main = None
        for segment in self._segments.values():
            segment.close()
        return result

    def _end(self, flat: tuple[int, Array] | None, failure: BaseException | None) -> Result:
        assert self._folder is not None  # noqa: S101 - the caller has looked
        unsaved = self._saver.unsaved if hasattr(self, "_saver") else None
        reason, exit_code = verdict(self._budget.reason, failure, lambda: self._is_there, self._requested, unsaved)
        digest = digest_of(flat)
        if self._resumption is not None:
            self._resumption.tell(exact=False)  # it ended before all was taken up
        busy = not hasattr(self, "_staff") or self._staff.learner.busy
        end_recording(self._recorder, digest, self._story, busy=busy)
        result = Result(
            reason=reason,
            solved=self._solved_at is not None,
            steps=self._counters.env_steps,
            episodes=self._counters.episodes,
            updates=self._counters.updates,
            seconds=time.monotonic() - self._began,
            run_dir=self._folder.path,
            exit_code=exit_code,
            weights_hash=digest,
            solved_at=self._solved_at,
            replayed=self._main.replayed if self._main else None,
        )
        self._story.emit(
            events.RunEnd(
                reason=reason,
                solved=result.solved,
                episodes=result.episodes,
                env_steps=result.steps,
                updates=result.updates,
                seconds=result.seconds,
                cpu_seconds=self._cpu.total(),
                weights_hash=digest,
                exit_code=exit_code,
                trace=trace_of(failure),
            )
        )
        if hasattr(self, "_beside"):
            self._beside.write_status(reason)
        return result

    # -- parts --------------------------------------------------------------------------------------------------------

    def _published(self) -> tuple[int, Array] | None:
        return published_weights(self._segments["weights"], self._blueprint.parameters)

    def _look_at_cpu(self) -> None:
        self._cpu.look(self._living())

    def _living(self) -> list[tuple[str, int]]:
        living = [(process.name, process.pid) for process in self._processes if process.pid]
        if self._nursery.pid:
            living.append(("mlxe-nursery", self._nursery.pid))
        return living

    def _cpu_seconds(self, without: str) -> float:
        self._cpu.look(self._living(), at_most_every_s=CPU_LOOK_S)
        return self._cpu.total(without=without)

    @property
    def _is_there(self) -> bool:
        return not hasattr(self, "_beside") or self._beside.check_folder()
