"""Which losses are far from their running mean."""

import copy

import numpy as np
import pytest

from mlxe_async.maths.outliers import FIRST, Outliers


def edge(outliers, inside, outside):
    """The loss from which on one is an outlier, by bisection."""
    for _ in range(80):
        middle = (inside + outside) / 2
        if copy.deepcopy(outliers).hears(middle):
            outside = middle
        else:
            inside = middle
    return inside


@pytest.mark.parametrize("heard", [50, 99, 100, 101, 300])
def test_a_loss_is_an_outlier_beyond_so_many_deviations_from_the_weighted_mean(heard):
    losses, outliers, weights = np.random.default_rng(0).normal(3.0, 0.5, heard), Outliers(4.0), np.empty(0)
    for number, loss in enumerate(losses, 1):
        outliers.hears(loss)
        share = max(1 / number, 0.01)  # the mean of all until a share is as small as that
        weights = np.append((1 - share) * weights, share)
    mean = weights @ losses
    deviation = np.sqrt(weights @ (losses - mean) ** 2)
    assert edge(outliers, 3.0, 100.0) == pytest.approx(mean + 4 * deviation, rel=1e-9)
    assert edge(outliers, 3.0, -100.0) == pytest.approx(mean - 4 * deviation, rel=1e-9)


def test_a_loss_that_stays_as_it_is_is_never_an_outlier():
    outliers = Outliers(2.0)
    assert not any(outliers.hears(3.0) for _ in range(2 * FIRST))


def test_the_first_loss_after_the_fiftieth_may_be_an_outlier():
    for heard, is_one in [(49, False), (50, True)]:
        outliers = Outliers(2.0)
        for number in range(heard):
            outliers.hears(float(number % 2))
        assert outliers.hears(1e6) is is_one


def test_losses_of_one_kind_are_rarely_outliers_and_far_ones_always():
    rng, outliers = np.random.default_rng(0), Outliers(5.0)
    heard = [outliers.hears(loss) for loss in rng.normal(3.0, 0.5, 2000)]
    assert sum(heard) <= 2
    for off in (3.0 + 10 * 0.5, 3.0 - 10 * 0.5):
        assert outliers.hears(off)
        [outliers.hears(loss) for loss in rng.normal(3.0, 0.5, 300)]


def test_none_is_an_outlier_before_there_is_a_mean_to_be_far_from():
    outliers = Outliers(2.0)
    assert not any(outliers.hears(loss) for loss in [0.0] * 10 + [1e6] * (FIRST - 10))


def test_losses_that_have_changed_for_good_are_none_after_a_while():
    rng, outliers = np.random.default_rng(0), Outliers(5.0)
    [outliers.hears(loss) for loss in rng.normal(1.0, 0.1, 500)]
    heard = [outliers.hears(loss) for loss in rng.normal(4.0, 0.1, 500)]
    assert heard[0]
    assert not any(heard[100:])
