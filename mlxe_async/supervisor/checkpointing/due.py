"""When a checkpoint of the whole run is due: by seconds, and by environment steps."""

from __future__ import annotations

import time
from collections import deque

from mlxe_async.settings import Checkpoint
from mlxe_async.supervisor.plan.budget import Counters

RECENT_ROUNDS = 8


class CheckpointDue:
    """Counts from one checkpoint to the next.

    Args:
        table: the settings' `[checkpoint]`.
        counters: the run's counters.
        round_rows: most steps that are counted from one boundary to the next, None where that is not known.
    """

    def __init__(self, table: Checkpoint, counters: Counters, round_rows: int | None) -> None:
        self._table, self._counters, self._round_rows = table, counters, round_rows
        self._boundary_steps, self._recent = counters.env_steps, deque[int](maxlen=RECENT_ROUNDS)
        self.saving_s = 0.0
        "Seconds in which the run waited for checkpoints."
        self.note_saved()

    def note_saved(self) -> None:
        """Count the intervals from here."""
        self._saved_at, self._saved_steps = time.monotonic(), self._counters.env_steps

    def note_boundary(self) -> None:
        """A round of the schedule has ended."""
        steps = self._counters.env_steps
        if steps > self._boundary_steps:
            self._recent.append(steps - self._boundary_steps)
            self._boundary_steps = steps

    def now(self) -> bool:
        """Return whether it is time to save."""
        table, steps = self._table, self._counters.env_steps - self._saved_steps
        waited = time.monotonic() - self._saved_at
        by_time = table.interval_s and waited >= table.interval_s and steps > 0
        by_steps = table.interval_steps and steps > 0 and steps + self._next_round() > table.interval_steps
        return bool(by_time or by_steps)

    def _next_round(self) -> int:
        """Steps that may be counted until the next boundary: what would lead past the interval is saved before it.

        Where a round may be longer than the interval, which then cannot be kept for certain, it is taken to be as long
        as the longest of the last ones.
        """
        if self._round_rows is not None and self._round_rows <= self._table.interval_steps:
            return self._round_rows
        return max(self._recent, default=1)
