"""Every key of every built-in algorithm: another value changes a short run, or the key is refused where it does not.

A run is the real thing in small, in this process: an object that acts, the memory and the memorizer, and the learner
that updates and publishes. What it comes to are all actions, their log-probabilities, and all published weights.
"""

import functools
import itertools
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from mlxe_async.algorithms import REGISTRY, Acting, Clock, load_algorithm
from mlxe_async.maths.generators import generator_words
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.roles.learner import Learner
from mlxe_async.roles.memorizer import Memorizer, MemorizerPlan
from mlxe_async.rows import RowLayout, Spaces, Symmetry, standard_columns
from mlxe_async.settings import algorithm_problems
from mlxe_async.settings.effects import idle_in

ROUNDS, STEPS, ENVS, UPDATES = 3, 12, 2, 12
LIMITS = (2.0, None, 1.0, None)
PLAIN = Spaces((4,), actions=2, limits=LIMITS)
MIRRORED = Spaces((4,), actions=2, limits=LIMITS, symmetry=Symmetry((-1.0,) * 4, (1, 0)))
PICTURES = Spaces((1, 36, 36), "|u1", 2)
INTEGERS = Spaces((4,), actions=2, observation_sizes=(4,))
BOX = Spaces((4,), action_shape=(1,), action_low=(-2.0,), action_high=(3.0,), limits=LIMITS)

