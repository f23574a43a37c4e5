"""Quantiles of actions, weights and gradients are those of the numbers, told when asked for, and change nothing."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mlxe_async.algorithms import Algorithm, Clock
from mlxe_async.algorithms.interface import NoSettings
from mlxe_async.algorithms.state.as_written import learned
from mlxe_async.algorithms.state.gradients import gradients_of
from mlxe_async.fast import updates
from mlxe_async.roles import quantiles as module
from mlxe_async.roles.quantiles import MOST_NUMBERS, Quantiles, quantiles
from mlxe_async.rows import Spaces

sys.path += [str(Path(__file__).parents[1] / "fast"), str(Path(__file__).parents[1] / "algorithms")]
from made_rows import SPACES, agent, rollout
from made_rows import batch as made_batch

BOX = Spaces((3,), action_shape=(2,), action_low=(-3.0, 0.0), action_high=(1.0, 8.0))
SMALL = {"policy": [8], "value": [8]}
CASES = [
    ("ppo", SPACES, SMALL),
    ("ppo", BOX, SMALL),
    ("a2c", SPACES, SMALL),
    ("mlxe", SPACES, SMALL),
    ("dqn", SPACES, {"layers": [8]}),
    ("sac", BOX, {"layers": [8]}),
    ("td3", BOX, {"layers": [8], "policy_delay": 1}),
]
HAVE_TWINS = (0, 3, 4, 5, 6)


class Own(Algorithm):
    """Clears its gradients after each step, as some do."""

    Settings = NoSettings

    def build(self):
        self.layers = [torch.nn.Linear(4, 2), {"last": torch.nn.Linear(2, 1)}]

    def build_learner(self):
        leaves = [*self.layers[0].parameters(), *self.layers[1]["last"].parameters()]
        self.optimiser, self.clears = torch.optim.SGD(leaves, 0.1), False

    def update(self, batch, clock):
        if not self.clears:
            self.optimiser.zero_grad()
        self.layers[1]["last"](self.layers[0](torch.as_tensor(batch["obs"]))).sum().backward()
        self.optimiser.step()
        if self.clears:
            self.optimiser.zero_grad()
        return {}


def own(clears=False):
    made = Own(NoSettings(), Spaces((4,), actions=2), seed=1, learns=True)
    made.clears = clears
    return made


def batch_for(algorithm):
    if algorithm.memory == "rollouts":
        return rollout(algorithm, length=8, width=3)
    return made_batch(algorithm, rows=24)


def told_of(algorithm, every, done, batch):
    """What is told of updates, each of a number of updates and published as the next version."""
    heard = []
    watching = Quantiles(algorithm, every, heard.append)
    made = 0
    for version, some in enumerate(done, 1):
        watching.learned(batch, Clock(env_steps=10 * made, episodes=0, updates=made, version=version), some)
        made += some
        watching.published(algorithm.weights(), version + 1)
    return heard


def test_they_are_those_of_the_numbers():
    numbers = np.random.default_rng(0).normal(size=5001)
    found = quantiles(numbers)
    assert list(found) == ["min", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "max"]
    assert found["p25"] == pytest.approx(np.quantile(numbers, 0.25), rel=1e-6)
    assert (found["min"], found["max"]) == pytest.approx((numbers.min(), numbers.max()), rel=1e-6)
    assert quantiles(np.array([np.inf, 1.0, 2.0]))["max"] is None


def test_of_very_many_numbers_some_are_looked_at_but_no_end_is_missed():
    numbers = np.zeros(2 * MOST_NUMBERS + 1, np.float32)
    numbers[1::2] = np.linspace(-3, 5, MOST_NUMBERS)
    found = quantiles(numbers)
    assert (found["min"], found["max"]) == (-3.0, 5.0)


@pytest.mark.parametrize(
    ("name", "spaces", "settings", "is_fast"),
    [(*case, False) for case in CASES] + [(*CASES[k], True) for k in HAVE_TWINS],
)
def test_gradients_are_those_of_the_last_step_and_are_left_as_they_are(name, spaces, settings, is_fast):
    algorithm = agent(name, spaces=spaces, **settings)
    way, batch = updates(algorithm, fast=is_fast), batch_for(algorithm)
    assert way.is_fast is is_fast
    way.update({name: np.array(one) for name, one in batch.items()}, Clock(env_steps=9, updates=0, version=1))
    before = algorithm.state()
    found = gradients_of(algorithm)
    held = [one for one in vars(algorithm).values() if hasattr(one, "gradient")]
    expected = np.sort(np.concatenate([one.gradient.numpy().reshape(-1) for one in held]))
    assert np.array_equal(np.sort(np.concatenate([*found.values()])), expected)
    (told,) = told_of(algorithm, 1, [1], batch)
    assert {kind for kind in told["values"] if "/" not in kind} == {"actions", "weights", "gradients"}
    assert told["counts"]["gradients"] == len(expected)
    assert told["values"]["gradients"]["max"] == pytest.approx(expected[-1], rel=1e-6)
    after = algorithm.state()
    assert all(np.array_equal(after[name], one) for name, one in before.items())


def test_of_an_algorithm_of_ones_own_they_are_named_by_where_they_are():
    algorithm = own()
    batch = {"obs": np.ones((6, 4), np.float32), "action": np.array([0, 1, 1, 1, 0, 1]), "weight": np.ones(6)}
    learned(algorithm, batch, Clock(env_steps=0, updates=0, version=1))
    assert set(gradients_of(algorithm)) == {
        *("layers.0.weight", "layers.0.bias", "layers.1.last.weight", "layers.1.last.bias")
    }
    (told,) = told_of(algorithm, 1, [1], batch)
    assert told["values"]["gradients/layers.1.last.bias"]["p50"] == 6.0
    assert told["shares"] == {"actions": [2 / 6, 4 / 6]}
    assert told["counts"]["weights"] == 13


def test_where_no_gradients_are_at_hand_it_is_said_once_and_all_else_is_told():
    algorithm = own(clears=True)
    batch = {"obs": np.ones((6, 4), np.float32), "action": np.zeros(6, np.int64), "weight": np.ones(6)}
    learned(algorithm, batch, Clock(env_steps=0, updates=0, version=1))
    heard = told_of(algorithm, 1, [1, 1, 1], batch)
    assert [one["kind"] for one in heard] == ["remark", *["quantiles"] * 3]
    assert heard[0]["detail"].startswith("logs.quantiles_every: Own leaves no gradients behind after an update")
    assert "gradients" not in heard[1]["values"]


def test_they_are_told_with_the_first_publication_after_so_many_updates():
    algorithm, batch = own(), {"obs": np.ones((2, 4)), "action": np.zeros(2, np.int64), "weight": np.ones(2)}
    heard = told_of(algorithm, 10, [4, 4, 4, 4, 4, 25, 1], batch)
    found = [(one["updates"], one["version"]) for one in heard if one["kind"] == "quantiles"]
    assert found == [(12, 4), (20, 6), (45, 7)]


def test_what_is_not_published_is_not_told():
    algorithm, batch = own(), {"obs": np.ones((2, 4)), "action": np.zeros(2, np.int64), "weight": np.ones(2)}
    heard = []
    watching = Quantiles(algorithm, 1, heard.append)
    watching.learned(batch, Clock(env_steps=0, updates=0, version=1), 1)  # rolled back: version 1 stays
    watching.published(algorithm.weights(), 3)
    assert not [one for one in heard if one["kind"] == "quantiles"]


def test_padding_is_no_action_and_components_have_their_own():
    valid = np.array([[1, 1], [1, 0]], bool)
    action = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    (told,) = [
        one
        for one in told_of(own(), 1, [1], {"action": action, "valid": valid, "obs": np.zeros((2, 2, 4))})
        if one["kind"] == "quantiles"
    ]
    assert told["counts"] == {"actions": 6, "actions/0": 3, "actions/1": 3} | {
        name: count for name, count in told["counts"].items() if name.startswith("weights")
    }
    assert (told["values"]["actions/0"]["max"], told["values"]["actions/1"]["p50"]) == (4.0, 3.0)
    assert told["shares"] == {}


def test_the_largest_parameters_have_their_own(monkeypatch):
    monkeypatch.setattr(module, "MOST_PARTS", 2)
    batch = {"action": np.zeros(2, np.int64), "weight": np.ones(2)}
    told = told_of(own(), 1, [1], batch)[-1]
    assert [name for name in told["values"] if name.startswith("weights/")] == [
        "weights/layers.0.weight",
        "weights/layers.0.bias",
    ]
