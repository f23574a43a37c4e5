"""Several ordinary gymnasium environments stepped side by side, every answer checked before anybody uses it.

Why not `gymnasium.vector`: its automatic resets make transitions that never happened, one bad environment ends all of
them, and its checks let a broadcastable shape pass. Here the caller decides when to reset, a fault concerns one
environment while the others go on, and `next_obs` is always the observation that the step led to.

The price of checking is a few microseconds a step: types, shapes and dtypes by identity on the way in, finiteness once
for the whole batch (as bytes, half the price of `all()` on so small an array), and the slow careful look only when
one of these fails.
"""

from __future__ import annotations

import contextlib
import errno
import math
import re
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete
from numpy.typing import NDArray

from mlxe_async.errors import EnvironmentFault, TaskError
from mlxe_async.rows import MASK, Array, Spaces
from mlxe_async.settings.task import task_of
from mlxe_async.tasks import checks, states
from mlxe_async.tasks.changes import ActionChanges
from mlxe_async.tasks.hostile import described, trace_of, words_of
from mlxe_async.tasks.installed import without_display
from mlxe_async.tasks.items import EpisodeSet
from mlxe_async.tasks.making import has_own_rewards, make, read_spaces, simulator_of
from mlxe_async.tasks.metrics import KEY, Metrics
from mlxe_async.tasks.sources import spec_of

BOUNDS_EVERY = 16
ENDLESS = 100_000


class Step(NamedTuple):
    """What one step of B environments gave. Rows whose `ok` is False hold zeros: never learn from them.

    Args:
        next_obs: the observations the step led to (B, O), a fresh array; never one after a reset.
        reward: rewards to learn from (B,) float32, shaped if the task says so.
        raw_reward: the environment's own rewards (B,) float64, for returns that are reported.
        terminated: the world ended (B,): its value is 0.
        truncated: we, or the environment, stopped (B,): bootstrap. Both may be True at the time limit.
        ok: the environment stepped and kept its contract (B,).
        ended: which environments' episodes ended with this step, for the caller to reset.
        faults: one for each environment that was stepped and is not ok.
        start: what is to be acted on next (B, O), where environments reset themselves; None: `next_obs`.
        began: which environments began an episode by this step (B,), where they reset themselves.
    """

    next_obs: Array
    reward: NDArray[np.float32]
    raw_reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    ok: NDArray[np.bool_]
    ended: list[int]
    faults: list[EnvironmentFault]
    start: Array | None = None
    began: NDArray[np.bool_] | None = None


_Told = tuple[list[float], list[bool], list[bool], list[bool]]
"""Rewards, `terminated`, `truncated` and `ok` of a step, while it is put together."""


