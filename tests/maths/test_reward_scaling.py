"""Rewards over the deviation of the running return, whatever pieces the episodes come in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxe_async.maths.reward_scaling import CARRY, RewardScale, discounted, follow

DISCOUNT = 0.9


def life(seed, steps, envs=3, gap=0.05):
    """Rows (T, B) of environments whose episodes end now and then, and R after each row, one by one."""
    rng = np.random.default_rng(seed)
    rows = {name: np.zeros((steps, envs), np.int64) for name in ("episode", "step")}
    rows |= {"reward": rng.normal(1, 2, (steps, envs)).astype(np.float32), "valid": np.ones((steps, envs), np.uint8)}
    running, before = np.zeros((steps, envs)), np.zeros((steps, envs))
    for env in range(envs):
        episode = number = 0
        so_far = 0.0
        for t in range(steps):
            rows["episode"][t, env], rows["step"][t, env], before[t, env] = episode, number, so_far
            so_far = so_far * DISCOUNT + float(rows["reward"][t, env])
            running[t, env] = so_far
            number += 1
            if rng.random() < 0.1:
                episode, number, so_far = episode + rng.integers(1, 3), 0, 0.0
    return rows, before, running


def piece(rows, before, start, end):
    return {name: column[start:end] for name, column in rows.items()} | {CARRY.name: before[start]}


def test_the_running_return_in_numbers():
    rows = {
        "reward": np.array([[1.0], [2.0], [4.0], [8.0]]),
        "episode": np.array([[0], [0], [1], [1]]),
        "step": np.array([[5], [6], [0], [1]]),
        CARRY.name: np.array([10.0]),
    }
    assert discounted(rows, 0.5)[:, 0].tolist() == [6.0, 5.0, 4.0, 10.0]
    # Whatever was carried into a row that begins an episode is another episode's.
    rows["step"] = np.array([[0], [1], [0], [1]])
    assert discounted(rows, 0.5)[:, 0].tolist() == [1.0, 2.5, 4.0, 10.0]
    # After a gap nothing is known of the episode, and the rows behind it are of another one.
    rows["step"] = np.array([[5], [6], [0], [2]])
    assert discounted(rows, 0.5)[:, 0].tolist() == [6.0, 5.0, 4.0, 8.0]


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 59))
def test_pieces_of_episodes_have_the_returns_of_whole_ones(seed, steps, cut):
    rows, before, running = life(seed, steps)
    cut = min(cut, steps)
    pieces = [piece(rows, before, start, end) for start, end in ((0, cut), (cut, steps)) if end > start]
    np.testing.assert_allclose(np.concatenate([discounted(one, DISCOUNT) for one in pieces]), running, rtol=1e-12)


def test_what_an_executor_carries_is_what_its_next_row_needs():
    rows, before, _ = life(3, 50)
    carry = {CARRY.name: np.zeros(3)}
    for t in range(50):
        carry[CARRY.name][rows["step"][t] == 0] = 0  # as `Acting.begin` does
        np.testing.assert_allclose(carry[CARRY.name], before[t])
        follow(carry, rows["reward"][t], DISCOUNT)


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_the_scale_is_that_of_all_rows_whatever_rollouts_they_came_in(seed, lengths):
    rows, before, running = life(seed, sum(lengths))
    scale, at = RewardScale(DISCOUNT), 0
    for length in lengths:
        scale.count(piece(rows, before, at, at + length))
        at += length
    assert scale.moments.rows == running.size
    assert scale.deviation == pytest.approx(np.sqrt(running.var() + 1e-8), rel=1e-9)


def test_padding_is_no_row():
    rows, before, running = life(1, 20)
    padded = {name: np.concatenate([column, column[-1:]]) for name, column in rows.items()}
    padded["valid"][-1] = 0
    scale = RewardScale(DISCOUNT)
    scale.count(padded | {CARRY.name: before[0]})
    assert scale.moments.rows == running.size
    assert scale.deviation == pytest.approx(np.sqrt(running.var() + 1e-8), rel=1e-9)


def test_rewards_are_divided_and_cut_and_never_shifted():
    rows, before, running = life(2, 400)
    scale = RewardScale(DISCOUNT, limit=1.5)
    assert scale.deviation == 1.0
    assert scale.scaled(np.array([0.5, -9.0])).tolist() == [0.5, -1.5]
    scale.count(rows | {CARRY.name: before[0]})
    shown = scale.scaled(np.array([0.0, running.std(), -running.std() / 2, 1e9]))
    assert shown.dtype == np.float32
    np.testing.assert_allclose(shown, [0, 1, -0.5, 1.5], rtol=1e-6)


def test_rewards_are_cut_to_ten_deviations_where_nothing_else_is_said():
    assert RewardScale(DISCOUNT).scaled(np.array([9.5, 10.5, -11.0])).tolist() == [9.5, 10.0, -10.0]


def test_of_a_rollout_only_the_first_running_return_is_kept_and_in_double_precision():
    assert (CARRY.per_rollout, np.dtype(CARRY.dtype), CARRY.shape) == (True, np.float64, ())


def test_it_goes_on_from_its_state_to_the_last_digit():
    rows, before, _ = life(4, 60)
    whole, first, second = (RewardScale(DISCOUNT) for _ in range(3))
    for start, end in ((0, 20), (20, 60)):
        whole.count(piece(rows, before, start, end))
    first.count(piece(rows, before, 0, 20))
    second.restore(first.state())
    second.count(piece(rows, before, 20, 60))
    for name, array in second.state().items():
        np.testing.assert_array_equal(array, whole.state()[name])
    shapes = [{name: array.shape for name, array in one.state().items()} for one in (RewardScale(0.5), whole)]
    assert shapes[0] == shapes[1]
    second.count(piece(rows, before, 0, 20))  # what it was restored from is its own
    assert first.state()["reward_scale.rows"] == 60
