"""Everybody who takes part in a run, put together: processes and handles, who saves, who looks after the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mlxe_async.ipc.nursery import Nursery
from mlxe_async.ipc.segments import Segment
from mlxe_async.ipc.words import ProgressPage
from mlxe_async.rows import Array
from mlxe_async.settings import Settings
from mlxe_async.supervisor.checkpointing.resume_point import ResumePoint
from mlxe_async.supervisor.checkpointing.whole import Keeper
from mlxe_async.supervisor.handles.context import Crew
from mlxe_async.supervisor.measures import Measures
from mlxe_async.supervisor.monitoring.affinity import Placing
from mlxe_async.supervisor.monitoring.crashes import Crashes
from mlxe_async.supervisor.monitoring.loop_lag import starved, watch_lag
from mlxe_async.supervisor.monitoring.periodic import Housekeeping
from mlxe_async.supervisor.monitoring.status import memory_of, progress_of
from mlxe_async.supervisor.monitoring.stragglers import Stragglers
from mlxe_async.supervisor.process_events import Listener
from mlxe_async.supervisor.staff import Staff
from mlxe_async.supervisor.startup.blueprint import Blueprint
from mlxe_async.supervisor.startup.run_files import Opened


class Team:
    """Made, but nobody is started.

    Args:
        settings: the run's settings.
        blueprint: which process holds which roles, and which bytes they share.
        segments: these bytes, by name.
        nursery: forks the processes.
        opened: the run's log, folder and checkpoints.
        measures: the run's counters, budget and clocks.
        published: the newest version and its weights (P,), None before the first.
        former_rows: taken in by a memory that this run does not go on with.
        disk: where blocking work is done.
    """

    def __init__(
        self,
        settings: Settings,
        blueprint: Blueprint,
        segments: Mapping[str, Segment],
        nursery: Nursery,
        opened: Opened,
        measures: Measures,
        *,
        published: Callable[[], tuple[int, Array] | None],
        former_rows: int,
        disk: ThreadPoolExecutor,
    ) -> None:
        self._settings, self._blueprint, self._segments = settings, blueprint, segments
        self._opened, self._measures = opened, measures
        self._drain = asyncio.Event()
        folder, story, pages = opened.folder, opened.story, list[ProgressPage]()
        crashes = Crashes(blueprint, segments, pages, folder.path, lambda: folder.crash_path, story)
        crew = Crew(
            measures.budget,
            measures.counters,
            measures.bell,
            story,
            free_running=blueprint.traits.free_running,
            deterministic=blueprint.traits.deterministic,
            recorder=opened.recorder,
            crashes=crashes,
        )
        self.staff = staff = Staff(
            settings,
            blueprint,
            segments,
            nursery,
            crew,
            Listener(
                story,
                measures.counters,
                self._drain,
                crashes,
                {post.name: post.roles for post in blueprint.posts},
                opened.recorder,
            ),
            crash=folder.crash_path,
            judged=opened.saver.tested,
            solved=lambda version, flat: opened.solved.note(version, flat, crew.publications.get(version)),
            cpu_seconds=lambda: measures.cpu_seconds(without="mlxe-eval"),
        )
        pages += staff.pages
        self.keeper = Keeper(
            settings,
            crew,
            opened.saver,
            executors=staff.executors,
            memorizer=staff.memorizer,
            learner=staff.learner,
            evaluator=staff.evaluator,
            homes=staff.homes,
            published=published,
            round_rows=blueprint.round_rows,
            more=self._facts_to_keep,
            disk=disk,
        )
        measures.budget.at_boundary, measures.budget.is_boundary_due = self.keeper.at_boundary, self.keeper.is_due
        self.housekeeping = Housekeeping(
            settings,
            folder,
            blueprint,
            segments,
            staff,
            story=story,
            budget=measures.budget,
            bell=measures.bell,
            progress=self.progress,
            look_at_cpu=measures.look_at_cpu,
            former_rows=former_rows,
        )

    def restore(self, point: ResumePoint) -> None:
        """Let the handles go on from there."""
        memory = memory_of(self._blueprint, self._segments)
        self.staff.restore(point, sum(lane["rows"] for lane in memory.ledger()))

    def progress(self) -> dict[str, Any]:
        """How far the run is; see `Supervisor.progress`."""
        measures, staff = self._measures, self.staff
        measures.counters.episodes_started = staff.episodes_started()
        return progress_of(
            measures.counters, measures.budget, self._opened.story, staff.memorizer, measures.cpu.by_name()
        )

    def beside(self, *, drains: bool) -> list[Coroutine[Any, Any, None]]:
        """What goes on beside the schedule; `drains`: lanes are emptied when they fill up."""
        keeping, staff, story = self.housekeeping, self.staff, self._opened.story
        tasks = [keeping.keep_status(), keeping.keep_ledger(), keeping.keep_time(), watch_lag(story)]
        tasks.append(starved(staff, story))
        if drains:
            tasks.append(keeping.keep_draining(self._drain))
        if self._blueprint.learner_threads == 1 and self._settings.learner.own_core:
            tasks.append(Placing(self._settings.learner.own_core, self._measures.living, story).keep())
        if self._settings.schedule.kind != "serial":
            pages = [staff.pages[self._blueprint.page_of(f"executor-{e.index}")] for e in staff.executors]
            tasks.append(Stragglers(staff.executors, pages, story, self._blueprint.envs).watch())
        return tasks

    def release(self) -> None:
        """Let go of everybody, who hold each other: the garbage collector may come by only long after."""
        budget = self._measures.budget
        budget.at_boundary, budget.is_boundary_due = None, lambda: False
        self.staff.release()
        del self.staff, self.keeper, self.housekeeping

    def _facts_to_keep(self) -> dict[str, Any]:
        shape = self._blueprint.memory_to_keep
        kept = self._measures.to_keep(self._opened.journal.next_seq)
        return {"memory_shape": shape, **kept, "solved_at": self._opened.solved.at}
