"""A task's single environment comes from gymnasium's registry, or from EnvPool where only that has it.

Tests, `play` and `eval` step single environments. Of a task of EnvPool's that is gymnasium's own of the same id, as
with native vectors; where gymnasium has none, cannot make it here, or has one of other spaces, one game of EnvPool's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from mlxe_async.errors import TaskError
from mlxe_async.rows import Spaces
from mlxe_async.settings.task import ATARI, POOL, Task
from mlxe_async.tasks import pools
from mlxe_async.tasks.hostile import one_line, words_of
from mlxe_async.tasks.making import find_spec, read_spaces


def spec_of(task: Task) -> EnvSpec:
    """The entry of a task's single environment.

    Raises:
        TaskError: there is none, see `making.find_spec` and `pools.look_up`.
    """
    return _source(task)[0] if task.vectorize == POOL else find_spec(task.env)


def remark_of(task: Task) -> list[str]:
    """Say why gymnasium's environment of this name does not stand for EnvPool's in tests, where there is one."""
    return [why] if task.vectorize == POOL and (why := _source(task)[1]) else []


def _source(task: Task) -> tuple[EnvSpec, str]:
    pools.refuse(task)
    entry = pools.look_up(task)
    if task.env.startswith(ATARI):
        return find_spec(task.env), ""
    own = EnvSpec(
        id=task.env,
        entry_point=PoolEnv,  # type: ignore[arg-type]  # its first argument is among `kwargs`
        kwargs={"pool": entry, "limit": task.max_episode_steps},
        max_episode_steps=entry.max_episode_steps,
        reward_threshold=entry.reward_threshold,
    )
    registered = gymnasium.registry.get(task.env)
    if registered is None:
        return own, ""
    given = {key: value for key, value in pools.single_kwargs(task).items() if key != "render_mode"}
    if why := _why_not_registered(task.env, json.dumps(given, sort_keys=True), entry):
        return own, f"tests, play and eval step EnvPool's {task.env}, for gymnasium's own {why}"
    return registered, ""


@functools.lru_cache(maxsize=8)
def _why_not_registered(env_id: str, kwargs: str, entry: pools.Entry) -> str:
    """Why gymnasium's environment cannot stand for EnvPool's; empty if it can."""
    bare = dataclasses.replace(gymnasium.registry[env_id], order_enforce=False, disable_env_checker=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = gymnasium.make(bare, max_episode_steps=-1, **json.loads(kwargs))
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it is told, and the other is stepped
        return f"cannot be made here: {one_line(words_of(error))}"
    try:
        theirs, ours = _spaces(env, env_id), _spaces(PoolEnv(pool=entry), env_id)
        return (
            "" if _alike(theirs, ours) else f"shows {one_line(str(env.observation_space))} and takes {env.action_space}"
        )
    finally:
        with contextlib.suppress(Exception):  # it was made to be looked at
            env.close()


def _spaces(env: gymnasium.Env[Any, Any], env_id: str) -> Spaces | None:
    """Return what it shows and takes; None where nothing here can use it."""
    try:
        return read_spaces(env, Task(env=env_id))[0]
    except TaskError:
        return None


def _alike(one: Spaces | None, other: Spaces | None) -> bool:
    if one is None or other is None:
        return False
    same = ("observation_shape", "observation_dtype", "parts", "actions", "action_shape", "action_kind")
    more = ("action_sizes", "action_starts", "observation_sizes")
    bounds = ("action_low", "action_high")
    return all(getattr(one, name) == getattr(other, name) for name in (*same, *more)) and all(
        np.allclose(getattr(one, name), getattr(other, name)) for name in bounds
    )


class PoolEnv(gymnasium.Env[Any, Any]):
    """One game of EnvPool as an ordinary environment; it is made anew where it is seeded.

    Args:
        pool: what EnvPool knows of it.
        limit: steps of an episode, where rewards or observations depend on them.
        render_mode: `"rgb_array"`, `"human"` or None.
        kwargs: arguments for EnvPool.
    """

    metadata = {"render_modes": ["rgb_array", "human"]}  # noqa: RUF012 - gymnasium's own form

    def __init__(
        self, pool: pools.Entry, limit: int | None = None, render_mode: str | None = None, **kwargs: Any
    ) -> None:
        self.render_mode, self.stacked_frames = render_mode, pool.frames
        self.observation_space, self.action_space = pool.observation_space, pool.action_space
        given = {**kwargs, **({"render_mode": render_mode} if render_mode else {})}
        # Who steps it counts, wherever that comes to the same.
        self._pool = pools.Pool(pool, given, 1, limit=pools.ENDLESS if pool.counts else limit)
        self._begun = False

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002 - gymnasium's own form
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; without a seed as the last ones lead to it."""
        super().reset(seed=seed)
        if seed is None and self._begun:
            obs, info = self._pool.restart(np.ones(1, np.bool_))
        else:
            obs, info = self._pool.reset(seed=int(self.np_random.integers(2**31)) if seed is None else seed)
        self._begun = True
        return _first(obs), _first(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step of the game."""
        obs, reward, terminated, truncated, info = self._pool.step(np.asarray(action)[None])
        return _first(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), _first(info)

    def render(self) -> Any:
        """A picture of the game."""
        return self._pool.render()

    def close(self) -> None:
        """Let go of the game."""
        self._pool.close()


def _first(found: Any) -> Any:
    """Return the first entry of arrays (1, ...), also in dictionaries."""
    if isinstance(found, dict):
        return {key: _first(value) for key, value in found.items()}
    return np.asarray(found)[0]