EXPLORING, BOXED = ("c51", "ddpg", "dqn", "q_learning", "rainbow", "sac", "sarsa", "td3"), ("ddpg", "sac", "td3")
TABULAR = ("q_learning", "sarsa")
SMALL = {"common": [6], "policy": [5], "value": [5]}
MLXE = {**SMALL, "batch": 16, "min_updates": 3, "learning_rate": 0.02, "max_gradient_norm": 0.5}
DQN = {"layers": [8], "batch": 16, "start_rows": 20, "train_every": 2, "target_every": 20, "learning_rate": 0.05}
C51 = {**DQN, "v_max": 30.0, "atoms": 9}
RAINBOW = {**C51, "noise_every": 2}
CELL = {"cell": "gru", "cell_size": 5, "layers": [8, 6], "sequence_steps": 3, "burn_in": 2, "n_step": 2}
PRIORITISED = {"prioritised": True, "priority_correction_steps": 60}
PPO = {**SMALL, "epochs": 2, "minibatch": 8, "learning_rate": 0.02}
REMEMBERING = {"cell": "lstm", "cell_size": 6}
DILATED = {"cell": "dilated", "cell_size": 6, "cell_cores": 2}
A2C = {**SMALL, "learning_rate": 0.02, "entropy": 0.05}
BOUNDED = {**A2C, "clip": 0.1, "value_clip": 3.0, "targets": "return"}
TIGHTLY = {"value_clip": 0.1, "gae_lambda": 0.5}
REINFORCE = {**A2C, "baseline": "learned", "rows_per_update": 0}
CONTINUOUS = {"layers": [8], "batch": 16, "start_rows": 20, "train_every": 2, "target_rate": 0.1, "learning_rate": 0.05}
CONTINUOUS |= {"critic_learning_rate": 0.05}
DDPG = {**CONTINUOUS, "noise_first": 0.3, "noise_steps": 60}
APEX = {"layers": [8, 6], "batch": 16, "start_rows": 20, "replay_ratio": 8.0, "target_every": 20, "learning_rate": 0.05}
TABLE = {"learning_rate": 0.4, "learning_rate_last": 0.1, "epsilon_steps": 40}
MIXED = {"behaviour": "epsilon_greedy", "epsilon": 0.4, "epsilon_factor": 0.9}
FACTORS = {"priorities": ["age", "risk", "td"], "priority_correction": 0.5, "priority_exponent_growth": 0.1}
BASES = {
    "mlxe": {
        "plain": MLXE,
        "mirrored": MLXE,
        "mixed": {**MLXE, **MIXED},
        "reversed": {**MLXE, **MIXED, "behaviour": "reversed", "epsilon_clock": "episode"},
        "constant mixture": {**MLXE, **MIXED, "epsilon_factor": 1.0},
        "noisy": {**MLXE, "noisy": True},
        "steps to end": {**MLXE, "returns": "steps_to_end"},
        "by state": {**MLXE, "returns": "state"},
        "survival": {**MLXE, "value_scale": "survival"},
        "categorical": {**MLXE, "value_scale": "categorical"},
        "vtrace": {**MLXE, "correction": "vtrace", "n_step": 3},
        "uncorrected": {**MLXE, "correction": "none"},
        "factors": {**MLXE, **FACTORS},
        "every k": {**MLXE, "target": "every_k", "target_every": 3},
        "normalised": {**MLXE, "normalise": True, "average": 0.2},
        "constant rate": {**MLXE, "learning_rate_decay": 1.0},
        "least rate": {**MLXE, "learning_rate_min": 0.1},
        "linear": {**MLXE, "common": [], "policy": [], "value": []},
        "short-sighted": {**MLXE, "discount": 0.0},
        "no minimum": {**MLXE, "min_updates": 0, "train_every": 4},
        "pictures": {**MLXE, "body": "nature", "min_updates": 1, "batch": 8},
    },
    "dqn": {
        "plain": DQN,
        "mirrored": DQN,
        "softmax": {**DQN, "behaviour": "softmax"},
        "constant mixture": {**DQN, "epsilon_first": 0.1, "epsilon_last": 0.1},
        "survival": {**DQN, "value_scale": "survival"},
        "per episode": {**DQN, "min_updates": 3},
        "constant rate": {**DQN, "learning_rate_last": 0.05},
        "linear": {**DQN, "layers": []},
        "short-sighted": {**DQN, "discount": 0.0},
        "pictures": {**DQN, "body": "nature", "batch": 8, "start_rows": 8, "target_every": 2},
        "dueling": {**DQN, "dueling": True},
        "prioritised": {**DQN, **PRIORITISED},
        "constant correction": {**DQN, **PRIORITISED, "priority_correction": 1.0},
        "even": {**DQN, **PRIORITISED, "priority_exponent": 0.0},
        "with a cell": {**DQN, **CELL},
        "dilated, with a cell": {**DQN, **CELL, "cell": "dilated", "cell_cores": 2},
        "rescaled, with a cell": {**DQN, **CELL, **PRIORITISED, "value_rescaling": True},
        "noisy": {**DQN, "noisy": True},
        "without a target network": {**DQN, "target_every": 1},
        "noisy, without one": {**DQN, "target_every": 1, "noisy": True, "noise_sigma": 5.0},
        "noisy pictures": {**DQN, "body": "nature", "batch": 8, "start_rows": 8, "target_every": 2, "noisy": True}
        | {"learning_rate": 1e-3, "noise_sigma": 5.0},
    },
    "apex": {
        "plain": APEX,
        "mirrored": APEX,
        "constant rate": {**APEX, "learning_rate_last": 0.05},
        "all alike": {**APEX, "epsilon_exponent": 0.0},
        "at random": {**APEX, "epsilon": 1.0},
        "linear": {**APEX, "layers": []},
        "short-sighted": {**APEX, "discount": 0.0},
        "pictures": {**APEX, "body": "nature", "batch": 8, "start_rows": 8, "target_every": 2},
    },
    "c51": {
        "plain": C51,
        "mirrored": C51,
        "softmax": {**C51, "behaviour": "softmax"},
        "per episode": {**C51, "min_updates": 3},
        "constant rate": {**C51, "learning_rate_last": 0.05},
        "linear": {**C51, "layers": []},
        "short-sighted": {**C51, "discount": 0.0},
        "pictures": {**C51, "body": "nature", "batch": 8, "start_rows": 8, "target_every": 2},
        "prioritised": {**C51, **PRIORITISED},
        "noisy": {**C51, "noisy": True},
        "without a target network": {**C51, "target_every": 1},
    },
    "rainbow": {
        "plain": RAINBOW,
        "mirrored": RAINBOW,
        "quiet": {**C51, "noisy": False},
        "softmax": {**C51, "noisy": False, "behaviour": "softmax"},
        "short-sighted": {**RAINBOW, "discount": 0.0},
        "linear": {**RAINBOW, "layers": []},
        "prioritised": {**RAINBOW, **PRIORITISED},
        "even": {**RAINBOW, "prioritised": False},
        "with a cell": {**RAINBOW, **CELL},
        "dilated, with a cell": {**RAINBOW, **CELL, "cell": "dilated", "cell_cores": 2},
        "pictures": {**RAINBOW, "body": "nature", "batch": 8, "start_rows": 8, "target_every": 2, "noise_sigma": 5.0},
    },
    "sac": {
        "plain": CONTINUOUS,
        "numbered": CONTINUOUS,
        "several steps": {**CONTINUOUS, "n_step": 3},
        "normalised": {**CONTINUOUS, "normalise": True},
        "constant temperature": {**CONTINUOUS, "temperature_learning_rate": 0.0},
        "linear": {**CONTINUOUS, "layers": []},
        "short-sighted": {**CONTINUOUS, "discount": 0.0},
    },
    "td3": {
        "plain": DDPG,
        "ou": {**DDPG, "noise": "ou"},
        "constant noise": {**DDPG, "noise_first": 0.1},
        "unsmoothed": {**DDPG, "target_noise": 0.0},
        "normalised": {**DDPG, "normalise": True, "n_step": 3},
        "linear": {**DDPG, "layers": []},
        "short-sighted": {**DDPG, "discount": 0.0},
    },
    "ddpg": {
        "plain": DDPG,
        "ou": {**DDPG, "noise": "ou"},
        "constant noise": {**DDPG, "noise_first": 0.1},
        "decayed": {**DDPG, "critic_decay": 0.1, "n_step": 2},
        "short-sighted": {**DDPG, "discount": 0.0},
    },
    "ppo": {
        "plain": PPO,
        "linear": {**PPO, "common": [], "policy": [], "value": []},
        "constant rate": {**PPO, "learning_rate_last": 0.02},
        "short-sighted": {**PPO, "discount": 0.0},
        "pictures": {**PPO, "normalise": False, "body": "nature"},
        "numbers": PPO,
        "numbers as the actor says": {**PPO, "deviation": "computed"},
        "all that is annealed": {
            **PPO,
            "clip": 0.01,
            "anneal_steps": 60,
            "annealed": ["clip", "entropy"],
            "learning_rate_last": 0.02,
        },
        "bounded": {**PPO, "value_clip": 0.1, "kl_penalty_target": 0.01, "value_epochs": 1},
        "one step": {**PPO, "epochs": 1, "minibatch": 24},
        "one step of sequences": {**PPO, "epochs": 1, "minibatch": 24, "minibatches": "sequences"},
        "sequences": {**PPO, "minibatch": 24, "minibatches": "sequences"},
        "lagging": {**PPO, "epochs": 1, "minibatch": 24},
        "one annealed step": {**PPO, "epochs": 1, "minibatch": 24, "learning_rate_last": 0.02}
        | {"anneal_steps": 600, "annealed": ["entropy"]},
        "a step of the critic": {**PPO, "minibatch": 24, "value_epochs": 1},
        "steps of the critic": {**PPO, "epochs": 1, "minibatch": 24, "value_epochs": 2},
        "no critic": {**PPO, "value_coefficient": 0.0},
        "no bonus": {**PPO, "entropy": 0.0},
        "remembering": {**PPO, **REMEMBERING, "sequence_steps": 4},
        "dilated": {**PPO, **DILATED, "sequence_steps": 4},
        "remembering sequences": {**PPO, **REMEMBERING, "minibatch": 24, "minibatches": "sequences"},
    },
    **{
        name: {
            "plain": TABLE,
            "softmax": {**TABLE, "behaviour": "softmax", "temperature": 0.5},
            "constant mixture": {**TABLE, "epsilon_first": 0.1, "epsilon_last": 0.1},
            "constant rate": {**TABLE, "learning_rate_last": 0.4},
            "short-sighted": {**TABLE, "discount": 0.0},
        }
        for name in TABULAR
    },
    **{
        name: {
            "plain": table,
            "linear": {**table, "common": [], "policy": [], "value": []},
            "constant rate": {**table, "learning_rate_last": 0.02},
            "short-sighted": {**table, "discount": 0.0},
            "pictures": {**table, "normalise": False, "body": "nature"},
            "numbers": table,
            "annealed": {**table, "annealed": ["entropy"], "learning_rate_last": 0.02},
            "no critic": {**table, "value_coefficient": 0.0},
            "no bonus": {**table, "entropy": 0.0},
            "remembering": {**table, **REMEMBERING},
            "dilated": {**table, **DILATED},
            **more,
        }
        for name, table, more in (
            ("a2c", A2C, {"bounded": BOUNDED, "tightly": {**BOUNDED, **TIGHTLY}, "lagging": A2C}),
            ("impala", A2C, {"bounded": {**A2C, "value_clip": 0.1, "rho_clip": 2.0, "c_clip": 0.5}, "lagging": A2C}),
            ("reinforce", REINFORCE, {"without a critic": {**REINFORCE, "baseline": "mean", "value": [64, 64]}}),
        )
    },
}
ANOTHER = {
    "activation": "relu",
    "anneal_steps": 30,
    "annealed": ["entropy"],
    "atoms": 21,
    "average": 0.3,
    "baseline": "mean",
    "batch": 11,
    "behaviour": "softmax",
    "body": "nature",
    "burn_in": 1,
    "c_clip": 0.1,
    "cell": "gru",
    "cell_cores": 3,
    "cell_layers": 2,
    "cell_size": 7,
    "cells": "apart",
    "clip": 0.01,
    "common": [7],
    "correction": "none",
    "critic_decay": 0.5,
    "critic_learning_rate": 0.002,
    "deviation": "computed",
    "discount": 0.5,
    "discount_low": 0.1,
    "discount_curve": [0.3, 0.2, 0.4, 0.7],
    "double": False,
    "dueling": True,
    "entropy": 0.5,
    "epochs": 3,
    "epsilon": 0.8,
    "epsilon_clock": "iteration",
    "epsilon_exponent": 2.0,
    "epsilon_factor": 0.5,
    "epsilon_first": 0.5,
    "epsilon_last": 0.9,
    "epsilon_max": 0.1,
    "epsilon_min": 0.9,
    "epsilon_steps": 20,
    "faithful_truncation": True,
    "gae_lambda": 0.2,
    "initial": 5.0,
    "input_scale": [2.0, 1.0, 1.0, 1.0],
    "kl_penalty_target": 1e-7,
    "layer_norm": True,
    "layers": [7],
    "learning_rate": 0.03,
    "learning_rate_decay": 0.5,
    "learning_rate_last": 0.0,
    "learning_rate_min": 0.5,
    "log_std": -1.0,
    "loss": "square",
    "max_gradient_norm": 0.01,
    "max_kl": 1e-9,
    "min_updates": 5,
    "minibatch": 5,
    "minibatches": "sequences",
    "mirror": False,
    "n_step": 2,
    "noise": "ou",
    "noise_every": 3,
    "noise_first": 0.5,
    "noise_last": 0.9,
    "noise_pull": 0.9,
    "noise_sigma": 0.2,
    "noise_steps": 20,
    "noisy": True,
    "normalise": True,
    "optimiser": "adam",
    "policy": [7],
    "policy_delay": 3,
    "precision": "bfloat16",
    "priorities": ["age"],
    "prioritised": True,
    "priority_correction": 1.0,
    "priority_correction_last": 0.0,
    "priority_correction_steps": 30,
    "priority_exponent": 1.0,
    "priority_exponent_growth": 0.3,
    "ratio_clip": 0.3,
    "replay_ratio": 3.0,
    "return_scale": 3.0,
    "returns": "steps_to_end",
    "reward_scaling": True,
    "rho_clip": 0.1,
    "rows_per_update": 30,
    "sequence_states": "recomputed",
    "sequence_steps": 5,
    "start_rows": 50,
    "hold_steps": 3,
    "target": "per_iteration",
    "target_entropy": 0.3,
    "target_every": 2,
    "target_noise": 0.9,
    "target_noise_clip": 0.01,
    "target_rate": 0.3,
    "targets": "return",
    "temperature": 3.0,
    "temperature_learning_rate": 0.5,
    "train_every": 5,
    "updates_each": 2,
    "updates_per": "iteration",
    "value": [7],
    "value_clip": 1e-3,
    "value_coefficient": 0.1,
    "value_epochs": 2,
    "value_high": 50.0,
    "value_low": -3.0,
    "value_rescaling": True,
    "value_scale": "survival",
    "v_max": 60.0,
    "v_min": -3.0,
}
"""Another value of each key; where the base has the very same, `OTHERWISE` is tried."""
OTHERWISE = {
    "annealed": [],
    "baseline": "learned",
    "deviation": "free",
    "double": True,
    "dueling": False,
    "n_step": 3,
    "prioritised": False,
    "targets": "gae",
    "behaviour": "epsilon_greedy",
    "body": "none",
    "cell": "lstm",
    "value_rescaling": False,
    "correction": "clipped",
    "layer_norm": False,
    "activation": "tanh",
    "noise": "gaussian",
    "noisy": False,
    "normalise": False,
    "optimiser": "rmsprop",
    "returns": "n_step",
    "value_scale": "return",
    "learning_rate_last": 1e-3,
}


