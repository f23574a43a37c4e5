"""What the handles of one run share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mlxe_async.supervisor.budget import Bell, Budget, Counters
from mlxe_async.supervisor.crashes import Crashes
from mlxe_async.supervisor.publications import Publications
from mlxe_async.supervisor.recording import NoRecorder, Recorder
from mlxe_async.supervisor.story import Story


@dataclass
class Crew:
    """What the handles of one run share.

    Args:
        budget: counts and says when to stop.
        counters: the run's counters.
        bell: rung whenever something changed that somebody may be waiting for.
        story: tells the log.
        free_running: nobody waits for a phase to end (`oa`).
        alike: what a dead executor left unfinished is generated again, alike (all but `ia` and `oa`).
        recorder: hears all that a replay would have to do alike.
        crashes: knows where dead executors were; None: nobody asks.
    """

    budget: Budget
    counters: Counters
    bell: Bell
    story: Story
    free_running: bool
    alike: bool
    recorder: Recorder = field(default_factory=NoRecorder)
    crashes: Crashes | None = None
    publications: Publications = field(default_factory=Publications)
    """How far the run was when each version was published."""
    returns: dict[int, list[float]] = field(default_factory=dict)
    """Returns of the episodes finished lately, by the version they were played under."""
    delivered: set[int] = field(default_factory=set)
    """Executors that have delivered in the round that is under way."""
    excused: set[int] = field(default_factory=set)
    """Executors that had delivered already in the round in which the run was interrupted."""

    async def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition; False when the run is ending.

        Only the schedules look at the budget itself: where they wait for each other, a round that was begun is finished
        by all.
        """
        if not (condition() or self.ending):
            await self.bell.wait_until(lambda: condition() or self.ending)
        return not self.ending

    @property
    def ending(self) -> bool:
        """Whether the budget has run out."""
        return self.budget.reason is not None

    def training_result(self, version: int) -> float | None:
        """Mean return of the episodes finished under a version since this was last asked; all others are forgotten."""
        returns = self.returns.get(version)
        self.returns.clear()
        # Sorted, because the sum must not depend on who was faster.
        return float(np.mean(sorted(returns))) if returns else None
