"""The first words of a run in its log: what it is, and what it goes on from."""

from __future__ import annotations

from dataclasses import replace
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


class Resumption:
    """The word that a run goes on, said once all roles have told whether they go on where they were.

    Args:
        story: tells the log.
        point: what the run goes on from.
        counters: of the run, as they were there.
        gap_ns: for so long its clocks stood still; None if unknown.
    """

    def __init__(self, story: Story, point: ResumePoint, counters: Counters, gap_ns: int | None) -> None:
        self._story, self._is_told = story, False
        self._event = events.RunResume(
            checkpoint=int(point.whole.number if point.whole else 0),
            version=point.version,
            env_steps=counters.env_steps,
            episodes=counters.episodes,
            updates=counters.updates,
            seconds=point.state["budget"]["seconds"],
            previous_run_died=not point.log.has_last_word,
            changed=point.told,
            void_from=point.state.get("log", {}).get("next_seq"),
            void_to=point.log.next_seq - 1,
            gap_ns=gap_ns,
        )

    def tell(self, *, exact: bool) -> None:
        """Tell it, the first time."""
        if self._is_told:
            return
        self._is_told = True
        self._story.emit(replace(self._event, exact=exact))
        for change in self._event.changed:
            self._story.warn(f"the run goes on with another {change}")