FURTHER = {
    ("ppo", "all that is annealed"): [("annealed", ["clip"]), ("annealed", ["entropy"])],
    ("ppo", "one step"): [("annealed", ["clip"])],
    ("ppo", "one annealed step"): [("annealed", ["clip", "entropy"])],
}
"""More values of a key, where one is not enough."""


class OwnLane:
    """A lane in which nothing waits: rows are given to the memory directly."""

    position = 0

    def backlog(self):
        return 0

    def seek(self, sequence):
        pass


class Published:
    """The published weights, every version kept."""

    def __init__(self):
        self.flats = []

    @property
    def version(self):
        return len(self.flats)

    def latest(self):
        return self.version

    def read(self, into):
        into[:] = self.flats[-1]
        return self.version

    def publish(self, vector):
        self.flats.append(vector.copy())
        return self.version


QUIET = SimpleNamespace(enter=lambda *_: None, leave=lambda: None, spending=lambda _: nullcontext())


class World:
    """Rows of two environments that answer to what is done: some end, one is cut by a limit, the rest go on."""

    def __init__(self, spaces, layout):
        self.spaces, self.layout, self.rng = spaces, layout, np.random.default_rng(5)
        self.episode, self.step = np.zeros(ENVS, int), np.zeros(ENVS, int)
        self.obs = self.look(np.zeros(ENVS))

    def look(self, action):
        if self.spaces is PICTURES:
            return self.rng.integers(0, 256, (ENVS, *self.spaces.observation_shape), dtype=np.uint8)
        if self.spaces is INTEGERS:
            return np.eye(4, dtype=np.float32)[(self.rng.integers(0, 3, ENVS) + action).astype(int)]
        shift = np.asarray(action).reshape(ENVS, 1) - 0.5
        return (self.rng.normal(size=(ENVS, *self.spaces.observation_shape)) + shift).astype(np.float32)

    def rollout(self, actor, clock, version):
        blocks, acted, rng = [], [], np.random.default_rng([7, clock.rollouts])
        for t in range(STEPS):
            clock.begin(self.step == 0)
            carried = {name: column.copy() for name, column in clock.carry.items()}
            chosen = actor.act(self.obs, rng, clock) | carried
            acted.append(np.concatenate([chosen["action"].ravel(), chosen["log_prob"]]))
            clock.steps += ENVS
            following = self.look(chosen["action"])
            rows = self.layout.empty(ENVS)
            last = t == STEPS - 1
            terminated = np.array([t in (3, 8), False])
            truncated = np.array([False, t == 6])
            columns = {"obs": self.obs, "next_obs": following, "version": version, "last": last and [0, 1]}
            reward = 1.0 + chosen["action"].reshape(ENVS, -1).sum(-1) - 8.0 * terminated
            columns |= {"reward": reward, "terminated": terminated}
            if hasattr(actor, "after_step"):
                actor.after_step(clock, reward)
            columns |= {"truncated": truncated, "cut": last & ~terminated & ~truncated, "env": np.arange(ENVS)}
            columns |= {"episode": self.episode, "step": self.step, **chosen}
            if hasattr(actor, "at_stop"):
                stopped = np.flatnonzero(truncated | columns["cut"])
                for name, column in actor.at_stop(following[stopped]).items():
                    rows[name][stopped] = column
            for name in columns.keys() & rows.keys():
                rows[name][:] = columns[name]
            blocks.append(rows)
            over = terminated | truncated
            self.episode, self.step = self.episode + over, np.where(over, 0, self.step + 1)
            self.obs = following
        return blocks, acted


