"""Departures from the policy: how large they are at any time, and that stored log-probabilities are the mixture's."""

import numpy as np
import pytest
from pydantic import ValidationError

from mlxe_async.algorithms import Acting
from mlxe_async.algorithms.mlxe.exploration import ExplorationFields, epsilon
from mlxe_async.algorithms.mlxe.paper import MLxE, MLxESettings
from mlxe_async.algorithms.parts.exploration import held_columns, mixture
from mlxe_async.rows import Spaces

LOG_PROBS = np.log(np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], np.float32))
OBS = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)


def agent(**settings):
    return MLxE(MLxESettings(**settings), Spaces((4,), actions=3), seed=1, learns=False)


@pytest.mark.parametrize(
    ("clock", "expected"), [("step", 0.1 * 0.9**7), ("episode", 0.1 * 0.9**3), ("iteration", 0.1 * 0.9**2)]
)
def test_epsilon_is_a_power_of_its_own_clock(clock, expected):
    fields = ExplorationFields(epsilon=0.1, epsilon_factor=0.9, epsilon_clock=clock)
    assert epsilon(fields, Acting()) == pytest.approx(0.1)
    assert epsilon(fields, Acting(steps=7, episodes=3, rollouts=2)) == pytest.approx(expected)


def test_epsilon_stays_within_its_limits_also_when_it_grows_for_ever():
    falling = ExplorationFields(epsilon=0.5, epsilon_factor=0.5, epsilon_min=0.2)
    assert [epsilon(falling, Acting(steps=n)) for n in (0, 1, 2, 10**9)] == pytest.approx([0.5, 0.25, 0.2, 0.2])
    growing = ExplorationFields(epsilon=0.1, epsilon_factor=2.0, epsilon_max=0.7)
    assert [epsilon(growing, Acting(steps=n)) for n in (0, 2, 3, 10**9)] == pytest.approx([0.1, 0.4, 0.7, 0.7])
    assert epsilon(ExplorationFields(epsilon=0.0, epsilon_factor=2.0), Acting(steps=9)) == 0.0


