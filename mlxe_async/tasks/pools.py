"""EnvPool's environments, in C++, of which one call steps many on threads of their own.

EnvPool fixes seeds when a pool is made, so that a pool is made anew where it is seeded. It resets an environment in the
step after its episode ended, and ignores the action then. At its time limit it says `truncated` alone, also where the
world ended in that very step: limits are counted here, wherever a task does not depend on its limit.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces

from mlxe_async.errors import TaskError
from mlxe_async.rows import Array
from mlxe_async.settings.task import ATARI, POOL, Atari, Task
from mlxe_async.tasks import atari
from mlxe_async.tasks.hostile import described, one_line, words_of

EXTRA = "mlxe_async[envpool]"
PACKAGE = "envpool"
ENDLESS = 10**9
_GAMES = "envpool.atari"
_COUNTED = {
    _GAMES,
    "envpool.box2d",
    "envpool.classic_control",
    "envpool.mujoco.dmc",
    "envpool.mujoco.gym",
    "envpool.toy_text",
}
"""Families whose rewards and observations know nothing of the time limit."""
_OURS = {
    "num_envs": "schedule.envs_per_executor",
    "batch_size": "schedule.envs_per_executor",
    "seed": "run.seed",
    "env_seed": "run.seed",
    "max_episode_steps": "task.max_episode_steps",
    "reward_clip": "task.clip_rewards",
}
"""Arguments of EnvPool that are keys of ours."""
_FIXED = {
    "base_path": "names files of EnvPool itself",
    "vzd_path": "names a program of EnvPool itself",
    "episodic_life": "an episode is a whole game",
    "gym_reset_return_info": "is always so",
}
"""Arguments that stay as they are."""
_SHOWING = ("from_pixels", "render_mode", "render_width", "render_height", "render_camera_id", "render_env_id")
"Arguments that are none of a game's own."
THREADS = ("num_threads", "thread_affinity_offset")
"Arguments that change nothing but the speed."
_Found = TypeVar("_Found")


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """An environment as EnvPool knows it.

    Args:
        name: its id there.
        observation_space: of one environment.
        action_space: of one environment; integers are Discrete or MultiDiscrete.
        max_episode_steps: its own limit; None: there is none.
        counts: whether time limits are counted by us, as nothing else depends on them.
        reward_threshold: mean return that counts as solved, or None.
        frames: number of newest pictures in an observation (frames, H, W); 0: no such thing is known.
    """

    name: str
    observation_space: Any
    action_space: Any
    max_episode_steps: int | None
    counts: bool
    reward_threshold: float | None
    frames: int


def package() -> Any:
    """EnvPool itself.

    Raises:
        TaskError: it is not installed, or cannot be imported; the message names the extra that brings it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(PACKAGE)
    except ImportError as error:
        raise TaskError(
            f'task.vectorize: "{POOL}" needs a package that is not installed: pip install "{EXTRA}" ({words_of(error)})'
        ) from error


def name_of(task: Task) -> str:
    """EnvPool's id of a task: its own, of "ALE/Pong-v5" that without the name space.

    Raises:
        TaskError: EnvPool is missing, or has no such environment; with the nearest ones.
    """
    specs = package().registration.registry.specs
    name = task.env
    if name.startswith(ATARI):
        name = name.removeprefix(ATARI)
        games = [known for known, (family, *_) in specs.items() if family == _GAMES]
        if name not in games:
            raise TaskError(_unknown(task.env, [ATARI + game for game in games]))
    elif name not in specs:
        raise TaskError(_unknown(name, [*specs, *_as_gymnasium_says(specs)]))
    return name


def ids() -> Iterable[str]:
    """Ids of all environments of EnvPool as a settings file names them.

    Raises:
        TaskError: it is missing.
    """
    specs = package().registration.registry.specs
    return (*(name for name, (family, *_) in specs.items() if family != _GAMES), *_as_gymnasium_says(specs))


def _as_gymnasium_says(specs: Mapping[str, tuple[str, str, Any]]) -> Iterable[str]:
    return (ATARI + name for name, (family, *_) in specs.items() if family == _GAMES)


