"""A package like EnvPool with toys in it, whose every step is known: seeds, limits and resets are as EnvPool's."""

from __future__ import annotations

from collections import namedtuple
from types import SimpleNamespace

import gymnasium
import numpy as np

BOX = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
DISCRETE = gymnasium.spaces.Discrete(2)
FAMILIES = {"Toy-v0": "envpool.classic_control", "TimedToy-v0": "envpool.minigrid", "Pong-v5": "envpool.atari"}
FAMILIES["Two-v0"] = "envpool.pgx"
Config = namedtuple(
    "Config", "num_envs num_threads seed env_seed max_episode_steps max_num_players stretch fault reward_threshold"
)
DEFAULTS = Config(1, 0, 42, [], 100, 1, 1, "", 7.5)


class ToyPool:
    """Observations say (episode, step, digits of the seed); an episode of environment i has stretch * (2 + i) steps."""

    observation_space, action_space = BOX, DISCRETE

    def __init__(self, count, most, seeds, stretch, fault):
        self.count, self.most, self.seeds, self.fault = count, most, np.array(seeds) % 1000, fault
        self.length = stretch * (2 + np.arange(count))
        self.episode, self.elapsed, self.done = np.full(count, -1), np.zeros(count, int), np.zeros(count, bool)
        self.calls = self.closed = 0

    def _shown(self, which):
        obs = np.stack([self.episode, self.elapsed, self.seeds], -1)[which].astype(np.float32)
        return obs, {"elapsed_step": self.elapsed[which].astype(np.int32)}

    def _begin(self, which):
        self.episode[which] += 1
        self.elapsed[which] = 0
        self.done[which] = False

    def reset(self, which=None):
        which = np.arange(self.count) if which is None else which
        self._begin(which)
        return self._shown(which)

    def step(self, actions):
        self.calls += 1
        assert actions.shape == (self.count,)
        resetting = self.done.copy()
        self.elapsed[~resetting] += 1
        self._begin(resetting)
        at_limit = self.elapsed >= self.most
        self.done = ~resetting & ((self.elapsed >= self.length) | at_limit)
        obs, info = self._shown(np.arange(self.count))
        reward = np.where(resetting, 0.0, 1.0).astype(np.float32)
        if self.fault and self.calls == 2:
            if self.fault == "raise":
                raise OSError("lost")
            if self.fault == "nan":
                obs[1, 0] = np.nan
            if self.fault == "elapsed":
                info["elapsed_step"] = np.zeros(self.count, np.int32)
            if self.fault == "reward":
                reward = reward[:1]
        truncated = self.done & at_limit
        return obs, reward, self.done & ~truncated, truncated, info

    def close(self):
        self.closed += 1


class Toys:
    """Stands for the package; `made` are its pools, with what they were asked for."""

    def __init__(self):
        self.made = []
        self.registration = SimpleNamespace(registry=SimpleNamespace(specs={n: (f,) for n, f in FAMILIES.items()}))

    def make_spec(self, name, **given):
        players = 2 if name == "Two-v0" else 1
        config = DEFAULTS._replace(max_num_players=players, **given)
        return SimpleNamespace(config=config, observation_space=BOX, action_space=DISCRETE)

    def make_gymnasium(self, name, **given):
        config = self.make_spec(name, **given).config
        pool = ToyPool(config.num_envs, config.max_episode_steps, config.env_seed, config.stretch, config.fault)
        self.made.append((given, pool))
        return pool