def test_mixtures_in_numbers():
    np.testing.assert_allclose(np.exp(mixture(LOG_PROBS, "softmax", 0.3)), [[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    greedy = np.exp(mixture(LOG_PROBS, "epsilon_greedy", 0.3))
    np.testing.assert_allclose(greedy, [[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]], rtol=1e-5)
    backwards = np.exp(mixture(LOG_PROBS, "reversed", 0.4))
    np.testing.assert_allclose(backwards, [[0.7, 0.18, 0.12], [0.06, 0.06, 0.88]], rtol=1e-5)


@pytest.mark.parametrize("behaviour", ["epsilon_greedy", "reversed"])
def test_a_mixture_of_nothing_is_a_distribution_with_finite_logarithms(behaviour):
    for share in (0.0, 1.0):
        log_mu = mixture(np.log(np.array([[1.0, 1e-30]])), behaviour, share)
        assert np.isfinite(log_mu).all()
        assert np.exp(log_mu).sum() == pytest.approx(1)


@pytest.mark.long
def test_reversed_exploration_makes_about_twenty_greedy_picks_in_a_run():
    """0.1 + 0.1 * 0.995 + ... = 0.1 / (1 - 0.995) = 20, in what is stored and in what is done."""
    algorithm, rng, clock = agent(behaviour="reversed"), np.random.default_rng(0), Acting()
    one, picks, extra = OBS[:1], 0.0, 0.0
    plain = agent()
    best = int(algorithm.greedy(one)[0])
    pi = float(np.exp(plain.policy(one).log_prob(np.array([best]))[0]))
    for _ in range(3000):
        acted = algorithm.act(one, rng, clock)
        mu = float(np.exp(algorithm.policy(one, clock).log_prob(np.array([best]))[0]))
        picks += (mu - pi) / (1 - pi)  # mu = epsilon + (1 - epsilon) pi
        extra += (acted["action"][0] == best) - pi
        clock.steps += 1
    assert picks == pytest.approx(20.0, abs=0.05)
    assert extra == pytest.approx(20.0 * (1 - pi), abs=3 * np.sqrt(3000 * pi * (1 - pi)))


@pytest.mark.parametrize("behaviour", ["epsilon_greedy", "reversed"])
def test_actions_come_as_often_as_the_stored_log_probability_says(behaviour):
    algorithm, clock = agent(behaviour=behaviour, epsilon=0.6, epsilon_factor=0.5), Acting(steps=1)
    many = np.repeat(OBS[:1], 20_000, 0)
    acted = algorithm.act(many, np.random.default_rng(0), clock)
    policy = np.array([np.exp(agent().policy(OBS[:1]).log_prob(np.array([a]))[0]) for a in range(3)])
    best = np.arange(3) == policy.argmax()
    expected = {"epsilon_greedy": 0.1 + 0.7 * best, "reversed": 0.3 * best + 0.7 * policy}[behaviour]
    for action in range(3):
        chosen = acted["action"] == action
        assert chosen.mean() == pytest.approx(expected[action], abs=0.015)
        np.testing.assert_allclose(np.exp(acted["log_prob"][chosen]), expected[action], rtol=1e-4)
    again = algorithm.policy(many, clock).log_prob(acted["action"])
    np.testing.assert_allclose(again, acted["log_prob"], atol=1e-5)


def test_tests_are_greedy_whatever_the_behaviour():
    plain = agent().greedy(OBS)
    for settings in ({"behaviour": "reversed"}, {"behaviour": "epsilon_greedy", "epsilon": 1.0}):
        algorithm = agent(**settings)
        algorithm.act(OBS, np.random.default_rng(0), Acting())
        np.testing.assert_array_equal(algorithm.greedy(OBS), plain)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"epsilon_min": 0.5, "epsilon_max": 0.4}, "epsilon_min: got 0.5, expected at most epsilon_max = 0.4"),
        ({"epsilon": 1.1}, "epsilon"),
        ({"epsilon_factor": 0.0}, "epsilon_factor"),
        ({"behaviour": "greedy"}, "behaviour"),
        ({"epsilon_clock": "update"}, "epsilon_clock"),
        ({"noise_every": -1}, "noise_every"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_naming_the_key(settings, named):
    with pytest.raises(ValidationError, match=named):
        MLxESettings(**settings)


def test_epsilon_begins_at_its_first_value_and_an_unlucky_factor_never_exceeds_one():
    settings = {"epsilon": 1.0, "epsilon_factor": 2.0, "epsilon_max": 1.0}
    fields = ExplorationFields.model_validate(settings)
    assert [epsilon(fields, Acting(steps=steps)) for steps in (0, 1, 10**6)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("behaviour", ["epsilon_greedy", "reversed"])
def test_mixtures_of_several_versions_are_those_of_each(behaviour):
    probs = np.random.default_rng(0).dirichlet(np.ones(3), (2, 5)).astype(np.float32)
    together = mixture(np.log(probs), behaviour, 0.3)
    assert together.shape == (2, 5, 3)
    for k in range(2):
        np.testing.assert_array_equal(together[k], mixture(np.log(probs[k]), behaviour, 0.3))


def test_what_is_never_done_has_the_probability_of_one_in_a_million_million():
    assert mixture(LOG_PROBS, "epsilon_greedy", 0.0)[0, 1] == pytest.approx(np.log(1e-12))


def test_actions_of_boxes_are_carried_where_they_are_held_for_more_than_a_step():
    box = Spaces((3,), action_shape=(2,), action_low=(-1.0,) * 2, action_high=(1.0,) * 2)
    assert [len(held_columns(steps, box)) for steps in (1, 2, 3)] == [0, 1, 1]
    assert held_columns(2, box)[0].shape == (3,)  # the action, and the steps left
    assert held_columns(2, Spaces((3,), actions=2)) == ()
