"""Made-up rows for algorithms, in sizes that a run has and in sizes that it has not; and a look at their steps."""

import contextlib

import numpy as np

from mlxe_async.algorithms import load_algorithm
from mlxe_async.maths import reward_scaling
from mlxe_async.optimisers import FlatOptimiser
from mlxe_async.rows import Spaces

SPACES = Spaces((4,), actions=3)


def agent(name, *, spaces=SPACES, seed=1, kind=None, **settings):
    """A learning object of a built-in algorithm, or of another class with its settings."""
    built_in = load_algorithm(name)
    return (kind or built_in)(built_in.Settings.model_validate(settings), spaces, seed=seed, learns=True)


def rollout(algorithm, *, length=16, width=4, seed=0, scale=1.0):
    """Time-major rows (T, B, ...) with ends of every kind, and rewards and behaviour of some size."""
    rng, shape = np.random.default_rng(seed), (length, width)
    spaces = algorithm.spaces
    seen = scale * rng.normal(size=(length + 1, width, *spaces.observation_shape))
    seen = rng.integers(0, 256, seen.shape) if spaces.observation_dtype == "|u1" else seen
    seen = seen.astype(spaces.observation_dtype)
    rows = {name: np.zeros(shape, np.uint8) for name in ("terminated", "truncated", "cut")}
    rows["cut"][-1] = 1
    step, episode = np.broadcast_to(np.arange(length)[:, None], shape).copy(), np.zeros(shape, np.int64)
    for column, name in enumerate(("terminated", "truncated")):
        end = length // 2 + column
        if column < width and end < length - 1:
            rows[name][end, column] = 1
            step[end + 1 :, column] = np.arange(length - 1 - end)
            episode[end + 1 :, column] = 1
    rows |= {"obs": seen[:-1], "next_obs": seen[1:].copy(), "reward": (scale * rng.normal(size=shape)).astype("<f4")}
    if spaces.actions is None:
        raw = rng.normal(size=(*shape, *spaces.action_shape)).astype(np.float32)
        low, high = (np.array(bound, np.float32) for bound in (spaces.action_low, spaces.action_high))
        rows["raw_action"], actions = raw, low + (high - low) * (np.tanh(raw) + 1) / 2
        log_prob = rng.normal(size=shape).astype(np.float32)
    else:
        actions = np.asarray(rng.integers(0, spaces.actions, shape))
        log_prob = (-np.log(spaces.actions) + 0.3 * scale * rng.normal(size=shape)).astype(np.float32)
    rows |= {"action": actions, "log_prob": log_prob, "version": np.zeros(shape, np.int64)}
    for column in (*algorithm.extra_columns, *algorithm.stop_columns):
        rows.setdefault(column.name, rng.normal(size=(*shape, *column.shape)).astype(column.dtype))
    if reward_scaling.CARRY in algorithm.carry:
        rows[reward_scaling.CARRY.name] = scale * rng.normal(size=width)
    valid = np.ones(shape, bool)
    if width > 2:
        valid[length - 2 :, 2] = False
    return rows | {"valid": valid, "episode": episode, "step": step}


def batch(algorithm, *, rows=32, seed=0, scale=1.0):
    """What a memory would hand to `update`: a rollout, replayed rows, or windows of them."""
    rng = np.random.default_rng([seed, 1])
    if algorithm.memory == "rollouts":
        return rollout(algorithm, width=max(3, rows // 16), seed=seed, scale=scale)
    if algorithm.window > 1:
        found = rollout(algorithm, length=algorithm.window, width=rows, seed=seed, scale=scale)
        return found | {"weight": rng.uniform(0.2, 1, rows).astype(np.float32)}
    found = {name: column[:, 1] for name, column in rollout(algorithm, length=rows, seed=seed, scale=scale).items()}
    del found["valid"]
    half = int(np.flatnonzero(found["truncated"])[0]) + 1 if found["truncated"].any() else rows
    parts = [{n: c[piece] for n, c in found.items()} for piece in (slice(half), slice(half, rows)) if half]
    derived = [algorithm.derive(part) for part in parts if len(part["obs"])]
    found |= {name: np.concatenate([one[name] for one in derived]) for name in derived[0]}
    return found | {"weight": rng.uniform(0.2, 1, rows).astype(np.float32)}


class Steps:
    """Stands in for an optimiser, and shows each gradient before it is stepped by."""

    def __init__(self, real, look):
        self.real, self.look = real, look

    def __getattr__(self, name):
        return getattr(self.real, name)

    def step(self, *rate):
        self.look(self.real.gradient)
        self.real.step(*rate)


@contextlib.contextmanager
def steps_shown(algorithm, look):
    """Inside, all optimisers of an algorithm show their gradients."""
    real = {name: one for name, one in vars(algorithm).items() if isinstance(one, FlatOptimiser)}
    vars(algorithm).update({name: Steps(one, look) for name, one in real.items()})
    try:
        yield
    finally:
        vars(algorithm).update(real)
