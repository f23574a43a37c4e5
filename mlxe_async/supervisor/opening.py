"""The first words of a run in its log: what it is, and what it goes on from."""

from __future__ import annotations

from typing import Any

from mlxe_async.logs import events
from mlxe_async.settings import Settings, as_tables
from mlxe_async.supervisor.budget import Counters
from mlxe_async.supervisor.resuming import ResumePoint
from mlxe_async.supervisor.story import Story


def tell_start(
    story: Story, settings: Settings, about: dict[str, str], machine: dict[str, Any], *, resumed: bool
) -> None:
    """The run begins, with these settings, versions and host."""
    story.emit(
        events.RunStart(
            seed=settings.run.seed,
            schedule=settings.schedule.kind,
            algorithm=settings.algorithm.name,
            env=settings.task.env,
            settings=as_tables(settings),
            versions=about,
            host=machine,
            python_path=list(settings.run.python_path),
            modules=sorted({module for _, module in settings.named_modules()}),
            resumed=resumed,
        )
    )


def tell_resume(story: Story, point: ResumePoint, counters: Counters, gap_ns: int | None) -> None:
    """The run goes on from `point`, with these counters; its clocks stood still for `gap_ns`, None if unknown."""
    state = point.state
    story.emit(
        events.RunResume(
            checkpoint=int(point.whole.number if point.whole else 0),
            version=point.version,
            env_steps=counters.env_steps,
            episodes=counters.episodes,
            updates=counters.updates,
            seconds=state["budget"]["seconds"],
            previous_run_died=not point.log.has_last_word,
            changed=point.told,
            exact=point.exact,
            void_from=state.get("log", {}).get("next_seq"),
            void_to=point.log.next_seq - 1,
            gap_ns=gap_ns,
        )
    )
    for change in point.told:
        story.warn(f"the run goes on with another {change}")
