"""Policies without learning, and those of the cross-entropy method: played and judged as everything else is."""

import gymnasium
import numpy as np
import pytest

from mlxe_async.analysis import baselines
from mlxe_async.analysis.baselines import cartpole_baselines, cross_entropy_baselines
from mlxe_async.tasks.physics import start_state

SHORT = {"rule": "cap", "episodes": 3, "max_episode_steps": 200, "screen_steps": 50, "passes": 2, "seed": 0}


def test_episodes_of_linear_policies_are_gymnasiums_own():
    weights = np.random.default_rng(3).standard_normal((12, 4))
    weights[0] = (0.1, 0.3, 1.0, 0.4)
    steps = baselines._play(weights, np.stack([start_state(seed) for seed in range(12)]))
    expected = []
    for seed, own in enumerate(weights):
        env = gymnasium.make("CartPole-v1", max_episode_steps=500)
        obs, _ = env.reset(seed=seed)
        ended = False
        count = 0
        while not ended:
            obs, _, terminated, truncated, _ = env.step(int(obs @ own > 0))
            ended, count = terminated or truncated, count + 1
        expected.append(count)
        env.close()
    assert steps.tolist() == expected
    assert steps[0] == 500
    assert len(set(expected)) > 3


@pytest.mark.long
def test_searches_count_their_episodes_and_tell_their_failures(monkeypatch):
    once, in_a_row = cross_entropy_baselines(SHORT, 6)
    assert (once.rule, in_a_row.rule) == ("one test", "2 in a row")
    for found in (once, in_a_row):
        assert found.tried == len(found.episodes) == 6
        assert found.solved == sum(at is not None for at in found.episodes) > 0
        assert all(at % 10 == 0 for at in found.episodes if at is not None)
    assert once.solved >= in_a_row.solved
    assert cross_entropy_baselines(SHORT, 6) == [once, in_a_row]
    monkeypatch.setattr(baselines, "GENERATIONS", 1)
    assert cross_entropy_baselines(SHORT, 6)[1].episodes == (None,) * 6


def test_a_streak_is_counted_from_its_first_version():
    search = baselines._Search(np.random.default_rng(0))
    for passed in (True, False, True, True):
        search.next_generation()
        search.hear(passed=passed)
    assert (search.streak, search.first_pass[0], search.first[0]) == (2, 10, 30)


@pytest.mark.long
def test_every_kind_of_baseline_is_there():
    found = cartpole_baselines(SHORT, 9)
    assert [(one.name.split()[0], one.tried) for one in found] == [
        ("untrained", 9),
        ("untrained", 9),
        ("random", 9),
        ("linear", 9),
        ("linear", 9),
        ("fixed", 1),
    ]
    assert found[-1].solved == 1