def run(name, settings, spaces, lag=0):
    """All that a short run comes to; executors act with weights `lag` versions older than the newest."""
    kind = load_algorithm(name)
    own = kind.Settings.model_validate(settings)
    learning = kind(own, spaces, seed=1, learns=True)
    acting, keeping = (kind(own, spaces, seed=0, learns=False) for _ in range(2))
    layout = RowLayout(standard_columns(spaces)).with_columns(
        (*learning.extra_columns, *learning.stop_columns, *learning.carry)
    )
    world, weights, clock, acted = World(spaces, layout), Published(), Acting().start(learning.carry, ENVS), []
    replays = learning.memory == "replay"
    if replays:
        shape = ReplayShape(
            lanes=1,
            envs=ENVS,
            stream_rows=200,
            keep_rows=64,
            block_rows=ENVS,
            batch_rows=learning.batch_rows,
            plan_updates=UPDATES,
            columns=layout.to_json(),
            derived=RowLayout(tuple(learning.derived_columns)).to_json(),
            prioritised=learning.priorities.kind == "td",
            largest_decay=learning.priorities.largest_decay,
            moments=getattr(learning, "moment_entries", 0),
        )
        memory = ReplayMemory(shape, bytearray(shape.nbytes))
        plan = MemorizerPlan(seed=0, block_rows=ENVS, redo=True, rollouts_per_update=None, plan_updates=UPDATES)
        how = {"algorithm": keeping, "memory": memory, "layout": layout, "lanes": [OwnLane()], "weights": weights}
        memorizer = Memorizer(plan, **how)
    else:
        memory = SimpleNamespace(kind="rollouts")
    learner = Learner(algorithm=learning, memory=memory, weights=weights, page=QUIET, update_timeout_s=9.0)
    learner.publish()
    updates, waiting = 0, []
    for round_ in range(ROUNDS):
        version = max(1, weights.version - lag)
        acting.load(weights.flats[version - 1])
        clock.rollouts, clock.episodes = round_, int(world.episode.sum())
        blocks, chosen = world.rollout(acting, clock, version)
        acted += chosen
        counts = {"env_steps": clock.steps, "episodes": int(world.episode.sum())}
        if not replays:
            batch = {name: np.stack([rows[name] for rows in blocks]) for name in blocks[0]}
            batch |= {column.name: batch[column.name][0] for column in learning.carry if column.per_rollout}
            batch["valid"] = np.ones((STEPS, ENVS), bool)
            waiting.append(batch)
            if len(waiting) * STEPS * ENVS < learning.rows_per_update:
                continue
            of_envs = {column.name for column in learning.carry if column.per_rollout}
            batch = {
                name: np.concatenate([one[name] for one in waiting], axis=0 if name in of_envs else 1) for name in batch
            }
            waiting.clear()
            learning.update(batch, Clock(**counts, updates=updates, version=weights.version))
            updates += 1
            learner.publish()
            continue
        for number, rows in enumerate(blocks, round_ * STEPS):
            memory.ingest(0, number, 1, rows, keeping.derive, drop_open=True)
        while (drawn := memorizer.memorize())["updates"]:
            updates += learner.learn(drawn, **counts, updates=updates)["updates"]
            memory.settle(drawn)
    acting.load(weights.flats[-1])
    # The epsilon or noise that is published counts by what is done with it, which the actions tell.
    learned = [flat[:-1] if name in EXPLORING else flat for flat in weights.flats]
    return [*map(np.asarray, acted), *learned, acting.greedy(world.obs), generator_words(learning.rng)]


