"""Own losses and networks, however nasty: learned as they are written, or refused in one sentence."""

import re
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_rows import agent, batch
from nasty import NASTY, REFUSED, leaves
from proof import take, update

from mlxe_async.algorithms import Clock, dqn, ppo
from mlxe_async.algorithms.mlxe import paper as mlxe
from mlxe_async.algorithms.parts.replay import tensors_of
from mlxe_async.errors import UpdateFailed
from mlxe_async.fast import updates
from mlxe_async.roles.learner import Learner

BY_THE_CLOCK = {"EntropyByTheClock": {"_weight": 0.25}, "AdaptiveKL": {"coefficient": 5.0}}
"""What these set in the second update, with its clock, and `written` does not call."""
SAME = {"Prioritised", "OtherMetrics", "NoMetrics"}
"""What changes the draws or what is told, and not the gradient; all others must have another one than the built-in."""
NAMES = {ppo.PPO: "ppo", mlxe.MLxE: "mlxe", dqn.DQN: "dqn"}
SETTINGS = {
    "ppo": {"max_gradient_norm": 0, "epochs": 1, "minibatch": 1000, "policy": [8], "value": [8]},
    "mlxe": {"max_gradient_norm": 0, "policy": [8], "value": [8]},
    "dqn": {"max_gradient_norm": 0, "layers": [8, 4]},
}


def made(base, kind):
    """A learning object whose weights are all away from zero, biases too."""
    name = NAMES[base]
    found = agent(name, kind=kind, **SETTINGS[name])
    rng = np.random.default_rng(4)
    with torch.no_grad():
        for leaf in leaves(found).values():
            leaf += torch.from_numpy(0.1 * rng.standard_normal(leaf.shape).astype(np.float32))
    found.set_weights(found.weights())
    return found


def written(algorithm, rows):
    """The gradient of the loss as it is written, by torch.autograd.grad, and nothing of `update`."""
    if algorithm.memory == "rollouts":
        (tensors,) = algorithm.minibatches(rows, 1)
    else:
        tensors = tensors_of(algorithm, rows)
        if hasattr(algorithm, "bootstrapped"):
            tensors |= algorithm.bootstrapped(tensors)
    loss, all_leaves = algorithm.loss(tensors)[0], leaves(algorithm).values()
    free = [leaf for leaf in all_leaves if leaf.requires_grad]
    found = dict(zip(map(id, free), torch.autograd.grad(loss, free, allow_unused=True), strict=True))
    parts = [found.get(id(leaf)) for leaf in all_leaves]
    whole = [torch.zeros_like(leaf) if part is None else part for leaf, part in zip(all_leaves, parts, strict=True)]
    return torch.cat([(part.T if part.dim() == 2 else part).reshape(-1) for part in whole])  # as they lie in memory


def test_there_are_enough_of_them():
    assert len(NASTY) + len(REFUSED) >= 60


@pytest.mark.parametrize("name", NASTY)
def test_what_is_written_is_what_is_learned(name):
    base, kind = NASTY[name]
    one, other = made(base, kind), made(base, kind)
    for attribute, value in BY_THE_CLOCK.get(name, {}).items():
        setattr(other, attribute, value)
    rows, taken = batch(one, scale=2.0), []
    way = updates(one)
    assert way.reason
    update(one, way.update, rows, Clock(updates=1), partial(take, taken))
    expected = written(other, rows)
    assert torch.isfinite(expected).all()
    assert (taken[0] - expected).norm() <= 1e-5 * expected.norm() + 1e-9
    before = written(made(base, None), rows)
    differs = (before - expected).norm() > 1e-5 * before.norm()
    assert differs == (name not in SAME)


class Batches:
    """A memory of one batch, as a learner sees it."""

    kind = "rollouts"

    def __init__(self, rows):
        self.rows = rows

    def rows_of(self, plan):
        return plan["rows"]

    def gather(self, plan, *_bound, **_reuse):
        return (self.rows, 0) if self.kind == "rollouts" else (self.rows, np.arange(plan["rows"]))


class Unpublished:
    version = 1

    def publish(self, vector):
        raise AssertionError("nothing is to be published")


def said_by_a_learner(algorithm):
    """What a learner says of an update that raises."""
    memory = Batches(batch(algorithm))
    memory.kind = algorithm.memory
    page = SimpleNamespace(enter=lambda *_: None, leave=lambda: None, spending=lambda _: nullcontext())
    learner = Learner(algorithm=algorithm, memory=memory, weights=Unpublished(), page=page, update_timeout_s=9)
    with pytest.raises(UpdateFailed) as told:
        learner.learn({"updates": 1, "rows": memory.rows["action"].size}, env_steps=0, episodes=0, updates=0)
    return str(told.value)


def test_an_error_in_a_built_in_file_is_told_with_its_line_and_not_with_one_of_torchs():
    algorithm = made(ppo.PPO, None)
    for leaf in leaves(algorithm).values():
        leaf.requires_grad_(False)
    assert re.match(r"\S+mlxe_async/algorithms/ppo\.py:\d+: RuntimeError: .*require grad", said_by_a_learner(algorithm))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_learned_from_is_told_by_the_learner_in_one_line_with_its_place(name):
    base, kind, words = REFUSED[name]
    algorithm = made(base, kind)
    before = algorithm.weights()
    sentence = said_by_a_learner(algorithm)
    assert "\n" not in sentence
    assert re.match(r"\S+\.py:\d+: \w+: ", sentence), sentence
    assert all(word in sentence for word in words), sentence
    np.testing.assert_array_equal(algorithm.weights(), before)
