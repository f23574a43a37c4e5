"""An environment is held against what gymnasium asks of it: a few hundred random steps, looked at closely.

Two copies are given the same seed and the same actions. What differs then cannot be repeated. Nothing here is a reason
to refuse a task: the probe has seen it work, and the rest is told.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from mlxe_async.errors import raised_at
from mlxe_async.rows import MASK
from mlxe_async.settings.task import task_of
from mlxe_async.tasks import checks
from mlxe_async.tasks.help import layers_of
from mlxe_async.tasks.hostile import described, one_line, words_of
from mlxe_async.tasks.items import EpisodeSet
from mlxe_async.tasks.making import make
from mlxe_async.tasks.sources import spec_of

STEPS = 256
SEED, OTHER = 20_231, 7
MOST_EPISODES = 64
Limited = Callable[[str], AbstractContextManager[None]]


class Finding(NamedTuple):
    """The finding about one promise.

    Args:
        promise: `spaces`, `types`, `seeding`, `determinism`, `resets`, `ends`, or `raises`.
        is_kept: None: it could not be seen.
        told: a few words.
    """

    promise: str
    is_kept: bool | None
    told: str


def conformance(task: Mapping[str, Any], limited: Limited, seconds: float) -> list[Finding]:
    """Look at an environment for about so long, its own constructor aside; at least at one step.

    Args:
        task: the `[task]` table.
        limited: entered around each call into the environment's code, which may hang.
        seconds: of its steps.
    """
    made: list[gymnasium.Env[Any, Any]] = []
    looking: _Looking | None = None
    try:
        settings = task_of(task)
        for _ in range(2):
            with limited("make"):
                made.append(make(settings, spec_of(settings), evaluation=True))
        limit = settings.max_episode_steps or spec_of(settings).max_episode_steps
        episodes = EpisodeSet(settings, evaluation=False) if settings.single_only else None
        looking = _Looking(made[0], made[1], limit, limited, episodes)
        return looking.look(seconds)
    except BaseException as error:  # noqa: BLE001 - an environment may raise anything, and the run goes on without this
        if looking is not None and (place := raised_at(error)):
            return [Finding("raises", False, f"{looking.doing} raised {words_of(error)} ({place})")]
        return [Finding("spaces", None, f"could not be looked at: {words_of(error)}")]
    finally:
        for env in made:
            with limited("make"):
                _closed(env)


def _closed(env: gymnasium.Env[Any, Any]) -> None:
    with contextlib.suppress(BaseException):  # what it says to that is told by the probe's own environment
        env.close()


class _Looking:
    """Two copies of an environment, stepped side by side."""

    def __init__(
        self, one: Any, other: Any, limit: int | None, limited: Limited, episodes: EpisodeSet | None = None
    ) -> None:
        self._envs, self._limit, self._limited, self._episodes = (one, other), limit, limited, episodes
        self._odd: dict[str, str] = {}
        self._lengths: list[tuple[int, str]] = []
        self._like_a_first = 0
        self.doing = ""
        "The call into the environment that is under way, or was the last one."

    def look(self, seconds: float) -> list[Finding]:
        """Go through episodes until the time or the steps are over."""
        until, rng, steps = time.monotonic() + seconds, np.random.default_rng(SEED), 0
        seeding = self._seeding()
        while steps < STEPS and len(self._lengths) < MOST_EPISODES and (not steps or time.monotonic() < until):
            steps += self._episode(SEED + len(self._lengths), rng, STEPS - steps, until)
        return [
            self._finding("spaces", f"{steps} observations were members of their space"),
            self._finding("types", "rewards, ends and infos are of their types"),
            seeding,
            self._finding("determinism", f"two copies do the same for {steps} steps"),
            self._resets(),
            self._ends(steps),
        ]

    def _finding(self, promise: str, told: str) -> Finding:
        odd = self._odd.get(promise)
        return Finding(promise, odd is None, odd or told)

    def _note(self, promise: str, told: str) -> None:
        self._odd.setdefault(promise, told)

    def _reset(self, which: int, seed: int) -> tuple[Any, Any]:
        seed, options = (seed, None) if self._episodes is None else self._episodes.of(seed, None)
        given = {} if options is None else {"options": dict(options)}
        self.doing = f"reset by seed {seed}"
        with self._limited("reset"):
            answer = self._envs[which].reset(seed=seed, **given)
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise TypeError(f"reset returned {described(answer)}, expected an observation and a dict")
        return _kept(answer[0]), answer[1]

    def _seeding(self) -> Finding:
        first, again = self._reset(0, SEED)[0], self._reset(0, SEED)[0]
        if not _same(first, again):
            return Finding("seeding", False, f"two resets by seed {SEED} begin differently: runs cannot be repeated")
        if not _same(first, self._reset(1, SEED)[0]):
            return Finding("seeding", False, f"two copies begin differently by seed {SEED}: runs cannot be repeated")
        if _same(first, self._reset(0, OTHER)[0]):
            return Finding("seeding", True, "seeds repeat themselves; all episodes begin alike")
        return Finding("seeding", True, "seeds repeat themselves, and differ")

    def _episode(self, seed: int, rng: np.random.Generator, most: int, until: float) -> int:
        """Steps of one episode in both copies."""
        (first, info), (twin, _) = self._reset(0, seed), self._reset(1, seed)
        self._look_at(first, info, "reset")
        if not _same(first, twin):
            self._note("determinism", f"two copies begin differently by seed {seed}")
        obs, varied = first, False
        for step in range(1, most + 1):
            action = self._action(info, obs, rng)
            self.doing = where = f"step {step} of seed {seed}"
            given = []
            for env in self._envs:
                with self._limited("step" if step > 1 else "first step"):
                    given.append(env.step(action))
            obs, reward, terminated, truncated, info = given[0]
            self._look_at(obs, info, where)
            if not _is_number(reward):
                self._note("types", f"{where}: reward {described(reward)}, expected a finite number")
            for name, flag in (("terminated", terminated), ("truncated", truncated)):
                if not isinstance(flag, (bool, np.bool_)):
                    self._note("types", f"{where}: {name} {described(flag)}, expected True or False")
            if not all(_same(one, two) for one, two in zip(given[0][:4], given[1][:4], strict=True)):
                self._note("determinism", f"two copies differ at {where}, by the same actions")
            if terminated or truncated:
                self._lengths.append((step, "terminated" if terminated else "truncated"))
                self._like_a_first += varied and _same(obs, first)
                return step
            varied = varied or not _same(obs, first)
            if time.monotonic() > until:
                return step
        return most

    def _look_at(self, obs: Any, info: Any, where: str) -> None:
        space = self._envs[0].observation_space
        if "spaces" not in self._odd and (why := _no_member(space, obs)):
            self._note("spaces", f"{where}: {why}")
        if not isinstance(info, dict):
            self._note("types", f"{where}: info {described(info)}, expected a dict")

    def _action(self, info: Any, obs: Any, rng: np.random.Generator) -> Any:
        space = self._envs[0].action_space
        space.seed(int(rng.integers(2**31)))
        mask = info.get(MASK) if isinstance(info, dict) else None
        if mask is None and isinstance(obs, dict):
            mask = obs.get(MASK)
        if mask is None or isinstance(space, gymnasium.spaces.Box):
            return space.sample()
        if isinstance(space, gymnasium.spaces.Discrete):
            return space.sample(np.asarray(mask, np.int8))
        is_binary = isinstance(space, gymnasium.spaces.MultiBinary)
        sizes, start = (np.full(space.shape, 2), 0) if is_binary else (space.nvec, space.start)
        flat = np.concatenate([np.ravel(one) for one in mask]) if isinstance(mask, (tuple, list)) else np.ravel(mask)
        pieces = np.split(flat.astype(np.int8), np.cumsum(sizes.ravel())[:-1])
        chosen = [rng.choice(np.flatnonzero(piece)) for piece in pieces]
        return (np.array(chosen).reshape(sizes.shape) + start).astype(space.dtype)

    def _resets(self) -> Finding:
        resetting = [type(one).__name__ for one in layers_of(self._envs[0]) if type(one).__name__ == "Autoreset"]
        if resetting:
            return Finding("resets", False, "the wrapper Autoreset hides how episodes end; take it out")
        if len(self._lengths) > 2 and self._like_a_first == len(self._lengths):
            return Finding("resets", None, "each episode's last observation is its first one: it may reset itself")
        return Finding("resets", True, "it is reset by its caller alone")

    def _ends(self, steps: int) -> Finding:
        limit = f"limit {self._limit:,} steps" if self._limit else "no limit"
        if not self._lengths:
            told = f"no episode ended in {steps} random steps, {limit}"
            more = "" if self._limit else "; set task.max_episode_steps"
            return Finding("ends", True if self._limit else None, told + more)
        own = sum(why == "truncated" for _, why in self._lengths)
        mean = np.mean([length for length, _ in self._lengths])
        by = f"{own} of them truncated by itself" if own else "all by the world"
        return Finding("ends", True, f"{len(self._lengths)} episodes of {mean:.0f} random steps, {by}; {limit}")


def _kept(obs: Any) -> Any:
    """An observation that later steps do not overwrite."""
    if isinstance(obs, np.ndarray):
        return obs.copy()
    if isinstance(obs, Mapping):
        return {key: _kept(value) for key, value in obs.items()}
    return tuple(_kept(value) for value in obs) if isinstance(obs, tuple) else obs


def _same(one: Any, other: Any) -> bool:
    """Return whether two answers are equal; not-a-number equals itself."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    a, b = np.asarray(one), np.asarray(other)
    if a.shape != b.shape:
        return False
    return bool(np.array_equal(a, b, equal_nan=True) if a.dtype.kind == b.dtype.kind == "f" else (a == b).all())


