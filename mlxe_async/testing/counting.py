"""An environment whose observations say exactly which step of which life they are."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from mlxe_async.testing.whereabouts import whereabouts

# Every piece of an observation is a whole number that float32 holds exactly.
LIMIT = 2**24
PIECES = 7

_made = 0


class Place(NamedTuple):
    """What an observation of `CountingEnv` says.

    Args:
        executor: whose it is.
        life: which life of the executor's process, from 1.
        instance: the how many-th environment made in that life, from 0; one made anew after a fault counts again.
        episode: episodes this instance began before.
        step: steps of this episode so far.
        total: clean steps of this instance so far, over all episodes.
    """

    executor: int
    life: int
    instance: int
    episode: int
    step: int
    total: int

    def after_one_step(self) -> Place:
        """The place that the next step of the same episode leads to."""
        return self._replace(step=self.step + 1, total=self.total + 1)


def encode(place: Sequence[int]) -> NDArray[np.float32]:
    """An observation (7,) that says `place`, closed by a checksum."""
    numbers = [int(piece) % LIMIT for piece in place]
    return np.array([*numbers, _checksum(numbers)], np.float32)


def decode(obs: Any) -> Place | None:
    """Return what an observation (7,) says; None when its pieces do not belong together: it is torn, or not ours."""
    values = np.asarray(obs, np.float64)
    if values.shape != (PIECES,) or not np.isfinite(values).all() or (values != np.floor(values)).any():
        return None
    *numbers, check = (int(value) for value in values)
    return Place(*numbers) if check == _checksum(numbers) else None


def reward_of(place: Place) -> float:
    """The reward of the step that led to `place`."""
    return float((place.total + 3 * place.executor) % 8)


def _checksum(numbers: Sequence[int]) -> int:
    return zlib.crc32(repr(tuple(numbers)).encode()) % LIMIT


class CountingEnv(gymnasium.Env[NDArray[np.float32], Any]):
    """Two actions without effect; observations (7,) count, see `Place`; every step has a reward that follows from it.

    Args:
        length: steps of an episode; 0: it never ends.
        spread: steps by which the i-th episode of an instance is longer at most, by a fixed rule.
        ending: `"terminated"`, `"truncated"`, or `"turns"` for one after the other.
    """

    def __init__(self, length: int = 20, spread: int = 0, ending: str = "terminated") -> None:
        global _made
        if ending not in ("terminated", "truncated", "turns"):
            raise ValueError(f"ending: expected terminated, truncated or turns, got {ending!r}")
        self.observation_space: Any = spaces.Box(0.0, float(LIMIT), (PIECES,), np.float32)
        self.action_space: Any = spaces.Discrete(2)
        here = whereabouts()
        self._length, self._spread, self._ending = length, spread, ending
        self.place = Place(here.index, here.epoch, _made, -1, 0, 0)
        _made += 1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin the next episode; the seed changes nothing."""
        super().reset(seed=seed, options=options)
        self.place = self.place._replace(episode=self.place.episode + 1, step=0)
        return encode(self.place), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """One step further, whatever the action."""
        del action
        self.place = self.place.after_one_step()
        over = self.place.step == self._this_length()
        by_time = self._ending == "truncated" or (self._ending == "turns" and self.place.episode % 2 == 1)
        return encode(self.place), reward_of(self.place), over and not by_time, over and by_time, {}

    def _this_length(self) -> int:
        if self._length == 0:
            return 0
        return self._length + (self.place.episode * 7919 + self.place.executor) % (self._spread + 1)
