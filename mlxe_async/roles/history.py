"""What must be known of episodes so that they can be lived again."""

from __future__ import annotations

import sys

import numpy as np

from mlxe_async.rows import Array

MOST_RELIVED = 200_000
MOST_PROVEN = 20_000  # an ended episode that is longer is not lived again to see whether it can be


class History:
    """The actions of each environment's present or last episode between two rollouts, so that it can be lived again.

    Args:
        envs: number of environments.
        finished: where `finished` is kept (B,); None: in memory of its own.
        most: most steps of a rollout that are noted; None: all.
    """

    def __init__(self, envs: int, finished: Array | None = None, most: int | None = None) -> None:
        self.finished = np.zeros(envs, dtype=np.int64) if finished is None else finished
        "Finished episodes of the run, as each environment was told at its reset."
        self._earlier: list[list[Array]] = [[] for _ in range(envs)]  # of former rollouts, an array (t, ...) each
        self._now: list[Array] = []  # of this rollout, an array (B, ...) for each step
        self._since = [0] * envs
        self._ended: list[list[Array] | None] = [None] * envs  # the last steps, as noted, of an episode that is over
        self._most = sys.maxsize if most is None else most

    def begin(self, env: int, finished: int) -> None:
        """An episode begins."""
        self.finished[env] = finished
        self._earlier[env], self._since[env], self._ended[env] = [], len(self._now), None

    def note(self, action: Array) -> None:
        """One step of all environments (B, ...)."""
        if len(self._now) < self._most:
            self._now.append(action)

    def end(self, env: int) -> None:
        """The episode ended by itself with the step that was noted last."""
        self._ended[env] = self._now[self._since[env] :]

    def relived(self, env: int, actions: Array) -> None:
        """The episode was begun elsewhere, and these actions (t, ...) led to where it is, or was when it ended."""
        self._earlier[env] = [actions]

    def noted(self) -> Array | None:
        """The actions (t, B, ...) of this rollout; None where there are none."""
        return np.stack(self._now) if self._now else None

    def over(self) -> Array:
        """Environments (B,) whose episode ended, and that have begun no other one since."""
        return np.array([ended is not None for ended in self._ended])

    def forget_all_but(self, running: Array, now: Array | None = None) -> None:
        """A rollout ended: keep what belongs to episodes that are under way (B,), as long as they are not too long.

        Args:
            running: which these are.
            now: as `noted`, if that is known already.
        """
        if now is None and running.any():
            now = self.noted()
        for env, goes_on in enumerate(running.tolist()):
            if not goes_on:
                if self._ended[env] is None:
                    self._earlier[env] = []
            elif now is not None:
                self._earlier[env].append(now[self._since[env] :, env].copy())
                if sum(map(len, self._earlier[env])) > MOST_RELIVED:
                    self._earlier[env] = [now[:0, env]]
        self._now = []
        self._since = [0] * len(self._since)

    def actions_of(self, env: int) -> Array:
        """Actions (t, ...) of the present or last episode; fewer than its steps when there were too many."""
        ended = self._ended[env]
        parts = [*self._earlier[env], *([np.stack(ended)[:, env]] if ended else [])]
        return np.concatenate(parts) if parts else np.zeros((0,), dtype=np.int64)
