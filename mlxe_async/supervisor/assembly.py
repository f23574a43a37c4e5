"""Processes and handles of one run, put together: which process holds which role, which handle talks to it."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from mlxe_async.ipc.processes.life import Watch
from mlxe_async.ipc.processes.process import Process
from mlxe_async.ipc.processes.restarts import RestartPolicy
from mlxe_async.ipc.shared.delayed import DelayedWeights
from mlxe_async.ipc.shared.lanes import begin_epoch
from mlxe_async.ipc.shared.meeting import declare_broken
from mlxe_async.ipc.shared.weights import WeightsReader, WeightsWriter
from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage, ProgressPages, Words
from mlxe_async.roles.wrapper_states import VersionStates
from mlxe_async.supervisor.checkpointing.due import CheckpointDue
from mlxe_async.supervisor.checkpointing.solved import LongEpisode
from mlxe_async.supervisor.context import RunContext
from mlxe_async.supervisor.handles.context import ExecutorWords, HandleContext, Promoter, RolloutRules, lessons_of
from mlxe_async.supervisor.handles.crashes import Crashes
from mlxe_async.supervisor.handles.evaluator import EvaluatorHandle
from mlxe_async.supervisor.handles.executor import ExecutorHandle
from mlxe_async.supervisor.handles.memorizer import MemorizerHandle
from mlxe_async.supervisor.handles.process_events import ProcessEvents
from mlxe_async.supervisor.learning.learner import LearnerHandle
from mlxe_async.supervisor.learning.pushing import pushed_by
from mlxe_async.supervisor.learning.team import TeamHandle, workers_of
from mlxe_async.supervisor.plan.processes import PlannedProcess
from mlxe_async.supervisor.startup.restore import restore_handles

ENTRY = "mlxe_async.workers:serve_roles"
D0_STEPS = 50_000
"""Steps of the training episode that was the goal of the study which this program goes back to."""


class Assembly:
    """Made, but no process is started; `close` lets go of shared memory and processes at once.

    Args:
        run: what the run consists of.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        blueprint, traits, segments = run.blueprint, run.blueprint.traits, run.segments
        control = segments["control"].buffer
        self.drain = asyncio.Event()
        "Set when blocks were committed in the middle of a rollout."
        self.due = CheckpointDue(run.settings.checkpoint, run.counters, blueprint.round_rows)
        self.pages = [
            ProgressPage(control, page * PAGE_BYTES) for planned in blueprint.processes for page in planned.pages
        ]
        crashes = Crashes(run, self.pages)
        self.context = context = HandleContext(
            run.budget,
            run.counters,
            run.bell,
            run.log,
            free_running=traits.free_running,
            deterministic=traits.deterministic,
            recorder=run.recorder,
            crashes=crashes,
            is_checkpoint_due=self.due.now,
            promotes=blueprint.promotes,
            promote_by=run.settings.learner.promote_by,
        )
        if run.blueprint.facts["task"].get("keeps_state"):
            context.publications.states = VersionStates(in_rounds=traits.deterministic)
        context.lessons = lessons_of(
            run.settings.task,
            run.counters,
            run.log,
            executors=blueprint.executors,
            states=context.publications.states,
            in_rounds=traits.deterministic,
        )
        run.files.saver.state_of = context.publications.state_of
        self.executors: list[ExecutorHandle] = []
        if blueprint.promotes and traits.free_running:
            context.promoter = Promoter(
                run.settings.learner.promote_best,
                run.settings.learner.promote_by,
                lambda: [
                    executor.index for executor in self.executors[: blueprint.learned_from] if executor.lost is None
                ],
                run.log,
            )
        self._episodes = _Episodes(self.executors)
        self.versions_before = run.counters.version
        "Versions before this sitting, in which the times of processes begin anew."
        self.spent = [ProgressPages([self.pages[page] for page in planned.pages]) for planned in blueprint.processes]
        "The progress pages of each process, in the order in which they are planned."
        make = _Processes(run, ProcessEvents(run, self.drain, crashes), self.executors)
        self.processes = [
            make.process(planned, pages) for planned, pages in zip(blueprint.processes, self.spent, strict=True)
        ]
        self.by_role = {
            role: process
            for planned, process in zip(blueprint.processes, self.processes, strict=True)
            for role in planned.roles
        }
        "Name of a role -> its process."
        self.delayed: DelayedWeights | None = None
        "The older weights that executors act with; None where they act with the newest."
        if traits.simulated_lag:
            writer = WeightsWriter(segments["delayed"])
            self.delayed = DelayedWeights(traits.simulated_lag, writer, run.published)
        self.memorizer = MemorizerHandle(
            self.by_role["memorizer"],
            context,
            updates_per_plan=traits.updates_per_plan,
            most_owed=traits.max_owed_updates,
            executors=blueprint.executors,
        )
        kind = pushed_by(self.by_role, blueprint.combining) if blueprint.pushes else LearnerHandle
        self.learner = kind(
            self.by_role["learner"],
            context,
            self.memorizer,
            started=self._episodes.started,
            cpu_seconds=functools.partial(run.measures.cpu_seconds, without="mlxe-eval"),
            newest=run.published,
            repeats=(traits.deterministic or blueprint.pushes) and blueprint.keep_state_every == 1,
            note_publication=(lambda: None) if self.delayed is None else self.delayed.note_publication,
            team=self._team() if "exchange" in segments else None,
        )
        longest, goal = run.blueprint.facts["task"]["max_episode_steps"], run.settings.stop.episode_steps or D0_STEPS
        long_episode = LongEpisode(goal, run.log, self._now) if longest is None or longest >= goal else None
        names = [f"executor-{index}" for index in range(blueprint.executors)]
        self._asked = Words(control, blueprint.asked_offset, names)
        rules = RolloutRules(
            unfinished=traits.unfinished,
            most_rollouts=traits.max_rollouts,
            most_rows=functools.partial(blueprint.most_rows, run.budget),
            least_rows=functools.partial(blueprint.least_rows, run.budget),
            max_rss_mb=run.settings.supervision.max_executor_rss_mb,
            reads=run.settings.schedule.kind == "serial",
        )
        self.executors += [
            ExecutorHandle(
                index,
                self.by_role[name],
                context,
                self.memorizer,
                blueprint.envs,
                rules=rules,
                words=ExecutorWords(
                    functools.partial(self._asked.set, name), functools.partial(self._taken, index), self.delayed
                ),
                long_episode=long_episode,
                others=self._rollouts if index >= blueprint.learned_from else None,
            )
            for index, name in enumerate(names)
        ]
        solved, publications = run.files.solved, context.publications
        self._weights = WeightsReader(segments["weights"]), WeightsWriter(segments["tested"])
        self.evaluator = EvaluatorHandle(
            self.by_role.get("evaluator"),
            context,
            weights=self._weights[0],
            tested=self._weights[1],
            rules=run.settings.evaluation,
            judged=run.files.saver.tested,
            solved=lambda version, flat: solved.note(version, flat, publications.get(version)),
        )

    def _team(self) -> TeamHandle:
        broken = functools.partial(declare_broken, self._run.segments["exchange"])
        return TeamHandle(self.by_role["learner"], workers_of(self.by_role), broken)

    def _rollouts(self) -> list[int]:
        """Rollouts so far of each executor that is learned from."""
        return [one.rollouts for one in self.executors[: self._run.blueprint.learned_from]]

    def _taken(self, executor: int) -> int:
        """Rows that an executor has made so far, as it counts them in shared memory."""
        return int(self._run.blueprint.places(self._run.segments["control"], executor).taken[0])

    def _now(self) -> dict[str, Any]:
        """Return how far the run is at this moment, with all that is under way."""
        counters = self._run.counters
        return {
            "episodes": counters.episodes,
            "episodes_started": self._episodes.started(),
            "env_steps": counters.env_steps + sum(executor.undelivered for executor in self.executors),
            "updates": counters.updates,
            "version": counters.version,
            "seconds": self._run.budget.seconds,
            "mono_ns": time.monotonic_ns(),
        }

    def page_of(self, executor: int) -> ProgressPage:
        """The progress page of an executor."""
        return self.pages[self._run.blueprint.page_of(f"executor-{executor}")]

    def episodes_started(self) -> int:
        """Episodes begun so far, those of executors that are no more included."""
        return self._episodes.started()

    def restore(self) -> None:
        """Let the handles go on where the run was interrupted."""
        run, context = self._run, self.context
        assert run.point is not None  # noqa: S101 - there is something to go on from
        ingested = sum(lane["rows"] for lane in run.blueprint.memory_in(run.segments).ledger())
        state = run.point.state
        context.returns.update({int(version): returns for version, returns in state["returns"].items()})
        for version, about in state["publications"].items():
            context.publications.note(int(version), about)
            context.publications.hold(int(version))
        if self.delayed is not None:
            self.delayed.restore(run.point.own_arrays())
        if context.lessons is not None and "lessons" in state:
            context.lessons.restore(state["lessons"], run.point.first_version)
        if context.promoter is not None and "promoter" in state:
            context.promoter.restore(state["promoter"])
        if context.deterministic:
            context.excused.update(state["delivered"])
        self._episodes.before = restore_handles(
            run.point, self.executors, self.memorizer, self.learner, self.evaluator, ingested
        )

    def close(self) -> None:
        """Let go of the shared memory and of the processes; nothing is asked of the handles any more."""
        for words in (*self.pages, self._asked):
            words.release()
        for weights in self._weights:
            weights.release()
        if self.delayed is not None:
            self.delayed.release()
        # Processes and their channels hold each other until the garbage collector comes by.
        self.processes.clear()
        self.by_role.clear()
        self.executors.clear()