def same(one, other, tolerance=0.0):
    """Whether two runs come to the same, bit for bit or within rounding."""
    if len(one) != len(other) or any(a.shape != b.shape for a, b in zip(one, other, strict=True)):
        return False
    return all(
        np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True) for a, b in zip(one, other, strict=True)
    )


def lag_of(base):
    return int(base == "lagging")


def spaces_of(name, base):
    if name in TABULAR:
        return INTEGERS
    of_base = {"mirrored": MIRRORED, "pictures": PICTURES, "noisy pictures": PICTURES, "numbered": PLAIN}
    return of_base.get(base, BOX if name in BOXED or base.startswith("numbers") else PLAIN)


def judged(name, key, base, value=None):
    """What becomes of another value of a key, `"refused"`, `"idle"` or `"lives"`; and the settings with it."""
    kind, table, spaces = load_algorithm(name), BASES[name][base], spaces_of(name, base)
    default = kind.Settings.model_fields[key].get_default(call_default_factory=True)
    if spaces is PICTURES and key == "layer_norm":
        default = False  # with a body, where nobody says otherwise
    present = table.get(key, list(default) if isinstance(default, tuple) else default)
    if value is None:
        value = ANOTHER[key] if present != ANOTHER[key] else OTHERWISE.get(key)
    assert value != present, (key, base)
    changed = {**table, key: value}
    schedule = {"kind": "is", "simulated_lag": lag_of(base), "sync": "rollout", "executors": 1}
    schedule |= {"envs_per_executor": ENVS, "rollout_steps": STEPS}
    task = {"mirror": spaces.symmetry is not None, "action_kind": spaces.action_kind, "env": "Own-v0"}
    beside = {"task": task, "schedule": schedule}
    if algorithm_problems(kind.Settings, changed):
        return "refused", changed
    if key in {problem.path[1] for problem in idle_in(kind.Settings, changed, beside)}:
        return "idle", changed
    try:
        kind(kind.Settings.model_validate(changed), spaces, seed=0, learns=False)
    except ValueError:
        return "refused", changed
    return "lives", changed


