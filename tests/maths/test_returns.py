"""Returns of a segment against slow versions written like the papers' sums."""

import numpy as np
import pytest
import torch

from mlxe_async.maths import returns


def slow_n_step(reward, next_value, terminated, discount, n):
    """sum_{i<m} discount^i r_(t+i) + discount^m V(s_(t+m)), m = min(n, rows left), without V if the world ended."""
    length, result = len(reward), []
    for t in range(length):
        m = min(n, length - t)
        total = sum(discount**i * reward[t + i] for i in range(m))
        ended = terminated and t + m == length
        result.append(total + (0 if ended else discount**m * next_value[t + m - 1]))
    return np.array(result)


def target(split, next_value):
    return split.partial + split.coefficient * next_value[split.cut]


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("n", [1, 3, 7, 50])
@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_n_step_equals_the_sum_in_the_paper(terminated, n, length):
    rng = np.random.default_rng(length * 100 + n)
    reward, next_value = rng.normal(size=length), rng.normal(size=length)
    split = returns.n_step(reward, terminated, 0.9, n)
    np.testing.assert_allclose(
        target(split, next_value), slow_n_step(reward, next_value, terminated, 0.9, n), atol=1e-12
    )


def test_n_step_of_three_rewards_of_one_in_numbers():
    split = returns.n_step(np.ones(3), True, 0.5, 2)
    np.testing.assert_allclose(split.partial, [1.5, 1.5, 1.0])
    np.testing.assert_allclose(split.coefficient, [0.25, 0.0, 0.0])
    np.testing.assert_array_equal(split.cut, [1, 2, 2])


def test_steps_to_end_gives_the_published_numbers():
    reward = np.full(200, 3.0)
    reward[-1] = -10.0
    split = returns.steps_to_end(reward, True)
    by_steps_left = split.partial[::-1]
    published = {1: -4.98, 2: -1.11, 3: 2.07, 5: 7.09, 10: 15.51, 20: 25.58, 50: 45.24, 100: 80.41, 158: 147.22}
    for steps_left, value in published.items():
        assert by_steps_left[steps_left] == pytest.approx(value, abs=0.01)
    assert not split.coefficient.any()


def test_steps_to_end_bootstraps_at_a_cut_with_the_largest_discount():
    reward, next_value = np.array([1.0, 2.0, 3.0]), np.array([7.0, 7.0, 100.0])
    split = returns.steps_to_end(reward, False)
    np.testing.assert_allclose(target(split, next_value), slow_n_step(reward, next_value, False, 0.99, 3))


def test_the_discount_by_steps_left_stays_between_its_bounds():
    discount = returns.steps_to_end_discount(np.array([1, 157, 158, 10_000]))
    assert discount[0] == pytest.approx(0.7983)
    assert discount[1] < 0.99
    assert discount[2] == discount[3] == 0.99


def slow_by_state(reward, next_value, terminated, discount):
    """sum_i (prod of the discounts of the rows before i) r_i, then the product of all of them times V at the end."""
    length, result = len(reward), []
    for t in range(length):
        total, factor = 0.0, 1.0
        for i in range(t, length):
            total += factor * reward[i]
            factor *= discount[i]
        result.append(total if terminated else total + factor * next_value[-1])
    return np.array(result)


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_returns_by_state_equal_the_sum(terminated, length):
    reward, next_value, discount = np.random.default_rng(length).random((3, length))
    split = returns.by_state(reward, terminated, discount)
    np.testing.assert_allclose(target(split, next_value), slow_by_state(reward, next_value, terminated, discount))
    np.testing.assert_array_equal(split.cut, [length - 1] * length)


def test_returns_by_state_in_numbers():
    """Rewards 3, 3, -10 with discounts 0.9, 0.5, 0.7: -10; 3 - 5 = -2; 3 - 1.8 = 1.2. Cut: 0.7, 0.35, 0.315 of V."""
    reward, discount = np.array([3.0, 3.0, -10.0]), np.array([0.9, 0.5, 0.7])
    ended, cut = returns.by_state(reward, True, discount), returns.by_state(reward, False, discount)
    np.testing.assert_allclose(ended.partial, [1.2, -2.0, -10.0])
    np.testing.assert_allclose(ended.coefficient, [0.0, 0.0, 0.0])
    np.testing.assert_allclose(cut.partial, [1.2, -2.0, -10.0])
    np.testing.assert_allclose(cut.coefficient, [0.315, 0.35, 0.7])


def test_one_discount_for_all_states_gives_the_ordinary_return():
    reward, next_value = np.random.default_rng(0).random((2, 6))
    split = returns.by_state(reward, False, np.full(6, 0.8))
    np.testing.assert_allclose(target(split, next_value), slow_n_step(reward, next_value, False, 0.8, 6))


