"""What must be known of episodes under way so that they can be lived again."""

from __future__ import annotations

import numpy as np

from mlxe_async.rows import Array

MOST_RELIVED = 200_000


class History:
    """The actions of episodes that are under way between two rollouts, so that these can be lived again.

    Args:
        envs: number of environments.
        finished: where `finished` is kept (B,); None: in memory of its own.
    """

    def __init__(self, envs: int, finished: Array | None = None) -> None:
        self.finished = np.zeros(envs, dtype=np.int64) if finished is None else finished
        "Finished episodes of the run, as each environment was told at its reset."
        self._earlier: list[list[Array]] = [[] for _ in range(envs)]  # of former rollouts, an array (t, ...) each
        self._now: list[Array] = []  # of this rollout, an array (B, ...) for each step
        self._since = [0] * envs

    def begin(self, env: int, finished: int) -> None:
        """An episode begins."""
        self.finished[env] = finished
        self._earlier[env], self._since[env] = [], len(self._now)

    def note(self, action: Array) -> None:
        """One step of all environments (B, ...)."""
        self._now.append(action)

    def relived(self, env: int, actions: Array) -> None:
        """The episode was begun elsewhere, and these actions (t, ...) led to where it is."""
        self._earlier[env] = [actions]

    def forget_all_but(self, running: Array) -> None:
        """A rollout ended: keep what belongs to episodes that are under way (B,), as long as they are not too long."""
        now = np.stack(self._now) if self._now and running.any() else None
        for env, goes_on in enumerate(running.tolist()):
            if not goes_on:
                self._earlier[env] = []
            elif now is not None:
                self._earlier[env].append(now[self._since[env] :, env].copy())
                if sum(map(len, self._earlier[env])) > MOST_RELIVED:
                    self._earlier[env] = [now[:0, env]]
        self._now = []
        self._since = [0] * len(self._since)

    def actions_of(self, env: int) -> Array:
        """Actions (t, ...) of the episode that is under way; fewer than its steps when there were too many."""
        return np.concatenate(self._earlier[env]) if self._earlier[env] else np.zeros((0,), dtype=np.int64)
