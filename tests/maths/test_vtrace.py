"""V-trace against the sum of the paper, and against what it must reduce to."""

import numpy as np
import pytest
import torch

from mlxe_async.maths import vtrace


def slow_value_targets(ratio, reward, value, next_value, discount, carry, rho_clip, c_clip):
    """v_s = V_s + sum_t (prod_{s<=i<t} discount_i c_i) delta_t of one window, in float64."""
    length, result = len(reward), []
    for s in range(length):
        total, factor = value[s], 1.0
        for t in range(s, length):
            total += factor * min(rho_clip, ratio[t]) * (reward[t] + discount[t] * next_value[t] - value[t])
            factor *= discount[t] * min(c_clip, ratio[t]) * carry[t]
        result.append(total)
    return np.array(result)


def window(seed, length=6, samples=4):
    rng = np.random.default_rng(seed)
    shape = (length, samples)
    value = rng.normal(size=shape)
    carry = (rng.random(shape) > 0.2).astype(float)
    carry[-1] = 0.0
    next_value = rng.normal(size=shape)
    next_value[:-1] = np.where(carry[:-1] > 0, value[1:], next_value[:-1])
    discount = np.where((carry == 0) & (rng.random(shape) < 0.5), 0.0, 0.9)
    return np.exp(rng.normal(size=shape)), rng.normal(size=shape), value, next_value, discount, carry


@pytest.mark.parametrize("seed", range(5))
def test_targets_equal_the_sum_in_the_paper(seed):
    arrays = window(seed)
    fast = vtrace.vtrace(*map(torch.tensor, arrays), rho_clip=1.2, c_clip=0.9)
    ratio, reward, value, _, discount, carry = arrays
    for m in range(4):
        slow = slow_value_targets(*(x[:, m] for x in arrays), 1.2, 0.9)
        np.testing.assert_allclose(fast.value_target[:, m], slow, atol=1e-12)
        for t in range(6):
            following = slow[t + 1] if carry[t, m] else arrays[3][t, m]
            expected = min(1.2, ratio[t, m]) * (reward[t, m] + discount[t, m] * following - value[t, m])
            assert float(fast.advantage[t, m]) == pytest.approx(expected, abs=1e-12)


def test_on_policy_the_first_target_is_the_n_step_return():
    _, reward, value, _, _, _ = window(0)
    carry = np.ones_like(reward)
    carry[-1] = 0
    next_value = np.concatenate([value[1:], np.full((1, 4), 2.0)])
    arrays = (np.ones_like(reward), reward, value, next_value, np.full_like(reward, 0.9), carry)
    first = vtrace.vtrace(*map(torch.tensor, arrays)).value_target[0]
    n_step = sum(0.9**i * reward[i] for i in range(6)) + 0.9**6 * 2.0
    np.testing.assert_allclose(first, n_step)


def test_rows_that_the_policy_would_never_choose_change_nothing():
    arrays = list(window(1))
    arrays[0] = np.zeros_like(arrays[0])
    result = vtrace.vtrace(*map(torch.tensor, arrays))
    np.testing.assert_array_equal(result.value_target, arrays[2])
    assert not result.advantage.any()


def test_nothing_flows_back_over_an_end():
    arrays = window(2)
    arrays[5][2] = 0.0
    changed = [x.copy() for x in arrays]
    changed[1][3:] += 100.0
    before = vtrace.vtrace(*map(torch.tensor, arrays))
    after = vtrace.vtrace(*map(torch.tensor, changed))
    assert torch.equal(before.value_target[:3], after.value_target[:3])
    assert torch.equal(before.advantage[:3], after.advantage[:3])


def test_different_shapes_are_refused():
    one, two = torch.zeros(3, 1), torch.zeros(3, 2)
    with pytest.raises(ValueError, match="shapes differ"):
        vtrace.vtrace(one, two, one, one, one, one)


def test_rows_continue_each_other_except_at_ends_and_before_padding():
    valid = np.array([[1, 1], [1, 1], [1, 0]], bool)
    terminated = np.array([[0, 0], [1, 0], [0, 0]], bool)
    truncated = np.array([[0, 1], [0, 0], [0, 0]], bool)
    expected = [[True, False], [False, False], [False, False]]
    assert vtrace.carry_mask(valid, terminated, truncated).tolist() == expected


def test_ratios_count_up_to_one_and_all_that_comes_where_nothing_else_is_said():
    arrays = window(3)
    told = vtrace.vtrace(*map(torch.tensor, arrays), lambda_=1.0, rho_clip=1.0, c_clip=1.0)
    silent = vtrace.vtrace(*map(torch.tensor, arrays))
    for one, other in zip(told, silent, strict=True):
        assert torch.equal(one, other)
    assert (arrays[0] > 1).any()


def test_a_lambda_between_weighs_what_is_carried_back():
    _, reward, value, next_value, discount, _ = window(4)
    carry = np.ones_like(reward)
    carry[-1] = 0
    arrays = (np.ones_like(reward), reward, value, next_value, discount, carry)
    found = vtrace.vtrace(*map(torch.tensor, arrays), lambda_=0.3).value_target.numpy()
    delta, total = reward + discount * next_value - value, np.zeros(4)
    for t in reversed(range(6)):
        total = delta[t] + 0.3 * discount[t] * carry[t] * total
        np.testing.assert_allclose(found[t], value[t] + total, atol=1e-12)


@pytest.mark.parametrize("place", range(6))
def test_each_shape_is_looked_at(place):
    arrays = [torch.zeros(3, 2) for _ in range(6)]
    arrays[place] = torch.zeros(3, 1)
    with pytest.raises(ValueError, match="shapes differ"):
        vtrace.vtrace(*arrays)


def test_arguments_stay_as_they_are():
    given = window(3)
    before = [column.copy() for column in given]
    vtrace.vtrace(*given)
    for column, kept in zip(given, before, strict=True):
        np.testing.assert_array_equal(column, kept)
