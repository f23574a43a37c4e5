"""When a task counts as solved: how many tested versions in a row must pass, or how long an episode must last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlxe_async.logs import events
from mlxe_async.rows import Array
from mlxe_async.supervisor.checkpointing.weights import WeightsSaver
from mlxe_async.supervisor.plan.budget import Budget
from mlxe_async.supervisor.plan.event_log import EventLog


class SolvedJudge:
    """Solved means: several tested versions in a row pass, counted at the first of them.

    One passing version is close to a lottery: of untrained networks one in forty or so passes by luck, and a version
    that passes is often lost again a few updates later.

    Args:
        passes: how many in a row.
    """

    def __init__(self, passes: int) -> None:
        self._passes = passes
        self.streak: list[int] = []
        """The versions that passed in a row: the first ones, and no more than it takes, or it would grow for ever."""
        self.length = 0
        """How many have passed in a row."""

    def go_on(self, streak: list[int], length: int | None = None) -> None:
        """Take up the versions that have passed in a row so far, of which there may be more than are named."""
        self.length = len(streak) if length is None else length
        self.streak = list(streak[: self._passes])

    def feed(self, version: int, *, passed: bool) -> int | None:
        """Hear the verdict on one version; returns the first version of the row once it is long enough."""
        if not passed:
            self.streak, self.length = [], 0
            return None
        self.length += 1
        if len(self.streak) < self._passes:
            self.streak.append(version)
        return self.streak[0] if self.length >= self._passes else None


class Solved:
    """Whether the task was solved, and by which version.

    Args:
        log: tells the log.
        saver: saves the weights that solved it.
        budget: may end by it.
    """

    def __init__(self, log: EventLog, saver: WeightsSaver, budget: Budget) -> None:
        self._log, self._saver, self._budget = log, saver, budget
        self.at: dict[str, Any] | None = None
        "The version, and the counters when it was published; None as long as the task is not solved."

    def note(self, version: int, flat: Array, published: Mapping[str, Any] | None) -> None:
        """A version with weights (P,) solves the task; `published`: the counters then, None if they are not known."""
        if published is None:
            return
        self.at = {"version": version, **published}
        self._log.emit(events.Solved(version=version, **published))
        self._saver.save(version, flat, solved_at=self.at, solved=True)
        self._budget.note_solved()


class LongEpisode:
    """How far the run was when the first long training episode began, and when it was through.

    While it goes on, everybody else goes on too: what it took to learn it are the counts at its beginning.

    Args:
        steps: so long is long.
        log: is told.
        now: the counts of this moment.
    """

    def __init__(self, steps: int, log: EventLog, now: Callable[[], dict[str, Any]]) -> None:
        self._steps, self._log, self._now = steps, log, now
        self._told = False

    def now(self) -> dict[str, Any] | None:
        """The counts of this moment; None once they will not be asked for any more."""
        return None if self._told else self._now()

    def ended(self, executor: int, lengths: list[int], version: int, began: list[dict[str, Any] | None]) -> None:
        """Episodes of an executor are through, which began at those moments."""
        found = next((place for place, length in enumerate(lengths) if length >= self._steps), None)
        if found is None or self._told:
            return
        self._told = True
        told = events.LongEpisode(lengths[found], version, began[found] or {}, self._now())
        self._log.emit(told, "executor", executor)
