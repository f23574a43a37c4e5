"""Delayed gradients that are compensated lead farther than those that are applied as they come."""

import numpy as np
import pytest

from mlxe_async.maths.delay_compensation import STRENGTHS, DelayCompensation, compensated

LAG, STEPS = 8, 150


def test_it_is_exact_on_a_quadratic_where_the_strength_is_the_curvature():
    curvature, then, now = np.float32(3.0), np.float32([0.5]), np.float32([-0.2])
    gradient = curvature * then
    found = compensated(gradient, now, then, float(curvature / gradient[0] ** 2))
    np.testing.assert_allclose(found, curvature * now, rtol=1e-6)


def test_without_delay_nothing_changes():
    weights, gradient = np.ones(5, np.float32), np.arange(5, dtype=np.float32)
    for kind in STRENGTHS:
        known = DelayCompensation(4, kind=kind)
        known.note(3, weights)
        np.testing.assert_array_equal(known.applied(gradient, weights, 3), gradient)


def test_versions_that_are_too_old_are_not_compensated():
    known = DelayCompensation(2, kind="constant")
    for version in range(5):
        known.note(version, np.full(2, version, np.float32))
    assert [version for version in range(6) if known.knows(version)] == [2, 3, 4]
    gradient, now = np.ones(2, np.float32), np.full(2, 4, np.float32)
    np.testing.assert_array_equal(known.applied(gradient, now, 1), gradient)
    np.testing.assert_allclose(known.applied(gradient, now, 2), 1 + 0.04 * 2)


def test_the_adaptive_strength_does_not_depend_on_the_scale_of_the_loss():
    rng = np.random.default_rng(0)
    gradients, weights = rng.normal(size=(2, 5, 8)).astype(np.float32)
    ways = [DelayCompensation(10), DelayCompensation(10)]
    for version, (gradient, weight) in enumerate(zip(gradients, weights, strict=True)):
        found = []
        for known, scale in zip(ways, (1, 20), strict=True):
            known.note(version, weight)
            found.append(known.applied(np.float32(scale) * gradient, weight, max(0, version - 2)) / scale)
        np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-5)


def quadratic(rng):
    """A loss of 16 numbers, its gradient, and a rate at which lag 8 does harm."""
    basis, _ = np.linalg.qr(rng.normal(size=(16, 16)))
    hessian, centre = basis @ np.diag(np.linspace(0.1, 1.0, 16)) @ basis.T, rng.normal(size=16)
    return lambda w: 0.5 * (w - centre) @ hessian @ (w - centre), lambda w: hessian @ (w - centre), 0.18


def logistic(rng):
    """The loss of a regression on 200 rows of 16 numbers, its gradient, and a rate at which lag 8 does harm."""
    rows, truth = rng.normal(size=(200, 16)), rng.normal(size=16)
    labels = (rng.uniform(size=200) < 1 / (1 + np.exp(-rows @ truth))) * 2.0 - 1

    def loss(w):
        return np.logaddexp(0, -labels * (rows @ w)).mean()

    def slope(w):
        return -(labels * np.exp(-np.logaddexp(0, labels * (rows @ w)))) @ rows / 200

    return loss, slope, 4.0


def left_over(problem, how, lag=LAG):
    """Mean loss on the way of plain steps by gradients that are `lag` versions old."""
    loss, slope, rate = problem
    path, total = [np.zeros(16, np.float32)], 0.0
    for version in range(STEPS):
        if how is not None:
            how.note(version, path[-1])
        old = max(0, version - lag)
        gradient = slope(path[old]).astype(np.float32)
        if how is not None:
            gradient = how.applied(gradient, path[-1], old)
        path.append((path[-1] - rate * gradient).astype(np.float32))
        if np.abs(path[-1]).max() > 1e6:
            return np.inf
        total += loss(path[-1])
    return total / STEPS


@pytest.mark.parametrize("task", [quadratic, logistic])
def test_at_lag_8_it_is_below_what_comes_as_it_comes_in_19_of_20(task):
    better = flipped = 0
    for seed in range(20):
        problem = task(np.random.default_rng(seed))
        plain = left_over(problem, None)
        better += left_over(problem, DelayCompensation(LAG)) < plain
        flipped += left_over(problem, DelayCompensation(LAG, strength=-STRENGTHS["adaptive"])) < plain
    assert better >= 19
    assert flipped <= 1


@pytest.mark.parametrize("task", [quadratic, logistic])
def test_at_lag_0_all_ways_are_plain_steps(task):
    problem = task(np.random.default_rng(0))
    plain = left_over(problem, None, lag=0)
    for kind in STRENGTHS:
        assert left_over(problem, DelayCompensation(LAG, kind=kind), lag=0) == pytest.approx(plain, abs=1e-6)


def test_the_adaptive_strength_is_divided_by_the_root_of_a_running_mean_square():
    how, now = DelayCompensation(4, strength=0.5), np.array([1.0, 2.0, -1.0], np.float32)
    how.note(0, np.zeros(3, np.float32))
    first, second = np.array([[0.3, -2.0, 1e-4], [-0.1, 1.0, 2e-4]], np.float32)
    for gradient, square in ((first, first**2), (second, 0.95 * first**2 + 0.05 * second**2)):
        expected = gradient + 0.5 / np.sqrt(square + 1e-7) * gradient**2 * now
        np.testing.assert_allclose(how.applied(gradient, now, 0), expected, rtol=1e-5)
