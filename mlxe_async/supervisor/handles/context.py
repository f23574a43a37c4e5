"""What the handles of one run share: counters, budget, log, and what is known of each published version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlxe_async.supervisor.budget import Bell, Budget, Counters
from mlxe_async.supervisor.event_log import EventLog
from mlxe_async.supervisor.monitoring.crashes import Crashes
from mlxe_async.supervisor.recording.steps import NoRecorder, Recorder

_FIELDS = np.dtype(
    [
        ("version", "i8"),
        ("episodes_started", "i8"),
        ("env_steps", "i8"),
        ("updates", "i8"),
        ("seconds", "f8"),
        ("cpu_seconds", "f8"),
        ("published_ns", "i8"),
    ]
)
_NAMES = _FIELDS.names or ()


class Publications:
    """The newest versions, and those that were put under test, in memory that does not grow.

    Args:
        newest: so many of the newest versions are known.
    """

    def __init__(self, newest: int = 4096) -> None:
        self._rows = np.zeros(newest, _FIELDS)
        self._rows["version"] = -1
        self._held: dict[int, dict[str, Any]] = {}

    def note(self, version: int, about: Mapping[str, Any]) -> None:
        """A version was published when the run was so far."""
        self._rows[version % len(self._rows)] = (version, *(about[name] for name in _NAMES[1:]))

    def hold(self, version: int) -> None:
        """A version is put under test: it must be known for as long as the verdict may take."""
        about = self.get(version)
        if about is not None:
            self._held[version] = about

    def release(self, still: Collection[int]) -> None:
        """The verdicts on all versions that were held are there, but for those that are `still` needed."""
        self._held = {version: about for version, about in self._held.items() if version in still}

    def get(self, version: int) -> dict[str, Any] | None:
        """What was noted of it, None if that is not known any more."""
        if version in self._held:
            return dict(self._held[version])
        row = self._rows[version % len(self._rows)].tolist()
        return dict(zip(_NAMES[1:], row[1:], strict=True)) if row[0] == version else None


@dataclass
class HandleContext:
    """What the handles of one run share.

    Args:
        budget: counts and says when to stop.
        counters: the run's counters.
        bell: rung whenever something changed that somebody may be waiting for.
        log: tells the log.
        free_running: nobody waits for a phase to end (`oa`).
        deterministic: what a dead executor left unfinished is generated again, to the same rows.
        recorder: hears all that a replay would have to do alike.
        crashes: knows where dead executors were; None: nobody asks.
        is_checkpoint_due: whether a learner that waits for something to learn from should rather let the run save.
    """

    budget: Budget
    counters: Counters
    bell: Bell
    log: EventLog
    free_running: bool
    deterministic: bool
    recorder: Recorder = field(default_factory=NoRecorder)
    crashes: Crashes | None = None
    is_checkpoint_due: Callable[[], bool] = lambda: False
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