def _is_number(reward: Any) -> bool:
    try:
        array = np.asarray(reward, np.float64)
    except (TypeError, ValueError):
        return False
    return array.size == 1 and bool(np.isfinite(array).all())


def _no_member(space: Any, obs: Any) -> str:
    """Why an observation is not in its space, in words; empty if it is."""
    if isinstance(space, gymnasium.spaces.Dict) and isinstance(obs, Mapping):
        if set(obs) != set(space.spaces):
            return f"keys {one_line(str(sorted(map(str, obs))))}, expected {one_line(str(sorted(space.spaces)))}"
        found = ((name, _no_member(one, obs[name])) for name, one in space.spaces.items())
        return "; ".join(f"{name}: {why}" for name, why in found if why)
    if isinstance(space, gymnasium.spaces.Tuple) and isinstance(obs, tuple) and len(obs) == len(space.spaces):
        found = ((str(k), _no_member(one, obs[k])) for k, one in enumerate(space.spaces))
        return "; ".join(f"{name}: {why}" for name, why in found if why)
    if isinstance(space, gymnasium.spaces.Box) and isinstance(obs, np.ndarray):
        if obs.shape != space.shape:
            return f"shape {obs.shape}, expected {space.shape}"
        if obs.dtype != space.dtype:
            return f"dtype {obs.dtype}, expected {space.dtype}: it is cast"
        if not np.isfinite(obs.astype(np.float64)).all():
            return f"{described(obs)} is not finite"
        return checks.beyond(obs, space.low, space.high)
    if space.contains(obs):
        return ""
    return f"got {described(obs)}, expected a member of {one_line(str(space))}"
