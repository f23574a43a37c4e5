"""All wiring in one place: which process holds which role, and which handle talks to which process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from mlxe_async.ipc.lanes import begin_epoch
from mlxe_async.ipc.listener import ProcessListener
from mlxe_async.ipc.nursery import Nursery
from mlxe_async.ipc.process import Process
from mlxe_async.ipc.restarts import RestartPolicy
from mlxe_async.ipc.segments import Segment
from mlxe_async.ipc.watch import Watch
from mlxe_async.ipc.weights import WeightsReader, WeightsWriter
from mlxe_async.ipc.words import PAGE_BYTES, ProgressPage, ProgressPages, Words
from mlxe_async.rows import Array
from mlxe_async.settings import Settings
from mlxe_async.supervisor.checkpointing.resume_point import ResumePoint
from mlxe_async.supervisor.checkpointing.resume_roles import restore_handles
from mlxe_async.supervisor.checkpointing.weights import published_weights
from mlxe_async.supervisor.handles.context import Crew
from mlxe_async.supervisor.handles.evaluator import EvaluatorHandle
from mlxe_async.supervisor.handles.executor import ExecutorHandle
from mlxe_async.supervisor.handles.learner import LearnerHandle
from mlxe_async.supervisor.handles.memorizer import MemorizerHandle
from mlxe_async.supervisor.handles.solved import SolvedJudge
from mlxe_async.supervisor.startup.blueprint import Blueprint, Post

ENTRY = "mlxe_async.workers:serve_roles"


class Staff:
    """Processes and handles of one run, made but not started.

    Args:
        settings: the run's settings.
        blueprint: which process holds which roles.
        segments: the shared memory, by name.
        nursery: forks the processes.
        crew: what the handles share.
        listener: told what happens to the processes.
        crash: folder for what processes print, and for what they leave behind when they fail.
        judged: told each version that was tested, its weights (P,) and its mean return.
        solved: told the version and weights that count as solved.
        cpu_seconds: used so far by all processes but the evaluator.
    """

    def __init__(
        self,
        settings: Settings,
        blueprint: Blueprint,
        segments: Mapping[str, Segment],
        nursery: Nursery,
        crew: Crew,
        listener: ProcessListener,
        *,
        crash: Path,
        judged: Callable[[int, Array, float], None],
        solved: Callable[[int, Array], None],
        cpu_seconds: Callable[[], float],
    ) -> None:
        traits = blueprint.traits
        self._settings, self._blueprint, self._segments = settings, blueprint, segments
        self._nursery, self._listener, self._crash = nursery, listener, crash
        self._started_before = 0
        self._watch = Watch()
        self.crew = crew
        self.processes: list[Process] = []
        self.homes: dict[str, Process] = {}
        "Name of a role -> its process."
        self.pages: list[ProgressPage] = []
        for post in blueprint.posts:
            process = self._make_process(post)
            self.processes.append(process)
            self.homes.update(dict.fromkeys(post.roles, process))
        self.memorizer = MemorizerHandle(
            self.homes["memorizer"],
            crew,
            updates_per_plan=traits.updates_per_plan,
            most_owed=traits.max_owed_updates,
            executors=blueprint.executors,
        )
        self.learner = LearnerHandle(
            self.homes["learner"],
            crew,
            self.memorizer,
            started=self.episodes_started,
            cpu_seconds=cpu_seconds,
            newest=functools.partial(published_weights, segments["weights"], blueprint.parameters),
            repeats=traits.deterministic and blueprint.keep_state_every == 1,
        )
        names = [f"executor-{index}" for index in range(blueprint.executors)]
        asked = Words(segments["control"].buffer, blueprint.asked_offset, names)
        self.executors = [
            ExecutorHandle(
                index,
                self.homes[names[index]],
                crew,
                self.memorizer,
                blueprint.envs,
                unfinished=traits.unfinished,
                ask=functools.partial(asked.set, names[index]),
                most_rollouts=traits.max_rollouts,
                max_rss_mb=settings.supervision.max_executor_rss_mb,
            )
            for index in range(blueprint.executors)
        ]
        self.evaluator = EvaluatorHandle(
            self.homes.get("evaluator"),
            crew,
            weights=WeightsReader(segments["weights"]),
            tested=WeightsWriter(segments["tested"]),
            parameters=blueprint.parameters,
            judge=SolvedJudge(settings.evaluation.passes),
            in_flight=settings.evaluation.in_flight,
            interval_steps=settings.evaluation.interval_steps,
            judged=judged,
            solved=solved,
        )

    def episodes_started(self) -> int:
        """Episodes begun so far, those of executors that are no more included."""
        return self._started_before + sum(executor.episodes_started for executor in self.executors)

    def restore(self, point: ResumePoint, ingested: int) -> None:
        """Let the handles go on where the run was interrupted.

        Args:
            point: what the run goes on from.
            ingested: rows that the memory has taken in.
        """
        state, crew = point.state, self.crew
        crew.returns.update({int(version): returns for version, returns in state["returns"].items()})
        for version, about in state["publications"].items():
            crew.publications.note(int(version), about)
            crew.publications.hold(int(version))
        if crew.deterministic:
            crew.excused.update(state["delivered"])
        self._started_before = restore_handles(
            point, self.executors, self.memorizer, self.learner, self.evaluator, ingested
        )

    def release(self) -> None:
        """Drop what holds views on the segments: views keep their mapping, and a mapping its descriptor."""
        for page in self.pages:
            page.release()
        self.pages.clear()
        self.processes.clear()
        self.executors.clear()
        for name in ("memorizer", "learner", "evaluator", "homes", "crew"):
            del self.__dict__[name]

    def _make_process(self, post: Post) -> Process:
        settings, schedule = self._settings, self._settings.schedule
        lanes = [self._segments[name] for name in post.segments if name.startswith("lane-")]
        writes_lanes = any(role.startswith("executor") for role in post.roles)
        silences = [schedule.step_timeout_s] if writes_lanes else []
        if not writes_lanes or "learner" in post.roles:
            silences.append(schedule.update_timeout_s)
        pages = [ProgressPage(self._segments["control"].buffer, page * PAGE_BYTES) for page in post.pages]
        self.pages += pages

        def before_start(_epoch: int) -> None:
            # Only now the old writer is known to be dead.
            for lane in lanes if writes_lanes else ():
                begin_epoch(lane)

        supervision = settings.supervision
        return Process(
            lambda: self._nursery,
            post.name,
            ENTRY,
            lambda epoch: {
                **self._blueprint.spec(
                    post,
                    epoch,
                    {str(e.index): e.next_episodes for e in self.executors if f"executor-{e.index}" in post.roles},
                ),
                "crash": str(self._crash),
            },
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
            self._listener,
            before_start,
            watch=self._watch,
            stdout_path=str(self._crash / f"{post.name}.output"),
            oom_score_adj=500 if writes_lanes else 0,
        )