def _unknown(name: str, known: Sequence[str]) -> str:
    if ":" in name:
        return (
            f'task.vectorize: got "{POOL}", which steps its own environments, not those of a module: "{name}"; use '
            '"single"'
        )
    lowered = {one.lower(): one for one in known}
    nearest = [lowered[found] for found in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)]
    advice = f"did you mean {' or '.join(nearest)}?" if nearest else 'use task.vectorize = "single"'
    return f'task.env: EnvPool has no environment "{name}"; {advice}'


def refuse(task: Task) -> None:
    """Refuse what cannot be done to a batch of observations.

    Raises:
        TaskError: with the key and what to do.
    """
    for key in ("wrappers", "adverse_starts"):
        if getattr(task, key):
            raise TaskError(
                f'task.{key}: is for environments that are stepped one by one, got task.vectorize = "{POOL}"; drop '
                "one of them"
            )
    if task.history > 1:
        raise TaskError(
            f'task.history: is for environments that are stepped one by one, got task.vectorize = "{POOL}"; drop one '
            "of them, or write stack_num or frame_stack in task.kwargs where EnvPool has it"
        )
    if not task.env.startswith(ATARI):
        return
    if not task.atari.preprocess:
        name = task.env.removeprefix(ATARI)
        raise TaskError(
            f'task.atari.preprocess: EnvPool shows small pictures only; set it to true, or write env = "{name}", with '
            "EnvPool's own arguments in task.kwargs"
        )
    if single_only := atari.single_only(task.atari):
        raise TaskError(f'task.atari.{single_only}: EnvPool cannot do that; drop it, or set task.vectorize = "single"')
    if not task.atari.noop_max:
        raise TaskError(
            "task.atari.noop_max: EnvPool begins with one frame of doing nothing or more, got 0, expected at least 1"
        )


def single_kwargs(task: Task) -> dict[str, Any]:
    """Return a task's own arguments for one environment, which has no threads."""
    of_many = THREADS if task.vectorize == POOL else ()
    return {key: value for key, value in task.kwargs.items() if key not in of_many}


def arguments(task: Task) -> dict[str, Any]:
    """Arguments for EnvPool: those of the task, and for "ALE/..." what `[task.atari]` says."""
    given = _plain(task.kwargs)
    return {**_atari(task.atari), **given} if task.env.startswith(ATARI) else given


def _plain(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key not in ("render_mode", "render_env_id")}


def _atari(settings: Atari) -> dict[str, Any]:
    """Rewards as they are, no button pressed at the start."""
    return atari.common_kwargs(settings) | {"frame_skip": settings.frame_skip, "reward_clip": False}


def look_up(task: Task) -> Entry:
    """Return what EnvPool knows of a task's environment, with the task's arguments.

    Raises:
        TaskError: there is none, its arguments or spaces cannot be used, or it is a game of several players.
    """
    name = name_of(task)
    _refuse_arguments(name, task.kwargs)
    return _looked_up(name, json.dumps(arguments(task), sort_keys=True))


@functools.lru_cache(maxsize=8)
def _looked_up(name: str, given: str) -> Entry:
    def asked() -> tuple[dict[str, Any], Any, Any]:
        spec = package().make_spec(name, **json.loads(given))
        return spec.config._asdict(), _space(spec.observation_space), _chosen_from(_space(spec.action_space))

    config, shown, taken = _told(name, asked)
    if config["max_num_players"] != 1:
        raise TaskError(f"task.env: EnvPool's {name} is a game of several players, expected one")
    limit = int(config["max_episode_steps"])
    stack = int(config.get("stack_num", 0)) if config.get("gray_scale", True) else 0
    is_stack = isinstance(shown, spaces.Box) and len(shown.shape) == 3 and shown.shape[0] == stack
    threshold = config.get("reward_threshold")
    return Entry(
        name,
        shown,
        taken,
        limit if limit < ENDLESS else None,
        package().registration.registry.specs[name][0] in _COUNTED,
        None if threshold is None else float(threshold),
        stack if is_stack else 0,
    )


def _refuse_arguments(name: str, kwargs: Mapping[str, Any]) -> None:
    defaults = _told(name, lambda: package().make_spec(name)).config._asdict()
    known = {*defaults, *_SHOWING}
    for key, value in kwargs.items():
        if key in _OURS:
            raise TaskError(f"task.kwargs.{key}: is said by {_OURS[key]}; take it out")
        if key in _FIXED:
            raise TaskError(f"task.kwargs.{key}: {_FIXED[key]}; take it out")
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            advice = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(known - {*_OURS, *_FIXED}))}"
            raise TaskError(f"task.kwargs.{key}: EnvPool's {name} has no such argument; {advice}")
        if wanted := _unlike(value, defaults.get(key)):
            raise TaskError(f"task.kwargs.{key}: expected {wanted}, got {described(value)}")


