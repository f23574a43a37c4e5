"""Environments that come as a whole vector, stepped by one call: gymnasium's `make_vec` with `vector_entry_point`.

A vector resets its environments by itself, in one of gymnasium's three ways, and none of them may make a transition
that never happened:

    same step   the observation that ended the episode is in `final_obs`, the one returned is the next episode's first;
                chosen wherever the vector lets us choose.
    next step   the step after an episode's end ignores the action and resets: that is no row, and `ok` is False there.
    disabled    we reset those that ended, by `reset_mask`.

What `VectorTask` checks environment by environment is checked here for all at once. A vector has no parts that could be
replaced: after a fault of any of its environments all of it is made anew, and all its episodes are over.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode

from mlxe_async.errors import EnvironmentFault, TaskError
from mlxe_async.rows import Array
from mlxe_async.settings.task import Task, task_of
from mlxe_async.tasks import atari, cartpole, checks
from mlxe_async.tasks.changes import ActionChanges
from mlxe_async.tasks.hostile import described, one_line, trace_of, words_of
from mlxe_async.tasks.making import find_spec, make, read_spaces
from mlxe_async.tasks.sources import spec_of
from mlxe_async.tasks.vector import Step


class NotForVectors(TaskError):
    """The spaces are such as only single environments may have."""


def why_not(task: Task) -> str:
    """Why a task cannot be stepped as a native vector; empty if it can."""
    if find_spec(task.env).vector_entry_point is None:
        return f"{task.env} has no vector environment of its own"
    single_only = ["wrappers", "channels_first", "observe", "action_mask", "hide"]
    if find_spec(task.env).vector_entry_point != cartpole.VECTOR:
        single_only.append("adverse_starts")
    for name in single_only:
        if getattr(task, name):
            return f"task.{name} is for environments that are stepped one by one"
    if task.is_preprocessed and (key := atari.single_only(task.atari)):
        return f"task.atari.{key} is for games that are stepped one by one"
    if task.single_only:
        return f"task.{task.single_only} is for environments that are stepped one by one"
    if task.history > 1:
        return "task.history is for environments that are stepped one by one"
    return ""


class NativeTask:
    """B environments that are one object.

    Args:
        task: the `[task]` table; see `VectorTask`.
        count: B.

    Raises:
        TaskError: the environment has no vector of its own, or the vector does not say how it resets, differs from the
            single environment, or cannot take `max_episode_steps`.
        EnvironmentFault: a constructor raised (`phase` is `"make"`).

    Attributes:
        spaces: what each environment shows and takes, features included.
        count: B.
        changes: charges for changes of action; None where they cost nothing.
        finished_episodes: of the whole run, on which adverse starts depend; the caller keeps it.
    """

    resets_itself = True

    def __init__(self, task: Mapping[str, Any], count: int) -> None:
        self._task, self.count = task_of(task), count
        self._refuse()
        self._spec = spec_of(self._task)
        self._seed: int | None = None
        self._ticks = self.finished_episodes = 0
        self.out_of_bounds = 0  # not checked: a vector's spaces are its own affair
        single = self._guarded("make", lambda: make(self._task, self._spec))
        try:
            self.spaces, self._aids, self._packing = read_spaces(single, self._task)
            self._refuse_spaces(single)
            self._chosen: Array | None = None
            if self._task.is_preprocessed and self._task.atari.actions:
                self._chosen = atari.places_of(single, self._task.atari)
            self._shape, action_space = tuple(single.observation_space.shape or ()), single.action_space
            self._takes = action_space
        finally:
            single.close()
        self._start = int(action_space.start) if isinstance(action_space, Discrete) else 0
        self._action_dtype = action_space.dtype
        if self.spaces.action_kind == "box":
            shape = self.spaces.action_shape
            self._exact = np.promote_types(np.float32, action_space.dtype)  # as in `VectorTask`
            self._low = np.array(self.spaces.action_low, self._exact).reshape(shape)
            self._high = np.array(self.spaces.action_high, self._exact).reshape(shape)
        self._dtype = np.dtype(self.spaces.observation_dtype)
        self._own = self._aids.own if self._aids.features else None
        self._acting = np.zeros((count, *self.spaces.observation_shape), self._dtype)
        self._over = np.zeros(count, dtype=bool)
        cost = self._task.action_change_cost
        self.changes = ActionChanges(cost, count, self.spaces) if cost else None
        self._vector = self._made()

    def take_notes(self) -> list[tuple[str, str]]:
        """Nothing: odd but harmless behaviour is told by single environments."""
        return []

    def begin(self, seed: int) -> Array:
        """Begin an episode of every environment.

        Returns:
            The first observations (B, O).

        Raises:
            EnvironmentFault: the vector raised or broke its contract; `rebuild` it.
        """
        self._seed, self._ticks = seed, 0
        if self.changes is not None:
            self.changes.begin(slice(None))
        # Vectors made of C++ take 32 bits, and count up from there.
        answer = self._guarded("reset", lambda: self._vector.reset(seed=seed % (2**31 - self.count)))
        try:
            obs = self._taken(*checks.two(answer))
            self._perhaps_move(obs, np.ones(self.count, dtype=bool))
            self._check_finite(obs)
        except checks.Broken as broken:
            raise self._fault(str(broken), "reset") from None
        self._over[:] = False
        self._acting = obs
        return obs.copy()

    def step(self, actions: Array) -> Step:
        """Step all environments once; those whose episodes end are reset by themselves.

        Args:
            actions: one per environment (B,) integers from 0, or (B, *action_shape), clipped to the space's bounds.

        Returns:
            The step, with `start` and `began`. After a fault `ok` is False everywhere, and the vector must be rebuilt.
        """
        self._ticks += 1
        try:
            answer = self._guarded("step", lambda: self._vector.step(self._for_environments(actions)))
            return self._read(actions, answer)
        except checks.Broken as broken:
            return self._broken_step(self._fault(str(broken), "step"))
        except EnvironmentFault as fault:
            return self._broken_step(fault)

    def rebuild(self, index: int = 0) -> None:  # noqa: ARG002 - the verb of `VectorTask`; here all are one
        """Close the vector, whatever it says to that, and make it anew; then `begin`."""
        self.close()
        self._vector = self._made()

    def close(self) -> None:
        """Close the vector; never raises."""
        with contextlib.suppress(BaseException):  # it is thrown away; what it says to that changes nothing
            self._vector.close()

    # --- what cannot be stepped so ----------------------------------------------------------------------------------

    def _refuse(self) -> None:
        """Refuse a task by its settings."""
        if why := why_not(self._task):
            raise TaskError(f'task.vectorize: got "native", but {why}; use "single" or "auto"')

    def _refuse_spaces(self, single: gymnasium.Env[Any, Any]) -> None:
        """Refuse a task by what one environment of it shows and takes."""
        if self._packing is not None or self.spaces.action_kind not in ("discrete", "box"):
            shown = one_line(str(single.observation_space))
            raise NotForVectors(
                f'task.vectorize: got "native", but {self._task.env} shows {shown} and takes '
                f"{self.spaces.action_name}, which only environments may that are stepped one by one; use "
                '"single" or "auto"'
            )

    # --- what a step says -------------------------------------------------------------------------------------------

    def _read(self, actions: Array, answer: Any) -> Step:
        obs, reward, terminated, truncated, info = checks.five(answer)
        terminated, truncated = self._flags("terminated", terminated), self._flags("truncated", truncated)
        raw = self._rewards(reward)
        next_obs, start, began, ok = self._between_episodes(obs, info, terminated | truncated)
        self._check_finite(next_obs)
        if start is not next_obs:
            self._check_finite(start)
        seen = raw.astype(np.float32)
        if self._task.shaped_reward:
            seen = self._aids.shaped_reward(self._acting, np.asarray(actions), next_obs, raw, terminated)
            if not np.isfinite(seen).all():
                env = int(np.flatnonzero(~np.isfinite(seen))[0])
                raise checks.Broken(f"reward of environment {env} as shaped: expected a finite number, got {seen[env]}")
        if self._task.clip_rewards:
            seen = np.clip(seen, -1, 1)
        self._acting = start
        if self.changes is not None:
            self.changes.charge(seen, actions, ok)
            self.changes.begin(began)
        return Step(next_obs, seen, raw, terminated, truncated, ok, [], [], start, began)

    def _between_episodes(self, obs: Any, info: Any, over: Array) -> tuple[Array, Array, Array, Array]:
        """Tell what the step led to, what is acted on next (B, O), which episodes began, and which rows are steps."""
        shown = self._taken(obs, info, over)
        if self._mode == AutoresetMode.NEXT_STEP:
            began, self._over = self._over, over
            self._perhaps_move(shown, began)
            return shown, shown, began, ~began
        next_obs, start = self._next_episodes(shown, info, over) if over.any() else (shown, shown)
        return next_obs, start, over, np.ones(self.count, dtype=bool)

    def _perhaps_move(self, obs: Array, began: Array) -> None:
        """Let episodes that have just begun begin in hard places, where that is asked for; `obs` (B, O) shows it."""
        if self._task.adverse_starts and began.any():
            obs[began, : self._own] = self._aids.adverse_starts(self._vector, began, self.finished_episodes)
            if self._own:
                self._aids.add_features(obs)

    def _next_episodes(self, shown: Array, info: Any, over: Array) -> tuple[Array, Array]:
        """Return what ended the last episodes, and the first observations of the next, among all others (B, O)."""
        if self._mode == AutoresetMode.DISABLED:
            answer = self._guarded("reset", lambda: self._vector.reset(options={"reset_mask": over.copy()}))
            return shown, self._taken(*checks.two(answer))
        final = info.get("final_obs") if isinstance(info, Mapping) else None
        if final is None or len(final) != self.count:
            raise checks.Broken(f"info: expected final_obs of {self.count} environments, got {described(final)}")
        last = shown.copy()
        with np.errstate(all="ignore"):
            for env in np.flatnonzero(over):
                last[env, : self._own] = checks.observation(final[env], self._shape, self._dtype, None)[0]
        if self._own:
            self._aids.add_features(last)
        return last, shown

    def _taken(self, obs: Any, info: Any, over: Array | None = None) -> Array:  # noqa: ARG002 - for those that show masks
        """Observations (B, O) as stored, features included, in memory of our own; `over`: which ended episodes."""
        array, _ = checks.observation(obs, (self.count, *self._shape), self._dtype, None)
        return self._own_copy(array)

    def _own_copy(self, array: Array) -> Array:
        own = np.empty((len(array), *self.spaces.observation_shape), self._dtype)
        with np.errstate(all="ignore"):
            own[:, : self._own] = array
        if self._own:
            self._aids.add_features(own)
        return own

    def _check_finite(self, obs: Array) -> None:
        if self._dtype.kind == "f" and not np.isfinite(obs).all():
            env, *where = (int(n) for n in np.argwhere(~np.isfinite(obs))[0])
            value = float(obs[(env, *where)])
            raise checks.Broken(f"observation of environment {env}: expected finite numbers, got {value} at {where}")

    def _rewards(self, reward: Any) -> Array:
        array = np.asarray(reward)
        if array.shape != (self.count,) or array.dtype.kind not in "fiu":
            raise checks.Broken(f"reward: expected {self.count} real numbers, got {described(reward)}")
        raw = array.astype(np.float64)
        within = np.abs(raw) <= checks.LARGEST
        if not within.all():
            env = int(np.flatnonzero(~within)[0])
            raise checks.Broken(f"reward of environment {env}: expected a finite number, got {raw[env]}")
        return raw

    def _flags(self, name: str, flags: Any) -> Array:
        array = np.asarray(flags)
        if array.shape != (self.count,) or array.dtype.kind != "b":
            raise checks.Broken(f"{name}: expected {self.count} of True or False, got {described(flags)}")
        return array.copy()

    def _for_environments(self, actions: Array) -> Array:
        if self._chosen is not None:
            return self._chosen[actions]
        if self.spaces.actions is not None:
            return np.asarray(actions + self._start if self._start else actions).astype(self._action_dtype, copy=False)
        clipped = np.clip(np.asarray(actions, self._exact), self._low, self._high)
        return np.asarray(clipped.astype(self._action_dtype))

    # --- faults -----------------------------------------------------------------------------------------------------

    def _broken_step(self, fault: EnvironmentFault) -> Step:
        none, zeros = np.zeros(self.count, dtype=bool), np.zeros(self.count)
        obs = np.zeros_like(self._acting)
        return Step(obs, zeros.astype(np.float32), zeros, none, none, none.copy(), [], [fault], obs, none)

    def _made(self) -> Any:
        entry: Any = self._spec.vector_entry_point
        creator = entry if callable(entry) else load_env_creator(entry)
        kwargs = dict(self._task.kwargs)
        known = inspect.signature(creator).parameters
        limit = self._task.max_episode_steps
        if self._task.is_preprocessed:
            kwargs, limit = atari.vector_kwargs(self._task.atari, kwargs, limit), None
        if limit is not None and limit != self._spec.max_episode_steps:
            if "max_episode_steps" not in known:
                raise TaskError(
                    f"task.max_episode_steps: the vector of {self._task.env} takes no limit; leave it out, or set "
                    'task.vectorize = "single"'
                )
            kwargs["max_episode_steps"] = limit
        if "autoreset_mode" in known:
            kwargs.setdefault("autoreset_mode", AutoresetMode.SAME_STEP)

        def build() -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return gymnasium.make_vec(self._task.env, self.count, vectorization_mode="vector_entry_point", **kwargs)

        vector = self._guarded("make", build)
        self._mode = vector.metadata.get("autoreset_mode")
        if not isinstance(self._mode, AutoresetMode):
            raise TaskError(
                f"task.vectorize: the vector of {self._task.env} does not say in its metadata how it resets "
                '(autoreset_mode); use "single"'
            )
        if tuple(vector.single_observation_space.shape or ()) != self._shape:
            raise TaskError(f'task.vectorize: the vector of {self._task.env} shows something else; use "single"')
        # Of games the vector has all actions, also where a task chooses some.
        if not self._task.is_preprocessed and not _alike(vector.single_action_space, self._takes):
            raise TaskError(
                f"task.vectorize: the vector of {self._task.env} takes {one_line(str(vector.single_action_space))}, "
                f'one environment {one_line(str(self._takes))}; use "single"'
            )
        return vector.unwrapped

    def _guarded(self, phase: str, call: Any) -> Any:
        try:
            return call()
        except TaskError:
            raise
        except BaseException as error:  # noqa: BLE001 - exit and Ctrl-C come from the environment here, not to us
            raise self._fault(f"raised {words_of(error)}", phase, trace_of(error)) from None

    def _fault(self, what: str, phase: str, trace: str = "") -> EnvironmentFault:
        where = f"in {phase}" if phase != "step" else f"at step {self._ticks}"
        since = "" if self._seed is None else f" of the vector with seed {self._seed}"
        detail = f"{self.count} environments ({self._task.env}) {where}{since}: {what}"
        return EnvironmentFault(detail, phase=phase, env_index=0, seed=self._seed, step=self._ticks, trace=trace)


def _alike(space: Any, other: Any) -> bool:
    """Return whether two spaces of actions have as many choices, or the same shape."""
    choices = (getattr(space, "n", None), getattr(other, "n", None))
    return choices[0] == choices[1] and tuple(space.shape or ()) == tuple(other.shape or ())