def test_the_discount_by_state_falls_to_the_nearest_limit():
    """Half way to 2.4 is 0.5 + 0.49/2; a quarter to 0.2 is 0.5 + 0.49 * 3/4; the nearer of both counts; out is low."""
    obs = np.array([[0, 9, 0, 9], [1.2, 0, 0, 0], [-1.2, 0, 0.05, 0], [0, 0, -0.05, 0], [2.4, 0, 0, 0], [7, 0, 0, 0]])
    discount = returns.state_discount(obs, (2.4, None, 0.2, None))
    np.testing.assert_allclose(discount, [0.99, 0.745, 0.745, 0.8675, 0.5, 0.5])
    np.testing.assert_allclose(returns.state_discount(obs[:2], (2.4, None, 0.2, None), 0.0, 1.0), [1.0, 0.5])


@pytest.mark.parametrize("limits", [(None, None), (1.0,), (0.0, None), (-1.0, None)])
def test_limits_that_do_not_fit_are_refused(limits):
    with pytest.raises(ValueError, match="state_discount: expected"):
        returns.state_discount(np.zeros((3, 2)), limits)


def test_a_discount_for_another_number_of_rows_is_refused():
    with pytest.raises(ValueError, match="by_state: expected a discount for each row"):
        returns.by_state(np.ones(3), True, np.ones(1))


@pytest.mark.parametrize("reward", [np.zeros(0), np.zeros((3, 2))])
def test_rewards_that_are_no_segment_are_refused(reward):
    with pytest.raises(ValueError, match="expected shape"):
        returns.n_step(reward, True, 0.9, 3)
    with pytest.raises(ValueError, match="expected shape"):
        returns.steps_to_end(reward, True)


def test_n_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        returns.n_step(np.ones(3), True, 0.9, 0)


def slow_advantage(reward, value, next_value, terminated, ends, discount, lambda_):
    """A_t = sum_l (discount lambda)^l delta_(t+l), stopping after the first end."""
    length, result = len(reward), []
    for t in range(length):
        total = 0.0
        for i in range(t, length):
            delta = reward[i] + discount * next_value[i] * (not terminated[i]) - value[i]
            total += (discount * lambda_) ** (i - t) * delta
            if ends[i]:
                break
        result.append(total)
    return np.array(result)


@pytest.mark.parametrize("seed", range(5))
def test_generalised_advantages_equal_the_sum_in_the_paper(seed):
    rng = np.random.default_rng(seed)
    shape = (12, 3)
    reward, value, next_value = rng.normal(size=shape), rng.normal(size=shape), rng.normal(size=shape)
    terminated = rng.random(shape) < 0.15
    ends = terminated | (rng.random(shape) < 0.15)
    ends[-1] = True
    fast = returns.generalised_advantage(reward, value, next_value, terminated, ends, 0.9, 0.8)
    for column in range(3):
        arrays = [x[:, column] for x in (reward, value, next_value, terminated, ends)]
        np.testing.assert_allclose(fast[:, column], slow_advantage(*arrays, 0.9, 0.8), atol=1e-12)


def test_two_episodes_in_one_sequence_equal_each_alone():
    rng = np.random.default_rng(0)
    reward, value, next_value = rng.normal(size=(3, 10))
    terminated, ends = np.zeros((2, 10), bool)
    ends[4] = ends[9] = terminated[9] = True
    arrays = (reward, value, next_value, terminated, ends)
    together = returns.generalised_advantage(*arrays, 0.9, 0.8)
    first = returns.generalised_advantage(*(x[:5] for x in arrays), 0.9, 0.8)
    second = returns.generalised_advantage(*(x[5:] for x in arrays), 0.9, 0.8)
    np.testing.assert_array_equal(together, np.concatenate([first, second]))


def test_advantages_of_different_shapes_are_refused():
    one, two = np.zeros((4, 1)), np.zeros((4, 2))
    with pytest.raises(ValueError, match="shapes differ"):
        returns.generalised_advantage(one, two, one, one > 0, one > 0, 0.9, 0.8)