def _unlike(value: Any, default: Any) -> str:
    """Say what a value should be to be like a default; empty where it is, or nothing is known."""
    kinds: dict[type, tuple[tuple[type, ...], str]] = {
        bool: ((bool,), "true or false"),
        int: ((int,), "a whole number"),
        float: ((int, float), "a number"),
        str: ((str,), "a text"),
    }
    allowed, words = kinds.get(type(default), ((object,), ""))
    return "" if isinstance(value, allowed) and isinstance(value, bool) <= (bool in allowed or not words) else words


def _told(name: str, call: Callable[[], _Found]) -> _Found:
    """Return what a call of EnvPool's does; what it raises is told in a sentence.

    Raises:
        TaskError: it raised.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except BaseException as error:  # exit and Ctrl-C come from the environment here, not to us
        raise TaskError(f"task.env: EnvPool's {name} raised {one_line(words_of(error))}") from error


def _space(space: Any) -> Any:
    """The space as it is meant: where C++ writes the smallest and the largest of its numbers there is no bound."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _space(part) for key, part in space.spaces.items()})
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return space
    numbers = np.finfo(space.dtype)
    low = np.where((space.low == numbers.tiny) | (space.low == numbers.min), -np.inf, space.low)
    high = np.where(space.high == numbers.max, np.inf, space.high)
    return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)


def _chosen_from(space: Any) -> Any:
    """Whole numbers between bounds are choices."""
    if not isinstance(space, spaces.Box) or space.dtype.kind not in "iu" or not space.shape:
        return space
    sizes = space.high.astype(np.int64) - space.low + 1
    return spaces.MultiDiscrete(sizes, start=space.low.astype(np.int64))


class Pool:
    """B environments of EnvPool.

    Args:
        entry: what they are.
        given: arguments for EnvPool.
        count: B.
        limit: steps after which `expired` tells that an episode is over; None: never.
        threads: on which they are stepped, unless `given` says otherwise.

    Attributes:
        steps: of each episode so far (B,).
        expired: whose episodes the last step brought to the limit, while the world went on (B,).
    """

    def __init__(
        self, entry: Entry, given: Mapping[str, Any], count: int, *, limit: int | None = None, threads: int = 1
    ) -> None:
        self._entry, self._count, self._limit = entry, count, limit
        # One more than the limit, at which the world's end cannot be told.
        most = {"max_episode_steps": limit + 1 if entry.counts else limit} if limit else {}
        self._given = {"num_threads": min(count, threads), **given, **most, "num_envs": count}
        self._pool: Any = None
        self.steps = np.zeros(count, np.int64)
        self.expired = np.zeros(count, np.bool_)

    def reset(self, *, seed: int) -> tuple[Any, Any]:
        """Begin an episode of each: with other seeds, so that the pool is made anew."""
        seeds = np.random.SeedSequence(seed).generate_state(self._count) >> 1  # EnvPool takes 31 bits
        self.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._pool = package().make_gymnasium(self._entry.name, env_seed=seeds.tolist(), **self._given)
            obs, info = self._pool.reset()
        self.steps[:] = 0
        return obs, info

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, Any]:
        """Step all; those that ended in the last step, and were not restarted, are reset instead."""
        obs, reward, terminated, truncated, info = self._pool.step(actions)
        self.steps += 1
        self.steps[info["elapsed_step"] == 0] = 0
        self.expired = (self.steps >= (self._limit or ENDLESS)) & ~(terminated | truncated)
        return obs, reward, terminated, truncated | self.expired, info

    def restart(self, which: Array) -> tuple[Any, Any]:
        """Begin episodes of some (B,) at once. Returns what these (K,) show, in their order."""
        obs, info = self._pool.reset(np.flatnonzero(which).astype(np.int32))
        self.steps[which] = 0
        return obs, info

    def render(self) -> Any:
        """A picture of the first one, as the arguments say."""
        pictures = self._pool.render()
        return None if pictures is None else pictures[0]

    def close(self) -> None:
        """Let go of the games and their threads."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
