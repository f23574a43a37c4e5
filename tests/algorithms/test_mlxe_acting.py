"""What an MLxE executor and evaluator rely on."""

import numpy as np
import pytest
from pydantic import ValidationError

from mlxe_async.algorithms import Acting
from mlxe_async.algorithms.mlxe.paper import MLxE, MLxESettings
from mlxe_async.rows import Spaces

SPACES = Spaces((4,), actions=3)
OBS = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)


def agent(seed=1, **settings):
    return MLxE(MLxESettings(**settings), SPACES, seed=seed, learns=False)


@pytest.mark.parametrize("size", [1.0, 10.0])
def test_stored_log_probabilities_are_recomputed_within_rounding(size):
    algorithm = agent()
    algorithm.load(size * algorithm.weights())
    stored, actions = [], []
    rng = np.random.default_rng(3)
    for row in OBS:  # one by one, as an executor with one environment does
        acted = algorithm.act(row[None], rng, Acting())
        stored.append(acted["log_prob"][0])
        actions.append(acted["action"][0])
    again = algorithm.policy(OBS).log_prob(np.array(actions))
    logits = algorithm.network.scores(OBS)
    assert np.abs(again - stored).max() <= 1e-5 * max(1.0, np.abs(logits).max())


def test_actions_come_with_the_frequency_of_their_probability():
    algorithm, many = agent(), np.repeat(OBS[:1], 20_000, 0)
    acted = algorithm.act(many, np.random.default_rng(0), Acting())
    for action in range(3):
        chosen = acted["action"] == action
        probability = np.exp(algorithm.policy(many[:1]).log_prob(np.array([action]))[0])
        assert chosen.mean() == pytest.approx(probability, abs=0.015)
        np.testing.assert_allclose(np.exp(acted["log_prob"][chosen]), probability, rtol=1e-4)


def test_acting_repeats_with_the_same_generator_state():
    algorithm = agent()
    first, second = (algorithm.act(OBS, np.random.default_rng(5), Acting())["action"] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_greedy_takes_the_most_probable_action():
    algorithm = agent()
    log_probs = np.stack([algorithm.policy(OBS).log_prob(np.full(len(OBS), a)) for a in range(3)], -1)
    np.testing.assert_array_equal(algorithm.greedy(OBS), log_probs.argmax(-1))


def test_many_versions_act_like_each_alone_also_when_they_change():
    algorithm = agent()
    for seeds in [(1, 2), (3, 4, 5)]:
        flats = np.stack([agent(seed).weights() for seed in seeds])
        obs = np.broadcast_to(OBS, (len(seeds), *OBS.shape))
        together = algorithm.greedy_many(flats, obs)
        for flat, actions in zip(flats, together, strict=True):
            algorithm.load(flat)
            np.testing.assert_array_equal(algorithm.greedy(OBS), actions)


def test_observations_of_several_axes_are_flattened():
    algorithm = MLxE(MLxESettings(), Spaces((2, 2), actions=3), seed=1, learns=False)
    np.testing.assert_array_equal(algorithm.greedy(OBS.reshape(-1, 2, 2)), agent().greedy(OBS))


def test_tasks_with_array_actions_are_refused_by_name():
    with pytest.raises(ValueError, match="discrete actions"):
        MLxE(MLxESettings(), Spaces((4,), action_shape=(1,)), seed=1, learns=False)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"correction": "vtrace", "returns": "steps_to_end"}, "correction"),
        ({"correction": "vtrace", "n_step": 1}, "n_step"),
        ({"value_scale": "survival", "returns": "steps_to_end"}, "value_scale"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"learning_rat": 1.0}, "learning_rat"),
        ({"policy": [0]}, "policy"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_naming_the_key(settings, named):
    with pytest.raises(ValidationError, match=named):
        MLxESettings(**settings)


def test_every_setting_says_what_raising_it_does():
    for name, field in MLxESettings.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


def test_updates_are_owed_per_segment_and_never_without_rows():
    algorithm = agent(min_updates=64, batch=256)
    assert algorithm.updates_due(rows=0, new_rows=0, new_segments=1) == 0
    assert algorithm.updates_due(rows=500, new_rows=20, new_segments=0) == 0
    assert algorithm.updates_due(rows=500, new_rows=20, new_segments=2) == 128
    assert algorithm.updates_due(rows=100_000, new_rows=20, new_segments=1) == 100_000 // 256 + 1
