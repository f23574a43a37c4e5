"""Twins compute what the built-in files say, and stand for nothing else."""

import importlib.util
import json
import sys

import made_rows
import numpy as np
import proof
import pytest
import torch
from made_rows import SPACES, batch
from nasty import value
from papers import text_of

from mlxe_async.algorithms import Clock, ddpg, dqn, ppo, sac
from mlxe_async.algorithms.ddpg import DDPG
from mlxe_async.algorithms.dqn import DQN
from mlxe_async.algorithms.mlxe import paper as mlxe
from mlxe_async.algorithms.mlxe.paper import MLxE
from mlxe_async.algorithms.parts import continuous
from mlxe_async.algorithms.ppo import PPO
from mlxe_async.algorithms.sac import SAC
from mlxe_async.algorithms.td3 import TD3
from mlxe_async.fast import manifest, updates
from mlxe_async.maths import correction, normaliser
from mlxe_async.networks.dense import Dense

KINDS = {"ppo": PPO, "mlxe": MLxE, "dqn": DQN, "sac": SAC, "td3": TD3, "ddpg": DDPG}
FILES = dict.fromkeys(("sac", "td3", "ddpg"), "continuous")


def agent(name, **settings):
    """As `made_rows.agent`, in spaces that suit it."""
    return made_rows.agent(name, spaces=proof.BOX if name in FILES else SPACES, **settings)


def step(algorithm, rows=None):
    """The weights after one update in the way that a learner would take, and why it takes it."""
    way = updates(algorithm)
    way.update(batch(algorithm) if rows is None else rows, Clock())
    return algorithm.weights(), way.reason


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if number % 2 else ()) for number, case in enumerate(proof.CASES)],
    ids=lambda case: f"{case[0]} {json.dumps(case[2])}"[:100],
)
def test_a_twins_gradients_and_steps_are_those_of_the_file(case):
    assert proof.distance(*case, updates=2, sizes=(1.0, 10.0)) <= proof.NEAR


def test_the_manifest_is_that_of_the_proof():
    """After a change of what twins were derived from: python tests/fast/proof.py --renew."""
    found, kept = proof.without_texts(proof.present()), proof.without_texts(manifest.kept())
    assert found == kept, "run python tests/fast/proof.py --renew; CONTRIBUTING.md says what to do if it differs"


@pytest.mark.parametrize("name", KINDS)
def test_a_built_in_algorithm_has_its_twin(name):
    way = updates(agent(name))
    assert (way.reason, type(way.twin).__module__) == ("", f"mlxe_async.fast.{FILES.get(name, name)}")
    assert updates(agent(name), fast=False).reason == "learner.fast = false"