@functools.cache
def expected(name, base):
    return run(name, BASES[name][base], spaces_of(name, base), lag_of(base))


def what_it_comes_to(name, base, changed):
    return run(name, changed, spaces_of(name, base), lag_of(base))


OF_CELLS = "cell_size cell_layers"
OF_PRIORITIES = "priority_exponent priority_correction priority_correction_last priority_correction_steps"
LIVES_IN = {
    "mlxe": {
        "mixed": "epsilon epsilon_factor epsilon_clock epsilon_max",
        "constant mixture": "epsilon_min",
        "noisy": "noise_every",
        "by state": "discount_low",
        "steps to end": "discount_curve",
        "no minimum": "train_every",
        "categorical": "atoms value_low value_high",
        "factors": "priority_exponent priority_exponent_growth priority_correction",
        "every k": "target_every",
        "mirrored": "mirror",
        "pictures": "body precision",
    },
    "apex": {"mirrored": "mirror", "pictures": "body precision"},
    **{name: {"softmax": "temperature"} for name in TABULAR},
    "dqn": {
        "softmax": "temperature",
        "mirrored": "mirror",
        "pictures": "body precision",
        "prioritised": OF_PRIORITIES,
        "noisy": "noise_sigma noise_every",
        "with a cell": f"cell {OF_CELLS} sequence_steps burn_in",
        "dilated, with a cell": "cell_cores",
    },
    "c51": {
        "softmax": "temperature",
        "mirrored": "mirror",
        "pictures": "body precision",
        "prioritised": OF_PRIORITIES,
        "noisy": "noise_sigma noise_every",
    },
    "rainbow": {
        "softmax": "temperature",
        "mirrored": "mirror",
        "pictures": "body precision",
        "prioritised": "priority_correction_steps",
        "with a cell": f"cell {OF_CELLS} sequence_steps burn_in",
        "dilated, with a cell": "cell_cores",
        "quiet": "behaviour epsilon_first epsilon_last epsilon_steps",
    },
    "sac": {},
    "td3": {"ou": "noise_pull"},
    "ddpg": {"ou": "noise_pull"},
    **{
        name: {
            "pictures": "body precision",
            "numbers": "deviation log_std",
            "remembering": f"{OF_CELLS} cells {keys}",
            "dilated": "cell_cores",
            **more,
        }
        for name, keys, more in (
            ("ppo", "sequence_steps sequence_states", {}),
            ("a2c", "", {"lagging": "clip"}),
            ("impala", "", {}),
            ("reinforce", "", {}),
        )
    },
}
"""Where a key has an effect that has none on the plain base."""


