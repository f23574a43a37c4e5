"""The rows that a rollout has, and the rollouts that come together before an update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlxe_async.memory.rollouts import RolloutShape
from mlxe_async.rows import RowLayout

SLOTS_PER_EXECUTOR = 4
SHORT_EPISODE, LEAST_KEPT = 10, 256  # rows
WAITING_BYTES = 1 << 28  # of rollouts that wait for their own end, or for others before an update


@dataclass(frozen=True)
class RolloutSizes:
    """Sizes of the rollouts of one run.

    Args:
        executors: how many there are.
        envs: environments of each.
        columns: of a row, as JSON.
        sync: what ends a rollout: `"episode"`, `"rollout"` (its steps) or `"either"`.
        rollout_steps: most steps of an environment in a rollout; None: as many as an episode has.
        episode_steps: most steps of an episode; None: any number.
        rows_per_update: rows that an update waits for; 0: for none.
        pushes: updates are of one executor each, not of all.
    """

    executors: int
    envs: int
    columns: list[dict[str, Any]]
    sync: str
    rollout_steps: int | None
    episode_steps: int | None
    rows_per_update: int
    pushes: bool

    @property
    def steps(self) -> int | None:
        """Most steps of an environment in one rollout; None: an episode may have any number."""
        return self.rollout_steps or self.episode_steps or None

    @property
    def least_rows(self) -> int:
        """Rows of whole episodes that an executor delivers together, at least; 0: each episode by itself."""
        return self.rows_per_update if self.pushes and self.sync == "episode" else 0

    @property
    def rows(self) -> int | None:
        """Most rows of one rollout; None: an episode may have any number of steps."""
        return None if self.steps is None else self.steps * self.envs + max(0, self.least_rows - 1)

    def rows_of_a_segment(self, most: int) -> int:
        """Rows kept of one rollout of an environment: all that may wait in the staging areas, at most `most`."""
        waiting = WAITING_BYTES // (self._layout.nbytes(1) * self.executors * self.envs)
        return min(self.steps or most, max(LEAST_KEPT, waiting))

    def memory_shape(self, capacity_rows: int, max_rollouts: int | None) -> RolloutShape:
        """Sizes of a memory of rollouts.

        Args:
            capacity_rows: most rows of a rollout of episodes without a limit.
            max_rollouts: of one executor in an iteration; None: an iteration has no such bound.
        """
        # Those of one iteration come in while the learner's are not yet given back; no executor may wait for room,
        # because the slowest must deliver.
        slots = SLOTS_PER_EXECUTOR if max_rollouts is None else 2 * max_rollouts
        slot_rows = self.rows or capacity_rows
        return RolloutShape(
            lanes=self.executors,
            envs=self.envs,
            slots=slots * self.executors + self._gathered_slots(slot_rows),
            slot_rows=slot_rows,
            columns=self.columns,
        )

    def _gathered_slots(self, slot_rows: int) -> int:
        """Slots for the rollouts that come together before an update; 0 where they do not wait for each other."""
        if not self.rows_per_update or self.pushes:
            return 0
        if self.sync == "rollout":
            return -(-self.rows_per_update // (self.rows or 1))
        shortest = SHORT_EPISODE
        if self.rollout_steps is not None:
            shortest = min(shortest, (self.rollout_steps + 1) // 2)  # on average, as one more row is left of each
        return min(-(-self.rows_per_update // shortest), max(1, WAITING_BYTES // self._layout.nbytes(slot_rows)))

    @property
    def _layout(self) -> RowLayout:
        return RowLayout.from_json(self.columns)