@pytest.mark.parametrize("name", KINDS)
def test_a_subclass_that_changes_nothing_is_left_to_autograd_too(name):
    class Same(KINDS[name]):
        pass

    (mine, reason), (theirs, _) = step(agent(name, kind=Same)), step(agent(name))
    assert reason == "Same is not a built-in algorithm"
    np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_a_copy_of_the_file_is_left_to_autograd(name, tmp_path):
    copy = tmp_path / f"copied_{name}.py"
    copy.write_text(text_of(name))
    spec = importlib.util.spec_from_file_location(copy.stem, copy)
    module = sys.modules[copy.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        (mine, reason), (theirs, _) = step(agent(name, kind=getattr(module, KINDS[name].__name__))), step(agent(name))
        assert "is not a built-in algorithm" in reason
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    finally:
        del sys.modules[copy.stem]


judged = continuous.Continuous.judged
PATCHES = {
    "a loss": ("ppo", ppo, "value_loss", lambda value, target, *_: 7 * (target - value).square().mean()),
    "a loss of mlxe": ("mlxe", mlxe, "policy_loss", lambda log_prob, advantage: -2 * log_prob * advantage.detach()),
    "a loss of dqn": ("dqn", dqn, "q_loss", lambda q, target, _kind: (target.detach() - q).abs()),
    "a function that a loss calls": ("mlxe", correction, "ratio", lambda log_prob, _: log_prob.detach().exp()),
    "what becomes of a gradient": ("dqn", dqn, "clip_grad_norm_", lambda gradient, _: gradient.mul_(0.5).norm()),
    "a method": ("dqn", DQN, "value", lambda _self, q: 0.5 * q),
    "what critics learn": ("sac", sac, "critic_loss", lambda q, target: (q - target.detach()).abs().sum()),
    "a target": ("td3", continuous.Continuous, "judged", lambda self, *given: 2 * judged(self, *given)),
    "the actor's loss": ("ddpg", ddpg, "actor_loss", lambda q: q.square().mean()),
    "bounds of a deviation": ("sac", sac, "LOG_STD", (-1.0, -0.5)),
    "a constant": ("ppo", normaliser, "LIMIT", 0.1),
}


@pytest.mark.parametrize("patch", PATCHES)
def test_what_was_patched_is_what_is_learned(patch, monkeypatch):
    name, place, member, other = PATCHES[patch]
    settings = {"max_gradient_norm": 0.0} if name == "ppo" else {}
    rows = batch(agent(name, **settings), scale=3.0)
    before, reason = step(agent(name, **settings), rows)
    assert reason == ""
    monkeypatch.setattr(place, member, other)
    found, reason = step(agent(name, **settings), rows)
    assert member in reason
    written = agent(name, **settings)
    written.update(rows, Clock())
    np.testing.assert_array_equal(found, written.weights())
    assert not np.allclose(found, before, atol=1e-6)


def test_a_method_put_on_the_object_is_what_is_learned():
    algorithm = agent("ppo")
    algorithm.loss = lambda rows: (value(algorithm, rows["obs"]).square().mean(), {})
    found, reason = step(algorithm)
    assert reason == "its object has a loss of its own"
    assert not np.allclose(found, step(agent("ppo"))[0], atol=1e-5)


class Twice(Dense):
    def forward(self, x):
        return super().forward(2 * x)


def other_forward(algorithm):
    algorithm.learned.q.__class__ = Twice


def frozen(algorithm):
    algorithm.learned.q[0].weight.requires_grad_(False)


def hooked(algorithm):
    algorithm.learned.q[0].weight.register_hook(torch.zeros_like)


def own_method(algorithm):
    algorithm.learned.q.forward = lambda x: Dense.forward(algorithm.learned.q, x)


def hooked_module(algorithm):
    algorithm.learned.register_forward_hook(lambda _module, _given, found: 2 * found)


def hooked_before(algorithm):
    algorithm.learned.q.register_forward_pre_hook(lambda _module, given: (given[0] + 1,))


def forget(leaf):
    leaf.grad.zero_()


def hooked_after_adding(algorithm):
    for leaf in algorithm.learned.parameters():
        leaf.register_post_accumulate_grad_hook(forget)


@pytest.mark.parametrize("change", [hooked_module, hooked_before, hooked_after_adding])
def test_hooks_of_a_module_are_learned_by(change):
    algorithm = agent("dqn")
    change(algorithm)
    found, reason = step(algorithm)
    assert "hooks" in reason
    plain = agent("dqn")
    step(plain)
    assert not np.allclose(found, plain.weights(), atol=1e-6)


def test_hooks_of_a_module_for_its_gradients_leave_it_to_torch():
    algorithm = agent("dqn")
    algorithm.learned.register_full_backward_hook(lambda _module, into, _out: into)
    assert "hooks" in updates(algorithm).reason


def test_hooks_of_all_modules_are_learned_by():
    hook = torch.nn.modules.module.register_module_forward_hook(lambda _module, _given, found: found)
    try:
        assert "hooks" in updates(agent("dqn")).reason
    finally:
        hook.remove()
    assert updates(agent("dqn")).reason == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [(other_forward, "is a Twice"), (frozen, "frozen"), (hooked, "hooks"), (own_method, "a method of its own")],
)
def test_a_network_of_another_structure_is_left_to_torch(change, said):
    algorithm = agent("dqn")
    before = algorithm.learned.q[0].weight.detach().clone()
    change(algorithm)
    found, reason = step(algorithm)
    assert said in reason
    assert not np.array_equal(found, agent("dqn").weights())
    if change in (frozen, hooked):
        torch.testing.assert_close(algorithm.learned.q[0].weight.detach(), before, rtol=0, atol=0)


def test_noisy_networks_are_left_to_torch():
    assert "NoisyLinear" in updates(agent("mlxe", noisy=True)).reason


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param("ppo", marks=pytest.mark.slow), "dqn", "mlxe"])
def test_several_threads_share_the_work_of_a_twin_and_come_to_the_same(name):
    sizes = {"dqn": {"layers": [64, 64]}}.get(name, {"policy": [64, 64], "value": [64, 64]})
    kept, found = torch.get_num_threads(), []
    try:
        for fast, threads in ((True, 2), (True, 1), (False, 1)):
            algorithm = agent(name, **sizes)
            way = updates(algorithm, fast=fast)
            assert (way.twin is not None) == fast
            torch.set_num_threads(threads)
            for number in range(3):
                way.update(batch(algorithm, rows=1024, seed=number), Clock(updates=number, env_steps=100, version=1))
            found.append(algorithm.weights())
    finally:
        torch.set_num_threads(kept)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[0], found[2], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_other_weights_are_learned_from_then_on(name):
    """As after a roll-back: the networks are other objects."""
    one, other = agent(name), agent(name)
    way = updates(one)
    way.update(batch(one), Clock())
    other.update(batch(other), Clock())
    flat = agent(name, seed=5).weights()
    for algorithm in (one, other):
        algorithm.set_weights(flat)
    way.update(batch(one), Clock())
    other.update(batch(other), Clock())
    np.testing.assert_allclose(one.weights(), other.weights(), atol=1e-4)
    assert not np.array_equal(one.weights(), flat)
