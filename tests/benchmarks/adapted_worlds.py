"""Environments of other interfaces behind gymnasium's, as a user of theirs would write them: for `third_party.py`.

Each imports its package when it is made, for each package lies in a virtual environment of its own.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Answer = tuple[Any, float, bool, bool, dict[str, Any]]


class Crafter(gymnasium.Env[Any, Any]):
    """Crafter has gym's old interface: one flag for the end, and its seed in the constructor."""

    def __init__(self) -> None:
        import crafter

        self._make = crafter.Env
        self.observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = spaces.Discrete(crafter.Env(seed=0).action_space.n)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._env = self._make(seed=int(self.np_random.integers(2**31)))
        return self._env.reset(), {}

    def step(self, action: Any) -> Answer:
        obs, reward, done, info = self._env.step(action)
        dead = info["discount"] == 0
        return obs, float(reward), dead, done and not dead, {}


class Gymnax(gymnasium.Env[Any, Any]):
    """One environment of gymnax's, functions in JAX, in the wrapper that gymnax has for it."""

    def __init__(self, name: str) -> None:
        import gymnax
        from gymnax.wrappers.gym import GymnaxToGymWrapper

        self._env = GymnaxToGymWrapper(*gymnax.make(name))
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        obs, _ = self._env.reset(seed=seed)
        return np.asarray(obs), {}

    def step(self, action: Any) -> Answer:
        obs, reward, terminated, truncated, _ = self._env.step(action)
        return np.asarray(obs), float(reward), bool(terminated), bool(truncated), {}


class AgainstChance(gymnasium.Env[Any, Any]):
    """A board game of PettingZoo's for two, the second of whom moves at random; with a mask of allowed moves."""

    def __init__(self, game: str) -> None:
        import importlib

        self._game = importlib.import_module(f"pettingzoo.classic.{game}").env()
        self._game.reset(seed=0)
        self._me, self._other = self._game.possible_agents
        shown = self._game.observation_space(self._me)["observation"]
        self.observation_space = spaces.Box(0, 1, (int(np.prod(shown.shape)),), np.float32)
        self.action_space = self._game.action_space(self._me)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._game.reset(seed=int(self.np_random.integers(2**31)))
        return self._seen()

    def step(self, action: Any) -> Answer:
        self._game.step(action)
        if not self._over():
            allowed = np.flatnonzero(self._game.observe(self._other)["action_mask"])
            self._game.step(int(self.np_random.choice(allowed)))
        return self._seen()[0], float(self._game.rewards[self._me]), self._over(), False, self._seen()[1]

    def _over(self) -> bool:
        return any(self._game.terminations.values()) or any(self._game.truncations.values())

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        seen = self._game.observe(self._me)
        return seen["observation"].astype(np.float32).ravel(), {"action_mask": seen["action_mask"].astype(np.int8)}


class Scalarised(gymnasium.Env[Any, Any]):
    """An environment of mo-gymnasium's, whose rewards are vectors, with their sum as the reward."""

    def __init__(self, name: str) -> None:
        import mo_gymnasium

        self._env = mo_gymnasium.make(name)
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        found: tuple[Any, dict[str, Any]] = self._env.reset(seed=seed)
        return found

    def step(self, action: Any) -> Answer:
        obs, reward, terminated, truncated, info = self._env.step(action)
        return obs, float(np.sum(reward)), bool(terminated), bool(truncated), info


class Stateless(gymnasium.Env[Any, Any]):
    """Five arms and nothing to see: observations have no entry."""

    observation_space = spaces.Box(-1.0, 1.0, (0,), np.float32)
    action_space = spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(0, np.float32), {}

    def step(self, action: Any) -> Answer:
        reward = float(self.np_random.random() < 0.15 * (int(action) + 1))
        return np.zeros(0, np.float32), reward, True, False, {}
