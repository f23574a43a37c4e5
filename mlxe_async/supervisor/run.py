"""The life of one run: start up, main loop, shut down."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mlxe_async.errors import (
    MlxeError,
    ProcessDied,
    ResourceError,
    RunFailed,
    SettingsError,
    TaskError,
    UnsupportedPlatform,
)
from mlxe_async.ipc.lanes import begin_epoch, lane_state
from mlxe_async.ipc.nursery import Nursery
from mlxe_async.ipc.process import Process
from mlxe_async.ipc.restarts import RestartPolicy
from mlxe_async.ipc.segments import Segment, available_memory
from mlxe_async.ipc.weights import WeightsReader, WeightsWriter
from mlxe_async.ipc.words import PAGE_BYTES, ProgressPage, ProgressPages, Words
from mlxe_async.logs import events
from mlxe_async.logs.journal import Journal
from mlxe_async.memory.replay import ReplayMemory, ReplayShape
from mlxe_async.memory.rollouts import RolloutMemory
from mlxe_async.rows import Array
from mlxe_async.run_folder import RunFolder
from mlxe_async.schedules import POLL_S, Schedule, schedule_of
from mlxe_async.schedules.soundness import Facts, verdicts
from mlxe_async.settings import Settings, as_tables, dump_settings
from mlxe_async.settings.problems import Problem
from mlxe_async.supervisor.blueprint import Blueprint, Post
from mlxe_async.supervisor.budget import Bell, Budget, Counters
from mlxe_async.supervisor.cpu import CpuClock
from mlxe_async.supervisor.handles import Crew, EvaluatorHandle, ExecutorHandle, LearnerHandle, MemorizerHandle
from mlxe_async.supervisor.host import host, versions
from mlxe_async.supervisor.judge import SolvedJudge
from mlxe_async.supervisor.keeping import FINAL_LIMIT_S, Keeper
from mlxe_async.supervisor.listening import Listener
from mlxe_async.supervisor.recording import RECORDING, Ended, NoRecorder, Recorder, Recording
from mlxe_async.supervisor.replaying import Replay, facts_of
from mlxe_async.supervisor.results import CheckReport, Result
from mlxe_async.supervisor.resuming import ResumePoint
from mlxe_async.supervisor.saving import Saver, published_weights, weights_to_begin_with
from mlxe_async.supervisor.story import Story
from mlxe_async.supervisor.waiting import every, first_of, to_the_end

ENTRY, PROBE = "mlxe_async.workers:serve_roles", "mlxe_async.workers:serve_probe"
PRELOADED = [
    "numpy",
    "gymnasium",
    "mlxe_async.workers",
    "mlxe_async.tasks.probe",
    "mlxe_async.algorithms.a3c",
    "mlxe_async.algorithms.dqn",
    "mlxe_async.algorithms.ppo",
    "mlxe_async.roles.executor",
    "mlxe_async.roles.memorizer",
    "mlxe_async.roles.evaluator",
    "mlxe_async.roles.learner",
]
# Slow to import and not needed by the probe, which therefore need not wait for it.
PRELOADED_MEANWHILE = ["torch", "torch.optim"]
PROBE_LIMIT_S = 120.0
FINISH_LIMIT_S = 1.5
ROUND_LIMIT_S = 60.0  # where a round belongs to the result, and nobody waits for the command to end
STOP_GRACE_S = 1.0
FIRST_LEDGER_S = 1.0
CPU_LOOK_S = 0.1
SIGNAL_EXITS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


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
        self._replayed: str | None = None
        self._recorder: Recorder = NoRecorder()
        self._resume = resume
        self._point: ResumePoint | None = None
        self._started_before = 0
        self._is_whole = self._is_saved = self._is_asked = False
        self._began = time.monotonic()
        self._subscribers: list[Callable[[dict[str, Any]], None]] = []
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
        self._pages: list[ProgressPage] = []
        self._processes: list[Process] = []
        self._executors: list[ExecutorHandle] = []
        self._solved_at: dict[str, Any] | None = None
        self._drain = asyncio.Event()
        self._folder: RunFolder | None = None
        self._journal: Journal | None = None
        # A thread of our own, which ends with the run: the loop's is the embedding program's.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="mlxe-disk")
        self._story: Story
        self._saver: Saver
        self._keeper: Keeper
        self._blueprint: Blueprint
        self._memorizer: MemorizerHandle
        self._learner: LearnerHandle
        self._evaluator: EvaluatorHandle

    # -- for whoever embeds a run -----------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[dict[str, Any]], None]) -> None:
        """Have `callback` called with every line of the log, as a dict, from the loop's thread."""
        self._subscribers.append(callback)
        if self._journal is not None:
            self._journal.subscribe(callback)

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
        self._is_asked = True
        if self._journal is not None and self._budget.reason is None:
            self._story.emit(events.StopRequested(reason=reason))
        self._budget.finish(reason)

    def progress(self) -> dict[str, Any]:
        """How far the run is: counters, rates, lag, recent returns and the share of each stop condition."""
        seconds = max(1e-9, self._budget.seconds)
        story = self._story
        self._counters.episodes_started = self._episodes_started()
        return {
            **self._counters.to_json(),
            "seconds": round(self._budget.seconds, 3),
            "steps_per_second": round(self._counters.env_steps / seconds, 1),
            "mean_return": float(np.mean(story.returns)) if story.returns else None,
            "lag": story.lag,
            "owed_updates": self._memorizer.owed,
            "memory_rows": self._memorizer.held,
            "last_evaluation": story.last_evaluation,
            "cpu_seconds": self._cpu.by_name(),
            "stop": {name: round(self._budget.spent(name) / limit, 6) for name, limit in self._budget.limits().items()},
        }

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
        try:
            await self._start()
            await self._main_loop()
        except BaseException as error:  # noqa: BLE001 - told to the log, then raised again below
            failure = first_of(error)
        result: Result | None = await to_the_end(self._shut_down(failure))
        for queue in self._queues:
            queue.put_nowait(None)
        if failure is not None:
            raise failure
        assert result is not None  # noqa: S101 - without a failure there is a folder and so a result
        return result

    # -- start up ---------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        began = time.monotonic()
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
            self._make_crew(blueprint)
        for module, failure in self._nursery.failures.items():
            raise ResourceError(f"the package {module} cannot be used: {failure['kind']}: {failure['message']}")
        async with asyncio.TaskGroup() as group:
            for process in self._processes:
                group.create_task(process.start())

    @contextlib.asynccontextmanager
    async def _probed(self) -> AsyncIterator[None]:
        """Start the nursery, have its first child judge task and algorithm, and import the rest meanwhile."""
        await self._nursery.start(PRELOADED, list(self.settings.run.python_path))
        spec = {"settings": self.settings.model_dump(mode="json")}
        limits = RestartPolicy(limit=0, start_timeout_s=PROBE_LIMIT_S, call_limit_s=PROBE_LIMIT_S)
        process = Process(lambda: self._nursery, "mlxe-probe", PROBE, lambda _epoch: spec, policy=limits)
        self._processes.append(process)
        async with asyncio.TaskGroup() as group:
            try:
                await process.start()
                watcher = group.create_task(process.run())
                importing = group.create_task(self._nursery.preload(PRELOADED_MEANWHILE))
                async with asyncio.timeout(PROBE_LIMIT_S):
                    self._take_facts(await process.call("probe"))
            except (ProcessDied, RunFailed, TimeoutError) as error:
                raise TaskError(f'the probe of task.env = "{self.settings.task.env}" failed: {error}') from error
            yield
            await importing
            await process.stop(0.2)
            await watcher
        self._processes.remove(process)

    def _take_facts(self, facts: dict[str, Any]) -> None:
        if "task_error" in facts:
            raise TaskError(f"{self.settings.places.of(('task', 'env'))}: {facts['task_error']}")
        if "problems" in facts:
            problems = [Problem(tuple(p["path"]), p["message"]) for p in facts["problems"]]
            raise SettingsError([self.settings.places.line(problem) for problem in problems])
        self._facts = facts
        self.settings = self.settings.with_defaults(facts["defaults"])
        self._judge_soundness()

    def _judge_soundness(self) -> None:
        """Refuse what an algorithm cannot learn from under this schedule; what is merely odd is told by the log."""
        schedule, facts = self.settings.schedule, self._facts
        found = list(
            verdicts(
                Facts(
                    kind=schedule.kind,
                    memory=facts["memory_kind"],
                    off_policy=facts["off_policy"],
                    bootstraps=facts["bootstraps"],
                    sync=schedule.sync,
                    unfinished=getattr(schedule, "unfinished", None),
                    max_policy_lag=getattr(schedule, "max_policy_lag", None),
                )
            )
        )
        refused = [Problem(verdict.key, verdict.message, verdict.other) for verdict in found if verdict.refused]
        if refused:
            raise SettingsError([self.settings.places.line(problem) for problem in refused])
        self._cautions = [verdict.message for verdict in found]

    def _open_folder(self, blueprint: Blueprint) -> None:
        # Written back with the algorithm's defaults, which only the probe knows.
        settings, point = self.settings.with_algorithm(self._facts["algorithm"]), self._point
        folder = RunFolder.create(self._base, settings.run.name) if point is None else point.folder
        self._folder = folder
        try:
            self._journal = Journal(folder.log_path, folder.name, first_seq=point.log.next_seq if point else 0)
        except OSError as error:
            raise ResourceError(f"{folder.log_path} cannot be written: {error.strerror}") from error
        for subscriber in self._subscribers:
            self._journal.subscribe(subscriber)
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
        self._story.emit(
            events.RunStart(
                seed=settings.run.seed,
                schedule=settings.schedule.kind,
                algorithm=settings.algorithm.name,
                env=settings.task.env,
                settings=as_tables(settings),
                versions=about,
                host=machine,
                python_path=list(settings.run.python_path),
                resumed=point is not None,
            )
        )
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
        self._began -= state["seconds"]
        self._budget.restore(state["budget"])
        self._saver.restore(state["saver"], point.own_arrays().get("best"))
        point.folder.point_latest()
        self._story.emit(
            events.RunResume(
                checkpoint=int(point.whole.number if point.whole else 0),
                version=point.version,
                env_steps=self._counters.env_steps,
                episodes=self._counters.episodes,
                updates=self._counters.updates,
                seconds=state["budget"]["seconds"],
                previous_run_died=not point.log.has_last_word,
                changed=point.told,
                exact=point.exact,
            )
        )
        for change in point.told:
            self._story.warn(f"the run goes on with another {change}")

    def _make_crew(self, blueprint: Blueprint) -> None:
        """All wiring in one place: which process holds which role, which handle talks to which process."""
        settings, schedule = self.settings, self.settings.schedule
        homes: dict[str, Process] = {}
        for post in blueprint.posts:
            process = self._make_process(post)
            self._processes.append(process)
            homes.update(dict.fromkeys(post.roles, process))
        crew = Crew(
            self._budget,
            self._counters,
            self._bell,
            self._story,
            free_running=blueprint.free_running,
            alike=blueprint.alike,
            recorder=self._recorder,
        )
        self._memorizer = MemorizerHandle(
            homes["memorizer"],
            crew,
            updates_per_plan=getattr(schedule, "updates_per_publish", None),
            most_owed=getattr(schedule, "max_owed_updates", None),
            executors=blueprint.executors,
        )
        self._learner = LearnerHandle(
            homes["learner"],
            crew,
            self._memorizer,
            started=self._episodes_started,
            cpu_seconds=lambda: self._cpu_seconds(without="mlxe-eval"),
        )
        names = [f"executor-{index}" for index in range(blueprint.executors)]
        asked = Words(self._segments["control"].buffer, blueprint.asked_offset, names)
        self._executors = [
            ExecutorHandle(
                index,
                homes[names[index]],
                crew,
                self._memorizer,
                blueprint.envs,
                unfinished=getattr(schedule, "unfinished", "keep"),
                ask=functools.partial(asked.set, names[index]),
                most_rollouts=blueprint.most_rollouts,
            )
            for index in range(blueprint.executors)
        ]
        self._evaluator = EvaluatorHandle(
            homes.get("evaluator"),
            crew,
            weights=WeightsReader(self._segments["weights"]),
            tested=WeightsWriter(self._segments["tested"]),
            parameters=blueprint.parameters,
            judge=SolvedJudge(settings.evaluation.passes),
            in_flight=settings.evaluation.in_flight,
            judged=self._saver.tested,
            solved=self._on_solved,
        )
        self._crew, self._homes = crew, homes
        if self._point is not None:
            self._restore_handles(self._point)
        self._keeper = Keeper(
            settings,
            crew,
            self._saver,
            executors=self._executors,
            memorizer=self._memorizer,
            learner=self._learner,
            evaluator=self._evaluator,
            homes=homes,
            published=self._published,
            more=self._facts_to_keep,
            disk=self._disk,
        )
        self._budget.at_boundary = self._keeper.at_boundary

    def _facts_to_keep(self) -> dict[str, Any]:
        shape = {**self._blueprint.memory_shape.to_json(), "block_rows": self._blueprint.chunk_rows}
        self._look_at_cpu()
        seconds = time.monotonic() - self._began
        return {
            "memory_shape": shape,
            "seconds": seconds,
            "solved_at": self._solved_at,
            "cpu_seconds": self._cpu.by_name(),
        }

    def _restore_handles(self, point: ResumePoint) -> None:
        state = point.state
        ingested = sum(lane["rows"] for lane in self._memory().ledger())
        self._crew.returns.update({int(version): returns for version, returns in state["returns"].items()})
        if self._crew.alike:
            self._crew.excused.update(state["delivered"])
        self._started_before = point.restore_handles(
            self._executors, self._memorizer, self._learner, self._evaluator, ingested
        )

    def _make_process(self, post: Post) -> Process:
        settings, schedule = self.settings, self.settings.schedule
        lanes = [self._segments[name] for name in post.segments if name.startswith("lane-")]
        writes_lanes = any(role.startswith("executor") for role in post.roles)
        silences = [schedule.step_timeout_s] if writes_lanes else []
        if not writes_lanes or "learner" in post.roles:
            silences.append(schedule.update_timeout_s)
        pages = [ProgressPage(self._segments["control"].buffer, page * PAGE_BYTES) for page in post.pages]
        self._pages += pages

        def before_start(_epoch: int) -> None:
            # Only now the old writer is known to be dead.
            for lane in lanes if writes_lanes else ():
                begin_epoch(lane)

        supervision = settings.supervision
        return Process(
            lambda: self._nursery,
            post.name,
            ENTRY,
            lambda epoch: self._blueprint.spec(post, epoch, {str(e.index): e.next_episodes for e in self._executors}),
            lambda: {name: self._segments[name].fd for name in post.segments},
            ProgressPages(pages),
            RestartPolicy(
                limit=supervision.restart_limit,
                window_s=supervision.restart_window_s,
                backoff_s=supervision.backoff_s,
                backoff_max_s=supervision.backoff_max_s,
                start_timeout_s=supervision.start_timeout_s,
                silence_s=max(silences),
                seed=settings.run.seed,
            ),
            Listener(self._story, self._drain),
            before_start,
            stdout_path=self._output_path(post.name),
            oom_score_adj=500 if writes_lanes else 0,
        )

    # -- main loop ----------------------------------------------------------------------------------------------------

    async def _main_loop(self) -> None:
        chosen = self.settings.schedule
        who_waits = schedule_of(chosen.kind, getattr(chosen, "flavour", None))
        async with asyncio.TaskGroup() as group:
            watchers = [group.create_task(process.run()) for process in self._processes]
            watchers += [
                group.create_task(work) for work in (self._keep_status(), self._keep_ledger(), self._keep_time())
            ]
            if self._replay is None:
                watchers.append(group.create_task(self._keep_draining()))
            self._budget.began = time.monotonic()
            if self._point is not None:
                self._budget.restore(self._point.state["budget"])
            self._keeper.note_saved()
            schedule = group.create_task(self._follow(who_waits))
            stopped = group.create_task(self._bell.wait_until(lambda: self._budget.reason is not None))
            await asyncio.wait([schedule, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not schedule.done():
                # What is under way may be finished, in a bounded time.
                if self._crew.alike:
                    asked = group.create_task(self._bell.wait_until(lambda: self._is_asked))
                    await asyncio.wait([schedule, asked], timeout=ROUND_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
                    asked.cancel()
                looking = 2 * POLL_S if getattr(chosen, "flavour", None) == "as_published" else 0.0
                await asyncio.wait([schedule], timeout=FINISH_LIMIT_S + looking)
            for task in (schedule, stopped):
                task.cancel()
            await asyncio.wait([schedule])
            await self._save_all()
            for task in watchers:
                task.cancel()

    async def _follow(self, who_waits: Schedule) -> None:
        point, budget = self._point, self._budget
        if point is not None:
            await point.restore_roles(self._homes, self._story, free_running=self._crew.free_running)
            self._is_whole = True
            if not self._crew.free_running and not self._crew.excused:
                # The last test may have been cut short; if it was not, nothing is due.
                await self._evaluator.evaluate(self._counters.version)
        self._is_whole = True
        if self._replay is not None:
            await self._replay.follow(self._homes, self._story, self._counters, self._bell)
            self._replayed = self._replay.verdict(_digest(self._published()))
            return
        await who_waits(self._executors, self._memorizer, self._learner, self._evaluator, budget)

    async def _save_all(self) -> None:
        """The last checkpoint: a whole one, if all is known of what was done so far."""
        if self._is_whole and self._keeper.at_rest:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FINAL_LIMIT_S):
                    self._is_saved = await self._keeper.save()
        else:
            self._story.warn(
                "stopped in the middle of a round: the newest weights are saved, and the run can go on from the whole "
                "checkpoint before"
            )

    async def _keep_status(self) -> None:
        async for _ in every(self.settings.logs.status_interval_s):
            self._look_at_cpu()
            self._write_status("running")
            living = sum(1 for executor in self._executors if executor.lost is None)
            if living < self.settings.schedule.min_executors:
                lost = next(executor.lost for executor in self._executors if executor.lost)
                raise RunFailed(
                    f"expected at least {self.settings.schedule.min_executors} executors (schedule.min_executors), "
                    f"{living} are left; {lost}"
                )

    async def _keep_ledger(self) -> None:
        await asyncio.sleep(min(FIRST_LEDGER_S, self.settings.logs.ledger_interval_s))
        self._tell_ledger()
        async for _ in every(self.settings.logs.ledger_interval_s):
            self._tell_ledger()
            self._story.emit(self._story.bottleneck(len(self._executors)))

    async def _keep_draining(self) -> None:
        """Long rollouts commit in the middle; then the lanes get their room back before anybody waits."""
        while True:
            await self._drain.wait()
            self._drain.clear()
            await self._memorizer.ingest()

    async def _keep_time(self) -> None:
        if self.settings.stop.seconds is not None:
            await asyncio.sleep(max(0.0, self.settings.stop.seconds - self._budget.seconds))
            self._is_asked = True
            self._budget.finish("seconds")
            return
        await asyncio.Event().wait()

    # -- what the processes tell ------------------------------------------------------------------------------------

    def _nursery_exited(self, pid: int, sentence: str, expected: bool) -> None:
        if self._journal is not None:
            self._story.emit(
                events.ProcExit(process="mlxe-nursery", pid=pid, epoch=0, expected=expected, sentence=sentence),
                "nursery",
            )

    def _on_solved(self, version: int, flat: Array) -> None:
        at = self._learner.publications.get(version)
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
        if self._folder is not None and flat is not None and not self._is_saved and hasattr(self, "_saver"):
            self._saver.save(*flat, solved_at=self._solved_at)
        async with asyncio.TaskGroup() as group:
            for process in self._processes:
                group.create_task(process.stop(STOP_GRACE_S))
        await self._nursery.stop()
        result = None
        if self._folder is not None and self._journal is not None:
            if hasattr(self, "_memorizer"):
                try:
                    self._tell_ledger()
                except MlxeError as error:  # damaged shared memory has no account, but the run still has its end
                    self._story.warn(str(error))
                self._story.emit(self._story.bottleneck(max(1, len(self._executors))))
            result = self._end(flat, failure)
            self._journal.close()
        if self._folder is not None:
            self._folder.close()
        # Views keep their mapping, and a mapping its descriptor: drop whoever holds one. Processes and their channels
        # hold each other until the garbage collector comes by, and that may be long after.
        for page in self._pages:
            page.release()
        self._pages.clear()
        self._processes.clear()
        self._executors.clear()
        self._budget.at_boundary = None
        for name in ("_keeper", "_memorizer", "_learner", "_evaluator", "_crew", "_homes"):
            self.__dict__.pop(name, None)
        for segment in self._segments.values():
            segment.close()
        return result

    def _end(self, flat: tuple[int, Array] | None, failure: BaseException | None) -> Result:
        assert self._folder is not None  # noqa: S101 - the caller has looked
        reason = self._budget.reason or "finished"
        exit_code = SIGNAL_EXITS.get(reason, 0)
        if failure is not None:
            reason = "cancelled" if isinstance(failure, asyncio.CancelledError) else f"failed: {failure}"
            exit_code = failure.exit_code if isinstance(failure, MlxeError) else 3
        digest = _digest(flat)
        self._end_recording(digest)
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
            replayed=self._replayed,
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
            )
        )
        if hasattr(self, "_memorizer"):
            self._write_status(reason)
        return result

    def _end_recording(self, digest: str | None) -> None:
        if not isinstance(self._recorder, Recording):
            return
        if digest is None or not hasattr(self, "_learner") or self._learner.busy:
            self._recorder.note(Ended("", "the run ended in the middle of an update"))
        else:
            self._recorder.note(Ended(digest))
        self._recorder.close()
        if self._recorder.failure:
            self._story.warn(self._recorder.failure)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _published(self) -> tuple[int, Array] | None:
        return published_weights(self._segments["weights"], self._blueprint.parameters)

    def _episodes_started(self) -> int:
        return self._started_before + sum(executor.episodes_started for executor in self._executors)

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

    def _write_status(self, state: str) -> None:
        assert self._folder is not None  # noqa: S101 - there is a folder as long as there is a status
        try:
            self._folder.write_status({"state": state, "pid": os.getpid(), "run": self._folder.name, **self.progress()})
        except ResourceError as error:
            self._story.warn(str(error))

    def _tell_ledger(self) -> None:
        memory, lanes = self._memory(), []
        for index, taken in enumerate(memory.ledger()):
            state = lane_state(self._segments[f"lane-{index}"])
            backlog = (state.commit - taken["position"]) % 2**64
            lanes.append({"committed_blocks": state.commit, "backlog_blocks": backlog, **taken})
        ingested = sum(lane["rows"] for lane in lanes)
        waiting = sum(lane["backlog_blocks"] for lane in lanes)
        former = self._point.former_rows if self._point else 0
        held, capacity = self._memorizer.held, self._blueprint.memory_shape.capacity
        self._story.ledger(lanes, ingested, waiting, kept=held, capacity=capacity, former=former)

    def _memory(self) -> ReplayMemory | RolloutMemory:
        shape, buffer = self._blueprint.memory_shape, self._segments["memory"].buffer
        return ReplayMemory(shape, buffer) if isinstance(shape, ReplayShape) else RolloutMemory(shape, buffer)

    def _output_path(self, name: str) -> str | None:
        return str(self._folder.crash_path / f"{name}.output") if self._folder else None


def _digest(flat: tuple[int, Array] | None) -> str | None:
    """SHA-256 of flat weights."""
    return hashlib.sha256(flat[1].tobytes()).hexdigest() if flat else None
