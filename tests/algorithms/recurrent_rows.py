"""Algorithms with a recurrent cell, and rollouts as their own executors would have stored them."""

import numpy as np

from mlxe_async.algorithms import Acting, load_algorithm
from mlxe_async.parts import BYTES
from mlxe_async.rows import Spaces

NUMBERS = Spaces((3,), action_shape=(2,), action_low=(-1.0, -2.0), action_high=(1.0, 2.0))
SPACES = {
    "one choice": Spaces((3,), actions=4),
    "several": Spaces((3,), action_shape=(2,), action_kind="multi_discrete", action_sizes=(2, 3)),
    "numbers": NUMBERS,
    "pictures": Spaces((2, 12, 12), observation_dtype=BYTES, actions=2),
}
T, B = 24, 3
DILATED = {"cell": "dilated", "cell_cores": 3}


def made(name, spaces="one choice", learns=True, **settings):
    kind, body = load_algorithm(name), {"body": "small", "normalise": False} if spaces == "pictures" else {}
    chosen = {"cell": "lstm", "cell_size": 8, "common": (6,), "policy": (5,), "value": (5,)} | body | settings
    return kind(kind.Settings(**chosen), SPACES[spaces], seed=3, learns=learns)


def rollout(algorithm, steps=T, envs=B, seed=0, loud=True):
    """A rollout (T, B, ...) that an executor's object makes; episodes begin and end in the middle."""
    rng, spaces = np.random.default_rng(seed), algorithm.spaces
    acting, rows = Acting().start(algorithm.carry, envs), []
    step, episode = np.array([5, 0, 9][:envs]), np.zeros(envs, np.int64)
    for column in acting.carry.values():
        column[:] = rng.normal(size=column.shape) if loud else 0
    for column in acting.carry.values():
        column[step == 0] = 0
    obs = observation(spaces, envs, rng)
    for _ in range(steps):
        before = {name: column.copy() for name, column in acting.carry.items()}
        row = algorithm.act(obs, rng, acting) | before
        ended, truncated = rng.random(envs) < 0.08, rng.random(envs) < 0.08
        following = observation(spaces, envs, rng)
        row |= {"obs": obs, "next_obs": following, "reward": rng.normal(size=envs).astype(np.float32)}
        row |= {"terminated": ended, "truncated": truncated & ~ended, "cut": np.zeros(envs, bool)}
        row |= {"step": step.copy(), "episode": episode.copy(), "valid": np.ones(envs, bool)}
        rows.append(row)
        stops = ended | truncated
        acting.begin(stops)
        step, episode = np.where(stops, 0, step + 1), episode + stops
        obs = np.where(stops.reshape(-1, *(1,) * (obs.ndim - 1)), observation(spaces, envs, rng), following)
    found = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    for column in algorithm.carry:
        if column.per_rollout:
            found[column.name] = found[column.name][0]
    found["terminated"], found["truncated"], found["cut"], found["valid"] = (
        found[name].astype(np.uint8) for name in ("terminated", "truncated", "cut", "valid")
    )
    return found


def observation(spaces, envs, rng):
    if spaces.observation_dtype == BYTES:
        return rng.integers(0, 256, (envs, *spaces.observation_shape)).astype(np.uint8)
    return rng.normal(size=(envs, *spaces.observation_shape)).astype(np.float32)


def shorter(batch):
    """The same, of which the second environment's sequence ends earlier."""
    found = {name: column.copy() for name, column in batch.items()}
    for column in found.values():
        if column.shape[:2] == (T, B):
            column[T // 2 :, 1] = 0
    return found