class VectorTask:
    """B environments of one `[task]`.

    Args:
        task: the `[task]` table, of which `env` alone must be there.
        count: B, how many environments.
        evaluation: leave starts and rewards as the environment has them. Features stay: the network needs them.
        max_episode_steps: steps after which episodes are truncated, instead of what `task` or the registry says.
        wrap: put around each environment, outside of everything else; to record it, say.
        cursor: its first entry is kept at the number of the environment that is being called.
        state: with which episodes begin, as of `state_of`; None: as the environments were made.

    Raises:
        TaskError: the environment is unknown, lacks a package, has spaces that cannot be used, or does not declare what
            a switch needs.
        EnvironmentFault: the environment's constructor raised (`phase` is `"make"`).

    Attributes:
        spaces: what each environment shows and takes, features included.
        aids: what the task offers a learner, as far as it is switched on.
        packing: what makes stored observations of the environment's own; None where they are stored as they are.
        count: B.
        max_episode_steps: the limit in force, or None.
        spec: gymnasium's registry entry.
        simulator: steps many rows of this task at once, shaping and starts aside; None where the task has none.
        has_own_rewards: whether no wrapper is there to change the rewards.
        changes: charges for changes of action; None where they cost nothing.
        out_of_bounds: observations seen outside the space's bounds, of those that were looked at.
        offers_masks: whether the first reset came with a mask of allowed actions that was not asked for.
        metrics: numbers that the environments tell of themselves.
        episodes: seeds and options that episodes are reset with; None where the task leaves both open.
        keeps_state: whether wrappers, or the environment, keep something from one episode to the next and can tell it.
        begins_with: where they do, the state with which each environment's next episode begins; None: as it was made.
    """

    def __init__(
        self,
        task: Mapping[str, Any],
        count: int,
        *,
        evaluation: bool = False,
        max_episode_steps: int | None = None,
        wrap: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]] = lambda env: env,
        cursor: MutableSequence[int] | memoryview[int] | None = None,
        state: str | None = None,
    ) -> None:
        self._wrap = wrap
        self._cursor = [0] if cursor is None else cursor
        self._task = task_of(task)
        self.spec = spec_of(self._task)
        self.count = count
        stages = range(0 if evaluation else len(self._task.stages))
        self._stages = [self._task.in_stage(number) for number in stages] or [self._task]
        self._stage = [0] * count
        own = self.spec.max_episode_steps
        self._longest = [max_episode_steps or one.max_episode_steps or own or math.inf for one in self._stages]
        longest = max(self._longest)
        self.max_episode_steps = None if math.isinf(longest) else int(longest)
        self._limits = [self._longest[0]] * count
        self.episodes = EpisodeSet(self._task, evaluation=evaluation) if self._task.single_only else None
        self._adverse = self._task.adverse_starts and not evaluation
        self._shaped = self._task.shaped_reward and not evaluation
        self._clipped, self._evaluation = self._task.clip_rewards and not evaluation, evaluation
        self._envs: list[gymnasium.Env[Any, Any]] = []
        self._seeds: list[int | None] = [None] * count
        self._steps = [0] * count
        self._live = [False] * count
        self._notes: list[tuple[str, str]] = []
        self._noted: set[str] = set()
        self.out_of_bounds = 0
        self.offers_masks = False
        self.metrics = Metrics()
        self._is_fresh = not self._task.action_mask
        self.begins_with = [state] * count
        self._as_made = [""] * count
        self.keeps_state = False
        try:
            for index in range(count):
                self._envs.append(self._made(index))
            self.spaces: Spaces
            self.spaces, self.aids, self.packing = read_spaces(self._envs[0], self._task)
            self.simulator = simulator_of(self._envs[0], self._task)
            self.has_own_rewards = has_own_rewards(self._envs[0])
        except BaseException:
            self.close()
            raise
        cost = 0.0 if evaluation else self._task.action_change_cost
        self.changes = ActionChanges(cost, count, self.spaces) if cost else None
        self._read_shapes()

    def _read_shapes(self) -> None:
        space = self._envs[0].observation_space
        # No array has the other shape, so that all are packed.
        self._shape: tuple[int, ...] = (-1,) if self.packing else tuple(space.shape or ())
        self._dtype = np.dtype(self.spaces.observation_dtype)
        # What is packed of several parts is looked at part by part.
        self._floats = self._dtype.kind == "f" and not (self.packing and self.packing.parts and not self.aids.features)
        self._own = self.aids.own if self.aids.features else None
        # What shaping is shown as the observation before the step.
        self._seen = np.zeros((self.count if self._shaped else 0, *self.spaces.observation_shape), self._dtype)
        low, high = np.asarray(getattr(space, "low", -np.inf)), np.asarray(getattr(space, "high", np.inf))
        is_open = np.isinf(low).all() and np.isinf(high).all()
        self._bounds = None if self.packing or is_open else (low, high)
        self._ticks = 0
        action_space = self._envs[0].action_space
        self._start = int(action_space.start) if isinstance(action_space, Discrete) else 0
        self._discrete, self._is_box = self.spaces.actions is not None, self.spaces.action_kind == "box"
        self._starts = np.asarray(action_space.start if isinstance(action_space, MultiDiscrete) else 0)
        if self._is_box:
            # A bound in float32 may lie beyond one in float64.
            shape = self.spaces.action_shape
            self._exact = np.promote_types(np.float32, action_space.dtype or np.float32)
            self._action_low = np.array(self.spaces.action_low, self._exact).reshape(shape)
            self._action_high = np.array(self.spaces.action_high, self._exact).reshape(shape)
        self._action_dtype = action_space.dtype

    def take_notes(self) -> list[tuple[str, str]]:
        """Kind and sentence of odd but harmless behaviour since the last call.

        Kinds are `dtype`, `bounds`, `digits`, `metrics`, `reward` and `endless`; each comes once per task.
        """
        notes, self._notes = self._notes, []
        return notes

    # --- reset ------------------------------------------------------------------------------------------------------

    def enter(self, index: int, stage: int) -> None:
        """Make sure that an environment's next episode is in this stage of the curriculum; it is made anew for that.

        Raises:
            EnvironmentFault: as `rebuild`.
        """
        if self._stage[index] != stage:
            self._stage[index], self._limits[index] = stage, self._longest[stage]
            self.rebuild(index)

    def reset(
        self, index: int, seed: int, finished_episodes: int = 0, options: Mapping[str, Any] | None = None
    ) -> Array:
        """Begin an episode of one environment.

        Args:
            index: which environment.
            seed: what makes this episode repeatable; of a task with a test set, which of its tests, see `EpisodeSet`.
            finished_episodes: episodes finished so far, on which adverse starts depend.
            options: for the environment's own `reset`; None: those of the task's file, where it names one.

        Returns:
            The first observation (O,), a fresh array.

        Raises:
            EnvironmentFault: the environment raised or broke its contract; `rebuild` it.
        """
        self._live[index] = False
        if self.episodes is not None:
            seed, options = self.episodes.of(seed, options)
        if self.changes is not None:
            self.changes.begin(index)
        self._seeds[index], self._steps[index] = seed, 0
        self._cursor[0] = index
        env = self._envs[index]
        try:
            if self.keeps_state:
                self._put(index, self.begins_with[index])
            answer = env.reset(seed=seed) if options is None else env.reset(seed=seed, options=dict(options))
        except BaseException as error:  # noqa: BLE001 - exit and Ctrl-C come from the environment here, not to us
            raise self._raised(error, "reset", index) from None
        obs = np.zeros((1, *self.spaces.observation_shape), self._dtype)
        base = obs[:, : self._own] if self._own else obs
        try:
            first, info = checks.two(answer)
            if self._is_fresh:
                self._is_fresh, self.offers_masks = False, _has_mask(first) or _has_mask(info)
            self._take(base, 0, first, info)
            if self._adverse:
                moved = self._moved(env, finished_episodes, index)
                if moved is not None:
                    self._take(base, 0, moved, info)
            if self._own:
                self.aids.add_features(obs)
            self._check_finite(obs[0])
        except checks.Broken as broken:
            raise self._fault(str(broken), "reset", index) from None
        self._check_bounds(base)
        if self._shaped:
            self._seen[index] = obs[0]
        self._live[index] = True
        return obs[0]  # type: ignore[no-any-return]  # an array indexed by one integer is typed Any

    def _moved(self, env: gymnasium.Env[Any, Any], finished_episodes: int, index: int) -> Any:
        try:
            return self.aids.adverse_start(env, finished_episodes)
        except BaseException as error:  # noqa: BLE001 - see reset
            raise self._raised(error, "reset", index) from None

    # --- step -------------------------------------------------------------------------------------------------------

    def step(self, actions: Array, only: Sequence[int] | None = None) -> Step:
        """Step the environments once. Nothing is reset here.

        Args:
            actions: one per environment (B,) integers from 0, or (B, *action_shape), clipped to the space's bounds.
            only: which environments to step; all by default.

        Raises:
            RuntimeError: an environment whose episode ended, or never began, would be stepped.
        """
        count = self.count
        next_obs = np.zeros((count, *self.spaces.observation_shape), self._dtype)
        base = next_obs[:, : self._own] if self._own else next_obs
        rewards = [0.0] * count
        terminated, truncated, ok = [False] * count, [False] * count, [False] * count
        ended: list[int] = []
        faults: list[EnvironmentFault] = []
        chosen = self._for_environments(actions)
        envs, steps, live, shape, dtype = self._envs, self._steps, self._live, self._shape, self._dtype
        limits, cursor = self._limits, self._cursor
        for i in range(count) if only is None else only:
            if not live[i]:
                raise RuntimeError(f"environment {i}: step without a reset")
            steps[i] += 1
            cursor[0] = i
            try:
                answer = envs[i].step(chosen[i])
            except BaseException as error:  # noqa: BLE001 - see reset
                faults.append(self._raised(error, "step", i))
                live[i] = False
                continue
            try:
                if type(answer) is not tuple or len(answer) != 5:
                    answer = checks.five(answer)
                obs, reward, over, stopped, info = answer
                if info and type(info) is dict and KEY in info:
                    self._told_metrics(info[KEY])
                if type(obs) is np.ndarray and obs.dtype is dtype and obs.shape == shape:
                    base[i] = obs
                else:
                    self._take(base, i, obs, info, over, stopped)
                if type(reward) is not float or not -checks.LARGEST <= reward <= checks.LARGEST:
                    if checks.is_array_of_one(reward):
                        self._note("reward", f"rewards come as {described(reward)}: cast to a number")
                    reward = checks.real(reward)
                if type(over) is not bool:
                    over = checks.flag("terminated", over)
                if type(stopped) is not bool:
                    stopped = checks.flag("truncated", stopped)
            except checks.Broken as broken:
                faults.append(self._fault(str(broken), "step", i))
                next_obs[i] = 0
                live[i] = False
                continue
            rewards[i] = reward
            terminated[i] = over
            truncated[i] = stopped = stopped or steps[i] >= limits[i]
            ok[i] = True
            if over or stopped:
                ended.append(i)
                live[i] = False
            if steps[i] == ENDLESS:
                self._note("endless", f"an episode (seed {self._seeds[i]}) has not ended after {ENDLESS} steps")
        if self._own:
            self.aids.add_features(next_obs)
        if self._floats and b"\0" in np.isfinite(next_obs).tobytes():
            self._find_nonfinite(next_obs, (rewards, terminated, truncated, ok), faults)
            ended = [i for i in ended if ok[i]]
        self._ticks += 1
        if self._ticks % BOUNDS_EVERY == 0:
            self._check_bounds(base)
        if not self._shaped:
            seen = np.array(rewards, np.float32)
        else:
            shaped = (self._seen, np.asarray(actions), next_obs, np.array(rewards), np.array(terminated))
            seen = self.aids.shaped_reward(*shaped)
            if not all(ok):
                seen[~np.array(ok)] = 0.0
            if b"\0" in np.isfinite(seen).tobytes():
                for i in np.flatnonzero(~np.isfinite(seen)).tolist():
                    what = f"reward as shaped: expected a finite number, got {seen[i]}"
                    faults.append(self._fault(what, "step", i))
                    self._void(i, next_obs, (rewards, terminated, truncated, ok))
                    seen[i] = 0.0
                ended = [i for i in ended if ok[i]]
            self._seen[ok] = next_obs[ok]
        if self._clipped:
            np.clip(seen, -1, 1, out=seen)
        flags = (np.array(terminated), np.array(truncated), np.array(ok))
        if self.changes is not None:
            self.changes.charge(seen, actions, flags[2])
        return Step(next_obs, seen, np.array(rewards), *flags, ended, faults)

    def environment(self, index: int) -> gymnasium.Env[Any, Any]:
        """One of the environments, with its wrappers."""
        return self._envs[index]

    def state_of(self, index: int) -> str:
        """Return what an environment's layers keep from one episode to the next, as text.

        Raises:
            TaskError: a layer raised, or told of what cannot be kept.
        """
        return states.text_of(states.kept_by(self._envs[index]))

    def take_up(self, index: int, state: str | None) -> None:
        """Have an environment's layers go on with a state, see `state_of`; None: what they knew when they were made.

        Raises:
            EnvironmentFault: a layer raised.
        """
        try:
            self._put(index, state)
        except BaseException as error:  # noqa: BLE001 - see reset
            raise self._raised(error, "reset", index) from None

    def _put(self, index: int, state: str | None) -> None:
        states.put(states.kept_by(self._envs[index]), state or "", self._as_made[index])

    def rebuild(self, index: int) -> None:
        """Close one environment, whatever it says to that, and make it anew; then `reset` it.

        Raises:
            EnvironmentFault: the constructor raised; the old one is closed and stays in place.
        """
        self._live[index] = False
        self._seeds[index], self._steps[index] = None, 0
        _close(self._envs[index])
        self._envs[index] = self._made(index)

    def close(self) -> None:
        """Close all environments; may be called twice, never raises."""
        for env in self._envs:
            _close(env)
        self._envs = []

    # --- checks -----------------------------------------------------------------------------------------------------

    def _for_environments(self, actions: Array) -> Any:
        if self._discrete:
            chosen: list[int] = np.asarray(actions).tolist()
            return [action + self._start for action in chosen] if self._start else chosen
        if not self._is_box:
            return (np.asarray(actions) + self._starts).astype(self._action_dtype)
        clipped = np.clip(np.asarray(actions, self._exact), self._action_low, self._action_high)
        return clipped.astype(self._action_dtype)  # a copy: the environment may keep or change it

    def _take(self, base: Array, i: int, obs: Any, info: Any, *flags: Any) -> None:
        """Copy an observation into row i after the careful look; one of the flags is true where an episode ended."""
        if self.packing is not None:
            over = any(flag is True or flag is np.True_ for flag in flags)  # they are not yet checked
            base[i], odd = self.packing.take(obs, info, over=over)
            if odd:
                self._note("dtype", odd[0])
            return
        array, same = checks.observation(obs, self._shape, self._dtype, self._envs[i].observation_space.dtype)
        if not same:
            space = self._envs[i].observation_space
            self._note("dtype", f"observations come as {array.dtype}, the space says {space.dtype}: cast")
        if checks.loses_digits(array, self._dtype):
            self._note("digits", f"observations of {array.dtype} beyond 2^24 lose digits as float32; show them smaller")
        with np.errstate(all="ignore"):
            base[i] = array

    def _check_finite(self, obs: Array) -> None:
        if self._floats:
            checks.finite(obs)

    def _find_nonfinite(self, next_obs: Array, told: _Told, faults: list[EnvironmentFault]) -> None:
        for i in range(self.count):
            try:
                self._check_finite(next_obs[i])
            except checks.Broken as broken:
                faults.append(self._fault(str(broken), "step", i))
                self._void(i, next_obs, told)

    def _void(self, i: int, next_obs: Array, told: _Told) -> None:
        """Take back a step that turned out to be none."""
        next_obs[i] = 0
        rewards, terminated, truncated, ok = told
        rewards[i], terminated[i], truncated[i], ok[i] = 0.0, False, False, False
        self._live[i] = False

    def _check_bounds(self, base: Array) -> None:
        """Count observations outside the space's bounds; looked at in resets and in every 16th step."""
        if self._bounds is not None:
            low, high = self._bounds
            is_outside = ((base < low) | (base > high)).reshape(len(base), -1).any(1)
        elif self.packing is not None and self.packing.has_bounds:
            is_outside = self.packing.outside(base)
        else:
            return
        if is_outside.any():
            self.out_of_bounds += int(is_outside.sum())
            if "bounds" not in self._noted:
                self._note("bounds", self._beyond(base[int(is_outside.argmax())]))

    def _beyond(self, base: Array) -> str:
        """Tell which entry of an observation (O,) leaves its bounds."""
        if self._bounds is not None:
            low, high = (np.broadcast_to(one, base.shape) for one in self._bounds)
            what = checks.beyond(base, low, high, "observation")
        else:
            what = "" if self.packing is None else self.packing.beyond(base)
        return f"{what}; it is learned from as it is: mend the space or the observation"

    def _told_metrics(self, told: Any) -> None:
        self.metrics.add(told)
        if odd := self.metrics.take_odd():
            self._note("metrics", odd)

    def _note(self, kind: str, sentence: str) -> None:
        if kind not in self._noted:
            self._noted.add(kind)
            self._notes.append((kind, f"{self._task.env}: {sentence}"))

    # --- faults -----------------------------------------------------------------------------------------------------

    def _made(self, index: int) -> gymnasium.Env[Any, Any]:
        try:
            env = self._wrap(make(self._stages[self._stage[index]], self.spec, evaluation=self._evaluation))
            if layers := states.kept_by(env):
                self.keeps_state, self._as_made[index] = True, states.text_of(layers)
                if self._evaluation:
                    states.freeze(layers)
            return env  # noqa: TRY300 - what is kept is foreign code too
        except TaskError:
            raise
        except BaseException as error:  # noqa: BLE001 - see reset
            raise self._raised(error, "make", index) from None

    def _raised(self, error: BaseException, phase: str, i: int) -> EnvironmentFault:
        return self._fault(f"raised {words_of(error)}{_advice(error, phase)}", phase, i, trace_of(error))

    def _fault(self, what: str, phase: str, i: int, trace: str = "") -> EnvironmentFault:
        seed, step = self._seeds[i], self._steps[i]
        where = f"in {phase}" if phase != "step" else f"at step {step}"
        episode = "" if seed is None else f" of the episode with seed {seed}"
        detail = f"environment {i} ({self._task.env}) {where}{episode}: {what}"
        return EnvironmentFault(detail, phase=phase, env_index=i, seed=seed, step=step, trace=trace)


def _advice(error: BaseException, phase: str) -> str:
    """Return what to do about mistakes that many environments have in common."""
    text = words_of(error)
    if screen := without_display(text):
        return screen
    if phase == "reset" and isinstance(error, TypeError) and "unexpected keyword argument 'seed'" in str(error):
        return "; write reset(self, *, seed=None, options=None), and super().reset(seed=seed) in it"
    if phase == "make" and isinstance(error, TypeError):
        missing = re.search(r"missing \d+ required .*?argument", text) and re.findall(r"'(\w+)'", text)
        if missing:
            return f"; write what it needs into [task], as kwargs = {{ {missing[0]} = ... }}"
        if unexpected := re.search(r"unexpected keyword argument '(\w+)'", text):
            return f"; take {unexpected[1]} out of task.kwargs"
    if phase == "make" and isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return (
            '; where only one environment can be at a time, set schedule.kind = "serial", schedule.executors = 1 and '
            "evaluation.enabled = false, or give each a port of its own"
        )
    return ""


def _has_mask(found: Any) -> bool:
    return type(found) is dict and MASK in found


def _close(env: gymnasium.Env[Any, Any]) -> None:
    with contextlib.suppress(BaseException):  # it is thrown away; what it says to that changes nothing
        env.close()
