"""Environments of any space: what they show is drawn from it, what they are given they keep."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Drawn(gymnasium.Env):
    """Shows members of a space that is told, drawn by the seed; `shown` are those since the reset."""

    made: ClassVar[list[Drawn]] = []

    def __init__(
        self,
        observation: Any = None,
        action: Any = None,
        mask: Any = None,
        end_at: int = 0,
        wrong: Any = None,
        wrong_at: int = 1,
    ) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32) if observation is None else observation
        self.action_space = spaces.Discrete(3) if action is None else action
        self.mask, self.end_at, self.wrong, self.wrong_at = mask, end_at, wrong, wrong_at
        self.shown: list[Any] = []
        self.given: list[Any] = []
        Drawn.made.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.count, self.shown = 0, []
        return self._look(), self._info()

    def step(self, action):
        self.count += 1
        self.given.append(action)
        return self._look(), 1.0, self.count == self.end_at, False, self._info()

    def _look(self):
        self.shown.append(self.observation_space.sample())
        if self.wrong is not None and self.count == self.wrong_at:
            return self.wrong(self.shown[-1])
        return self.shown[-1]

    def _info(self):
        if self.mask is None:
            return {}
        mask = self.mask(self.count) if callable(self.mask) else self.mask
        return {} if mask is None else {"action_mask": mask}


class Help:
    """One more input: the sum of the others; the mirror image has the first number's sign changed."""

    symmetry: ClassVar = {"observation_sign": [-1, 1, 1, 1, 1, 1, 1, 1], "action_order": [2, 1, 0]}

    def features(self, obs):
        return obs.sum(1, keepdims=True)


class Helped(Drawn):
    """Declares what may be added to what it shows."""

    mlxe_help = Help()


def drawn_space(rng: np.random.Generator, depth: int = 2) -> spaces.Space:
    """A space that is drawn, of leaves and, while `depth` lasts, of Dicts and Tuples."""
    kind = rng.integers(0, 9 if depth else 7)
    if kind == 0:
        return spaces.Discrete(int(rng.integers(1, 6)), start=int(rng.integers(-3, 4)))
    if kind == 1:
        counts = rng.integers(1, 5, rng.integers(1, 4))
        return spaces.MultiDiscrete(counts, start=rng.integers(-2, 3, counts.shape))
    if kind == 2:
        return spaces.MultiDiscrete(rng.integers(1, 4, (2, 3)))
    if kind == 3:
        return spaces.MultiBinary([int(n) for n in rng.integers(1, 4, rng.integers(1, 3))])
    shape = tuple(int(n) for n in rng.integers(1, 4, rng.integers(0, 4)))
    if kind == 4:
        return spaces.Box(0, 255, shape, np.uint8)
    if kind in (5, 6):
        return spaces.Box(-2, 2, shape, [np.float32, np.float64, np.float16][rng.integers(3)])
    below = [drawn_space(rng, depth - 1) for _ in range(rng.integers(1, 4))]
    if kind == 7:
        return spaces.Tuple(below)
    return spaces.Dict({f"key{n}": space for n, space in enumerate(below)})


def leaves_of(space: spaces.Space, value: Any, name: str = "") -> dict[str, tuple[spaces.Space, Any]]:
    """Name -> space and value of each leaf."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        keys = list(space.spaces) if isinstance(space, spaces.Dict) else range(len(space.spaces))
        found = {}
        for key in keys:
            found |= leaves_of(space[key], value[key], f"{name}.{key}" if name else str(key))
        return found
    return {name or "observation": (space, value)}


def numbers_of(space: spaces.Space, value: Any) -> np.ndarray:
    """What is to be stored of a leaf's value, by gymnasium's own flattening where there is one."""
    if isinstance(space, spaces.Box):
        return np.asarray(value, np.uint8 if space.dtype == np.uint8 else np.float32)
    if isinstance(space, spaces.MultiDiscrete):
        entries = zip(space.nvec.ravel(), (value - space.start).ravel(), strict=True)
        return np.concatenate([np.eye(count)[index] for count, index in entries]).astype(np.float32)
    return spaces.flatten(space, value).astype(np.float32).ravel()


def no_vector(*given: Any, **kwargs: Any) -> None:
    raise AssertionError("this vector is not to be made")


gymnasium.register("Vectorised-v0", entry_point=Drawn, vector_entry_point=no_vector)