ROUNDING = 1e-5
ROUNDED = {
    **dict.fromkeys(("c51", "rainbow"), ("n_step", "double", "target_every", "target_rate")),
    "ppo": ("kl_penalty_target", "value_clip"),
    "a2c": ("clip",),
}
"""What may differ by rounding where it is idle; all else that is idle comes to the same bit for bit.

C51 without a discount adds up a distribution whose sum is 1 but for rounding, whichever network it is of. The others
compare the network of now to what acted or was evaluated before, in numpy or for other rows at a time: the ratio is 1
and the difference is 0, but for rounding.
"""
LONGEST = ("c51", "rainbow", "apex", "mlxe")  # of which all but the last have most keys in common with `dqn`


@pytest.mark.parametrize("name", REGISTRY)
def test_there_is_another_value_of_every_key(name):
    assert set(load_algorithm(name).Settings.model_fields) <= set(ANOTHER)
    known = set(itertools.chain(*(load_algorithm(other).Settings.model_fields for other in REGISTRY)))
    assert set(ANOTHER) == known


@pytest.mark.parametrize("name", REGISTRY)
def test_the_same_settings_come_to_the_same(name):
    assert same(what_it_comes_to(name, "plain", BASES[name]["plain"]), expected(name, "plain"))


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONGEST else ()) for name in REGISTRY]
)
def test_every_key_has_an_effect_somewhere(name):
    where = {key: base for base, keys in LIVES_IN[name].items() for key in keys.split()}
    dead = []
    for key in load_algorithm(name).Settings.model_fields:
        base = where.get(key, "plain")
        what, changed = judged(name, key, base)
        if what != "lives" or same(what_it_comes_to(name, base, changed), expected(name, base)):
            dead.append((key, base, what))
    assert not dead


@pytest.mark.slow
@pytest.mark.parametrize(("name", "base"), [(name, base) for name, bases in BASES.items() for base in bases])
def test_another_value_of_a_key_changes_the_run_or_is_refused_and_not_both(name, base):
    wrong = []
    keys = [(key, None) for key in load_algorithm(name).Settings.model_fields]
    for key, value in keys + FURTHER.get((name, base), []):
        what, changed = judged(name, key, base, value)
        if what == "refused":
            continue
        tolerance = ROUNDING if what == "idle" and key in ROUNDED.get(name, ()) else 0.0
        changes = not same(what_it_comes_to(name, base, changed), expected(name, base), tolerance)
        if changes == (what == "idle"):
            wrong.append((key, changed[key], "has an effect" if changes else "has none"))
    assert not wrong
