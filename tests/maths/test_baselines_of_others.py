"""Baselines without a critic, against a loop over the rows."""

import numpy as np
import pytest

from mlxe_async.maths import baselines


def slow(returns, step, episode):
    result = []
    for t, mine in zip(step, episode, strict=True):
        others = episode != mine
        beside = returns[others & (step == t)]
        every = returns[others]
        result.append(beside.mean() if len(beside) else every.mean() if len(every) else 0.0)
    return np.array(result)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_mean_of_the_others_at_the_same_step_or_of_all_of_them(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 12, rng.integers(1, 6))
    step = np.concatenate([np.arange(length) for length in lengths])
    episode = np.repeat(rng.permutation(100)[: len(lengths)], lengths)
    order = rng.permutation(len(step))
    step, episode, returns = step[order], episode[order], rng.normal(size=len(step))
    np.testing.assert_allclose(baselines.of_others(returns, step, episode), slow(returns, step, episode), atol=1e-12)


@pytest.mark.parametrize("lengths", [[1], [4], [1, 3], [1, 1], [2, 1, 5], [1, 1, 2]])
def test_few_and_short_episodes_have_the_mean_of_the_loop(lengths):
    step = np.concatenate([np.arange(length) for length in lengths])
    episode = np.repeat(np.arange(len(lengths)), lengths)
    returns = np.arange(len(step)) + 3.0
    np.testing.assert_allclose(baselines.of_others(returns, step, episode), slow(returns, step, episode), atol=1e-12)


def test_a_rows_own_episode_moves_nothing_of_its_baseline():
    step, episode = np.array([0, 1, 0, 1, 2]), np.array([7, 7, 3, 3, 3])
    first = baselines.of_others(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), step, episode)
    second = baselines.of_others(np.array([1.0, 2.0, 30.0, 40.0, 50.0]), step, episode)
    np.testing.assert_array_equal(first[2:], second[2:])
    assert (first[:2] != second[:2]).all()


def test_an_episode_alone_is_compared_with_nothing_not_even_with_rounding():
    returns = np.random.default_rng(0).normal(size=1000)
    assert returns.sum() != np.bincount(np.zeros(1000, int), returns)[0]
    assert not baselines.of_others(returns, np.arange(1000), np.zeros(1000, int)).any()


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match="shapes differ"):
        baselines.of_others(np.zeros(3), np.zeros(2, int), np.zeros(3, int))