class _Episodes:
    """Counts episodes begun: those of the executors, and of executors that are no more."""

    def __init__(self, executors: Sequence[ExecutorHandle]) -> None:
        self._executors = executors
        self.before = 0

    def started(self) -> int:
        return self.before + sum([executor.episodes_started for executor in self._executors])


class _Processes:
    """Makes the processes that are planned.

    Args:
        run: what the run consists of.
        listener: told what happens to the processes.
        executors: filled before the first process is started: each life is told where their episodes stand.
    """

    def __init__(self, run: RunContext, listener: ProcessEvents, executors: Sequence[ExecutorHandle]) -> None:
        self._run, self._listener, self._executors = run, listener, executors
        self._output = run.folder.output_path
        self._watch = Watch()

    def process(self, planned: PlannedProcess, pages: ProgressPages) -> Process:
        """One that is not yet started, and its progress pages."""
        run, schedule, supervision = self._run, self._run.settings.schedule, self._run.settings.supervision
        writes_lanes = any(role.startswith("executor") for role in planned.roles)
        silences = [schedule.step_timeout_s] if writes_lanes else []
        if any(not role.startswith("executor") for role in planned.roles):
            silences.append(schedule.update_timeout_s)
        return Process(
            lambda: run.nursery,
            planned.name,
            ENTRY,
            functools.partial(self._spec, planned),
            lambda: {name: run.segments[name].fd for name in planned.segments},
            pages,
            RestartPolicy(
                limit=supervision.restart_limit,
                window_s=supervision.restart_window_s,
                backoff_s=supervision.backoff_s,
                backoff_max_s=supervision.backoff_max_s,
                start_timeout_s=supervision.start_timeout_s,
                start_advice="; if it only needs longer to start, raise supervision.start_timeout_s",
                silence_s=max(silences),
                seed=run.settings.run.seed,
            ),
            self._listener,
            self._before_start(planned) if writes_lanes else None,
            watch=self._watch,
            stdout_path=str(self._output / f"{planned.name}.txt"),
            oom_score_adj=500 if writes_lanes else 0,
        )

    def _spec(self, planned: PlannedProcess, epoch: int) -> dict[str, Any]:
        episodes = {str(e.index): e.next_episodes for e in self._executors if f"executor-{e.index}" in planned.roles}
        return {**self._run.blueprint.spec(planned, epoch, episodes), "folder": str(self._run.folder.path)}

    def _before_start(self, planned: PlannedProcess) -> Callable[[int], None]:
        """Only when a process begins its next life is the old writer of its lanes known to be dead."""
        lanes = [self._run.segments[name] for name in planned.segments if name.startswith("lane-")]

        def begin(_epoch: int) -> None:
            for lane in lanes:
                begin_epoch(lane)

        return begin
