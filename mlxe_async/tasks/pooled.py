"""Environments of EnvPool as training steps them: `[task] vectorize = "envpool"`.

An environment whose world ended is reset by EnvPool in the next step, which is no row; one that we stopped at its limit
is begun again at once. Both are told from EnvPool's own count of steps, which must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from mlxe_async.errors import TaskError
from mlxe_async.rows import Array
from mlxe_async.tasks import checks, pools
from mlxe_async.tasks.batches import Batches
from mlxe_async.tasks.hostile import described
from mlxe_async.tasks.native import NativeTask


class PooledTask(NativeTask):
    """B environments of EnvPool.

    Args:
        task: the `[task]` table; see `VectorTask`.
        count: B.
        threads: on which they are stepped; `task.kwargs.num_threads` says otherwise.

    Raises:
        TaskError: EnvPool is missing, or has no such environment, or it is to be changed in ways that only single
            environments can be.
        EnvironmentFault: a constructor raised (`phase` is `"make"`).
    """

    def __init__(self, task: Mapping[str, Any], count: int, *, threads: int = 1) -> None:
        self._threads = threads
        self._pool: pools.Pool
        self._batches: Batches | None = None
        super().__init__(task, count)

    def _refuse(self) -> None:
        pools.refuse(self._task)
        self._entry = pools.look_up(self._task)

    def _refuse_spaces(self, single: gymnasium.Env[Any, Any]) -> None:
        theirs: Any = single.unwrapped.action_space
        if self._task.is_preprocessed and int(theirs.n) != int(self._entry.action_space.n):
            raise TaskError(
                f"task.env: {self._task.env} has {theirs.n} actions, in EnvPool {self._entry.action_space.n}; set "
                'task.vectorize = "single"'
            )
        self._batches = None if self._packing is None else Batches(self._packing)

    def _made(self) -> Any:
        limit = self._task.max_episode_steps or self._spec.max_episode_steps
        given = pools.arguments(self._task)
        self._pool = pools.Pool(self._entry, given, self.count, limit=limit, threads=self._threads)
        return self._pool

    # --- what they show ---------------------------------------------------------------------------------------------

    def _taken(self, obs: Any, info: Any, over: Array | None = None) -> Array:
        shown = self._rows(obs, info, self.count, over)
        if self._task.is_preprocessed:
            self._blank(shown, self._pool.steps)
        return shown

    def _blank(self, pictures: Array, steps: Array) -> None:
        """Pictures of before the episode are black, as those of single games are; EnvPool repeats the first one."""
        stack = pictures.shape[1]
        for env in np.flatnonzero(steps < stack - 1):
            pictures[env, : stack - 1 - steps[env]] = 0

    def _rows(self, obs: Any, info: Any, rows: int, over: Array | None) -> Array:
        """Observations (rows, O) as stored."""
        if self._batches is not None:
            return self._own_copy(self._batches.take(obs, info, rows, over))
        if self._task.channels_first:
            obs = np.moveaxis(np.asarray(obs), -1, 1)
        if self._task.hide:
            obs = np.delete(np.asarray(obs), self._task.hide, axis=1)
        return self._own_copy(checks.observation(obs, (rows, *self._shape), self._dtype, None)[0])

    def _between_episodes(self, obs: Any, info: Any, over: Array) -> tuple[Array, Array, Array, Array]:
        began, expired = self._over, self._pool.expired
        elapsed = info.get("elapsed_step") if isinstance(info, Mapping) else None
        if elapsed is None or not np.array_equal(np.asarray(elapsed) == 0, began):
            raise checks.Broken(
                f"elapsed_step: expected 0 exactly where an episode ended before, got {described(elapsed)}"
            )
        shown = start = self._taken(obs, info, over)
        self._over = over & ~expired
        if expired.any():
            first, about = self._guarded("reset", lambda: self._pool.restart(expired))
            start = shown.copy()
            start[expired] = self._rows(first, about, int(expired.sum()), None)
            if self._task.is_preprocessed:
                self._blank(start, self._pool.steps)
        return shown, start, began | expired, ~began

    def _for_environments(self, actions: Array) -> Array:
        if self.spaces.action_kind == "box" or self._chosen is not None or self.spaces.actions is not None:
            return super()._for_environments(actions)
        numbered: Array = np.asarray(actions) + np.asarray(getattr(self._entry.action_space, "start", 0))
        return numbered
