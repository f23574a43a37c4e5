"""`module(deterministic=True)` maps observations to the actions that `env.step` takes, as `act` does."""

import numpy as np
import pytest
import torch

from mlxe_async.algorithms import REGISTRY, Acting, load_algorithm
from mlxe_async.parts import laid_out, stored_as
from mlxe_async.rows import Spaces

BOX = Spaces((3,), action_shape=(2,), action_low=(-3.0, 1.0), action_high=(5.0, 2.0))
ONE = Spaces((3,), actions=3, action_starts=(7,))
SEVERAL = Spaces((3,), action_shape=(2,), action_kind="multi_discrete", action_sizes=(3, 2), action_starts=(5, -1))
OF_NUMBERS = ("a2c", "ddpg", "impala", "ppo", "reinforce", "sac", "td3")
OF_SEVERAL = ("a2c", "impala", "ppo", "reinforce")
OF_ONE = tuple(name for name in REGISTRY if name not in ("ddpg", "td3", "q_learning", "sarsa"))
CASES = [
    *((name, BOX) for name in OF_NUMBERS),
    *((name, SEVERAL) for name in OF_SEVERAL),
    *((name, ONE) for name in OF_ONE),
]


def built(name, spaces):
    kind = load_algorithm(name)
    one = kind(kind.Settings(), spaces, seed=3, learns=False)
    rng = np.random.default_rng(1)
    # What travels behind the weights, such as a variance, must be positive.
    drawn = [
        rng.normal(0, 0.15, shape) if not label.endswith("epsilon") else np.ones(shape)
        for label, shape in one.parameters
    ]
    one.load(np.concatenate([each.ravel() for each in drawn]).astype(np.float32))
    return one


@pytest.mark.parametrize(("name", "spaces"), CASES, ids=[f"{name}-{spaces.action_kind}" for name, spaces in CASES])
def test_it_takes_the_same_actions(name, spaces):
    one = built(name, spaces)
    obs = np.random.default_rng(2).normal(0, 2, (64, 3)).astype(np.float32)
    expected = spaces.for_environment(one.greedy(obs))
    with torch.no_grad():
        found = one.deterministic_module()(torch.from_numpy(obs)).numpy()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-4)
    if spaces.action_kind == "box":
        assert (found >= spaces.action_low).all()
        assert (found <= spaces.action_high).all()
        assert len(np.unique(found[:, 0])) > 5


@pytest.mark.parametrize("cells", ["shared", "apart"])
@pytest.mark.parametrize("spaces", [BOX, ONE, SEVERAL], ids=lambda spaces: spaces.action_kind)
def test_of_a_recurrent_policy_it_hands_the_states_on(spaces, cells):
    kind = load_algorithm("ppo")
    one = kind(kind.Settings(cell="gru", cells=cells), spaces, seed=3, learns=False)
    one.load(np.random.default_rng(1).normal(0, 0.15, len(one.weights())).astype(np.float32))
    acting, state = Acting().start(one.carry, 8), None
    best = one.deterministic_module()
    for obs in np.random.default_rng(2).normal(0, 2, (6, 8, 3)).astype(np.float32):
        expected = spaces.for_environment(one.greedy(obs, acting))
        with torch.no_grad():
            found, state = best(torch.from_numpy(obs), state)
        np.testing.assert_allclose(found, expected, atol=1e-4)
        np.testing.assert_allclose(state, acting.carry["memory"], atol=1e-5)


def test_parts_by_name_will_do_as_well():
    parts = laid_out([("lamp", (3,), "<f4"), ("action_mask", (3,), "|u1")])
    (length,), dtype = stored_as(parts)
    spaces = Spaces((length,), dtype, actions=3, parts=parts, masked=True)
    one = built("ppo", spaces)
    rng = np.random.default_rng(2)
    named = {"lamp": rng.normal(0, 1, (20, 3)).astype(np.float32), "action_mask": np.tile([1, 0, 1], (20, 1))}
    expected = one.greedy(spaces.pack(named))
    with torch.no_grad():
        found = one.deterministic_module()({name: torch.from_numpy(value) for name, value in named.items()})
    np.testing.assert_array_equal(found, expected)
    assert set(found.tolist()) == {0, 2}


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize(
    "extra", [{}, {"normalise": True}, {"layer_norm": True, "noisy": True}, {"common": (9, 6), "layers": (9, 6)}]
)
def test_what_acts_is_told_without_making_it(name, extra):
    spaces = ONE
    if name in ("ddpg", "td3"):
        spaces = BOX
    if name in ("q_learning", "sarsa"):
        spaces = Spaces((4,), actions=3, observation_sizes=(4,))
    kind = load_algorithm(name)
    settings = kind.Settings(**{key: value for key, value in extra.items() if key in kind.Settings.model_fields})
    made = kind(settings, spaces, seed=0, learns=False)
    assert list(kind.parameters_for(settings, spaces)) == list(made.parameters)


@pytest.mark.parametrize("name", ["a2c", "impala", "ppo", "reinforce"])
@pytest.mark.parametrize("extra", [{}, {"common": (9, 6), "policy": (5,), "layer_norm": True}, {"policy": (8, 4)}])
@pytest.mark.parametrize("deviation", ["free", "computed"])
def test_deviations_of_numbers_are_told_without_making_them(name, extra, deviation):
    kind = load_algorithm(name)
    settings = kind.Settings(deviation=deviation, **extra)
    made = kind(settings, BOX, seed=0, learns=False)
    assert list(kind.parameters_for(settings, BOX)) == list(made.parameters)
