"""Which losses are far from their running mean."""

import numpy as np

from mlxe_async.maths.outliers import FIRST, Outliers


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