@pytest.mark.parametrize("n", [1, 3, 40, 1000])
@pytest.mark.parametrize("lengths", [[1], [5], [60, 2], [1, 4, 2, 9, 3] * 20])
def test_n_step_of_many_segments_is_that_of_each(n, lengths):
    rng, lengths = np.random.default_rng(n), np.array(lengths)
    reward, terminated = rng.normal(size=lengths.sum()).astype(np.float32), rng.random(len(lengths)) < 0.5
    split = returns.n_step_many(reward, lengths, terminated, 0.9, n)
    for k, (end, length) in enumerate(zip(np.cumsum(lengths), lengths, strict=True)):
        own = returns.n_step(reward[end - length : end], terminated[k], 0.9, n)
        np.testing.assert_allclose(split.partial[end - length : end], own.partial, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(split.coefficient[end - length : end], own.coefficient)
        np.testing.assert_array_equal(split.cut[end - length : end], own.cut + end - length)


def test_segments_together_are_refused_where_one_alone_would_be():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        returns.n_step_many(np.ones(3), np.array([3]), np.array([True]), 0.9, 0)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        returns.n_step(np.ones(1), True, 0.9, 0)
    with pytest.raises(ValueError, match="expected shape"):
        returns.n_step_many(np.ones(0), np.zeros(0, int), np.zeros(0, bool), 0.9, 3)


def test_the_states_discounts_name_what_does_not_fit():
    for obs, limits in ((np.zeros(2), (1.0, 1.0)), (np.zeros((3, 2)), (1.0, 0.0)), (np.zeros((3, 3)), (1.0, 1.0))):
        with pytest.raises(ValueError, match="state_discount: expected"):
            returns.state_discount(obs, limits)


@pytest.mark.parametrize("place", range(5))
def test_each_shape_of_an_advantages_arguments_is_looked_at(place):
    arrays = [np.zeros((4, 2)) for _ in range(5)]
    arrays[place] = np.zeros((4, 1))
    with pytest.raises(ValueError, match="shapes differ"):
        returns.generalised_advantage(*arrays[:3], *(one > 0 for one in arrays[3:]), 0.9, 0.8)


def test_rewards_of_a_segment_that_was_cut_count_by_99_hundredths_up_to_its_end():
    split = returns.steps_to_end(np.array([1.0, 2.0, 4.0]), False)
    np.testing.assert_allclose(split.partial, [1 + 0.99 * 2 + 0.99**2 * 4, 2 + 0.99 * 4, 4])
    np.testing.assert_allclose(split.coefficient, [0.99**3, 0.99**2, 0.99])
    np.testing.assert_array_equal(split.cut, [2, 2, 2])


def test_a_segment_of_one_row_that_ended_is_its_reward():
    split = returns.steps_to_end(np.array([7.0]), True)
    assert [column.tolist() for column in split] == [[7.0], [0.0], [0]]


def test_returns_of_a_failure_stop_at_its_row():
    split = returns.steps_to_end(np.array([1.0, 2.0, 3.0]), True)
    assert split.cut.tolist() == [2, 2, 2]
    assert split.coefficient.tolist() == [0.0, 0.0, 0.0]


def test_a_limit_below_zero_is_refused_beside_a_good_one():
    with pytest.raises(ValueError, match="state_discount: expected"):
        returns.state_discount(np.zeros((3, 2)), (1.0, -1.0))


def test_the_curve_of_steps_to_end_is_what_it_is_told():
    """clip(0.5 + 0.2 ln k, 0.6, 0.8): 0.6 for k = 1, 0.5 + 0.2 ln 3 for 3, 0.8 from k = 5 on, and at a cut."""
    curve = returns.DiscountCurve(first=0.5, slope=0.2, low=0.6, high=0.8)
    discount = returns.steps_to_end_discount(np.array([1, 3, 5, 100]), curve)
    assert discount == pytest.approx([0.6, 0.5 + 0.2 * np.log(3), 0.8, 0.8])
    assert returns.steps_to_end(np.array([1.0, 1.0]), True, curve).partial == pytest.approx([1.6, 1.0])
    assert returns.steps_to_end(np.array([1.0, 1.0]), False, curve).coefficient == pytest.approx([0.64, 0.8])


def test_the_lowest_discount_of_the_curve_is_one_half_where_nothing_else_is_said():
    curve = returns.DiscountCurve(first=0.2, slope=0.1)
    np.testing.assert_allclose(returns.steps_to_end_discount(np.array([1, 2, 20, 60]), curve)[:2], 0.5)
    np.testing.assert_allclose(
        returns.steps_to_end_discount(np.array([60, 10**6]), curve), [0.2 + 0.1 * np.log(60), 0.99]
    )


def test_normalised_advantages_have_mean_0_and_deviation_1_of_all_rows():
    shown = returns.normalised(torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64))
    np.testing.assert_allclose(shown, np.array([-2, -1, 0, 3]) / np.sqrt(14 / 4), rtol=1e-7)
    assert returns.normalised(torch.full((5,), 7.0)).tolist() == [0.0] * 5


def test_advantages_that_hardly_differ_stay_small():
    shown = returns.normalised(torch.tensor([0.0, 2e-8], dtype=torch.float64))
    np.testing.assert_allclose(shown, [-0.5, 0.5], rtol=1e-6)


@pytest.mark.parametrize(("variance", "beyond"), [(9.0, 3 + 1e-8), (0.0, 1e-8)])
def test_where_several_workers_learn_advantages_are_normalised_by_the_moments_of_all(monkeypatch, variance, beyond):
    asked = []
    monkeypatch.setattr(returns.together, "are_several", lambda: True)
    monkeypatch.setattr(returns.together, "moments", lambda rows: (asked.append(rows.tolist()), (2.0, variance))[1])
    advantage = torch.tensor([2.0, 2.0 + 3e-8, 11.0], dtype=torch.float64, requires_grad=True)
    shown = returns.normalised(advantage)
    torch.testing.assert_close(shown, (advantage - 2.0) / beyond, rtol=1e-12, atol=0)
    assert asked == [advantage.tolist()]
