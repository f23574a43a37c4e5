"""The moment when a run's task was solved, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxe_async.logs import events
from mlxe_async.rows import Array
from mlxe_async.supervisor.budget import Budget
from mlxe_async.supervisor.saving import Saver
from mlxe_async.supervisor.story import Story


class Solved:
    """Whether the task was solved, and by which version.

    Args:
        story: tells the log.
        saver: saves the weights that solved it.
        budget: may end by it.
    """

    def __init__(self, story: Story, saver: Saver, budget: Budget) -> None:
        self._story, self._saver, self._budget = story, saver, budget
        self.at: dict[str, Any] | None = None
        "The version, and the counters when it was published; None as long as the task is not solved."

    def note(self, version: int, flat: Array, published: Mapping[str, Any] | None) -> None:
        """A version with weights (P,) solves the task; `published`: the counters then, None if they are not known."""
        if published is None:
            return
        self.at = {"version": version, **published}
        self._story.emit(events.Solved(version=version, **published))
        self._saver.save(version, flat, solved_at=self.at, solved=True)
        self._budget.note_solved()
