"""Statistics of a study, each against a value computed by hand or by the slow way of its definition."""

import itertools
import math

import numpy as np
import pytest

from mlxe_async.analysis.statistics import (
    band,
    binomial_tail,
    bootstrap,
    compare_paired,
    iqm,
    kaplan_meier,
    means,
    median,
    probability_of_improvement,
    share_bound,
    sign_flip_test,
    signed_ranks,
)

INF = math.inf


def test_the_interquartile_mean_is_that_of_the_middle_half():
    assert iqm([9, 1, 2, 3, 4, 5, 6, 100]) == pytest.approx((3 + 4 + 5 + 6) / 4)
    # Six values: a quarter is one and a half, so the second and the fifth count half.
    assert iqm([0, 1, 2, 3, 10, 1000]) == pytest.approx((0.5 * 1 + 2 + 3 + 0.5 * 10) / 3)
    assert iqm([7]) == 7
    assert iqm([1, 1, 1, INF]) == 1
    with pytest.raises(ValueError, match="got none"):
        iqm([])


def test_failures_are_worse_than_anything():
    assert median([3, INF, 1]) == 3
    assert median([1, INF, INF]) == INF
    assert median([2, 1, INF, 3]) == 2.5
    assert bootstrap([1, 2, 3, INF])[1] == INF


def test_the_bootstrap_interval_is_that_of_all_resamples():
    # Of two values there are four resamples: (1, 1), (1, 3), (3, 1), (3, 3).
    assert bootstrap([1, 3], means) == (1, 3)
    assert bootstrap([1, 3], means, level=0.4) == (2, 2)
    # Of 5 values: the median of a resample is a value; the interval is where the share of all 5^5 resamples says.
    values = [1.0, 2.0, 4.0, 8.0, 16.0]
    medians = sorted(sorted(draw)[2] for draw in itertools.product(values, repeat=5))
    expected = medians[int(0.025 * len(medians))], medians[int(0.975 * len(medians))]
    assert bootstrap(values) == expected == (1.0, 16.0)
    assert bootstrap(values) == bootstrap(values)


@pytest.mark.long
def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        low, high = bootstrap(rng.exponential(size=30), resamples=400)
        covered += low <= math.log(2) <= high
    assert 0.89 <= covered / 200 <= 0.99


def test_kaplan_meier_by_hand():
    # Six runs: events at 2, 4, 4, 7; given up at 4 and 9. At risk: 6, 5, 2.
    curve = kaplan_meier([2, 4, 4, 4, 7, 9], [True, True, True, False, True, False])
    assert curve.times == (2, 4, 7)
    assert curve.shares == pytest.approx((5 / 6, 5 / 6 * 3 / 5, 5 / 6 * 3 / 5 * 1 / 2))
    assert curve.censored == (4, 9)
    assert curve.median == 4
    assert kaplan_meier([1, 5, 5], [True, False, False]).median is None
    assert kaplan_meier([5, 5], [False, False]).times == ()
    # Without failures it is the empirical distribution.
    assert kaplan_meier([3, 1, 2, 4], [True] * 4).shares == pytest.approx((3 / 4, 1 / 2, 1 / 4, 0))
    assert kaplan_meier([3, 1, 2, 4], [True] * 4).median == 2
    with pytest.raises(ValueError, match="as many times"):
        kaplan_meier([1], [])


def test_the_bound_of_a_share_is_exact():
    for runs in (1, 10, 50, 100):  # with no failure (1 - p)^n = 0.05
        assert share_bound(0, runs) == pytest.approx(1 - 0.05 ** (1 / runs))
    assert share_bound(3, 3) == 1.0
    # All but one: 1 - p^n = 0.05.
    assert share_bound(9, 10) == pytest.approx(0.95 ** (1 / 10))
    # 1 of 20, from the definition: (1 - p)^20 + 20 p (1 - p)^19 = 0.05.
    p = share_bound(1, 20)
    assert (1 - p) ** 20 + 20 * p * (1 - p) ** 19 == pytest.approx(0.05)
    assert p == pytest.approx(0.2161, abs=5e-5)
    with pytest.raises(ValueError, match="got 3 of 2"):
        share_bound(3, 2)


@pytest.mark.parametrize(("successes", "trials", "share"), [(0, 5, 0.3), (2, 5, 0.3), (5, 5, 0.9), (7, 30, 0.2)])
def test_the_binomial_tail_is_the_sum_of_its_terms(successes, trials, share):
    terms = [math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(successes + 1)]
    assert binomial_tail(successes, trials, share) == pytest.approx(sum(terms))


def test_signed_ranks_share_ties():
    assert signed_ranks([0.5, -2.0, 1.0]).tolist() == [1, -3, 2]
    assert signed_ranks([1.0, -1.0, 3.0, 0.0]).tolist() == [2.5, -2.5, 4, 0]
    assert signed_ranks([INF, -INF, 1.0]).tolist() == [2.5, -2.5, 1]


def test_the_sign_flip_test_tries_every_pattern():
    # Three pairs of one sign: of eight patterns two are as extreme.
    assert sign_flip_test([1, 2, 3]) == pytest.approx(2 / 8)
    # |1 + 2 - 3| = 0: all are as extreme.
    assert sign_flip_test([1, 2, -3]) == 1
    assert sign_flip_test([0, 0]) == 1
    assert sign_flip_test([1] * 10) == pytest.approx(2 / 1024)
    with pytest.raises(ValueError, match="finite"):
        sign_flip_test([1, INF])


def test_with_many_pairs_a_sample_of_patterns_agrees_with_all_of_them():
    values = np.arange(1, 17) * np.array([1, 1, -1, 1] * 4)
    signs = np.array(list(itertools.product((1, -1), repeat=16)))
    every = np.mean(np.abs(signs @ values) >= abs(values.sum()))
    assert sign_flip_test(values) == pytest.approx(every, abs=0.01)
    assert sign_flip_test(np.ones(40)) == pytest.approx(1 / 20_000)


def test_the_probability_of_improvement_counts_pairs():
    # 1 < 2, 1 < 3, 2 = 2, 2 < 3, two failures against two numbers and none.
    assert probability_of_improvement([1, 2], [2, 3]) == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    assert probability_of_improvement([INF], [INF]) == 0.5
    assert probability_of_improvement([INF, 1], [5]) == 0.5


def test_a_paired_comparison_by_hand():
    same = compare_paired([2, 4, 8], [4, 8, 16])
    assert (same.median_ratio, same.mean_ratio) == (0.5, pytest.approx(0.5))
    assert same.mean_interval == pytest.approx((0.5, 0.5))
    assert same.p_value == pytest.approx(2 / 8)
    assert (same.pairs, same.both) == (3, 3)
    # Ratios 1/4 and 4: no difference.
    assert compare_paired([1, 4], [4, 1]).mean_ratio == pytest.approx(1)


def test_a_paired_comparison_with_failures():
    one = compare_paired([2, INF, 2], [4, 4, INF])
    assert (one.pairs, one.both, one.mean_ratio) == (3, 1, pytest.approx(0.5))
    assert one.mean_interval is None
    assert one.median_ratio == 0.5
    assert one.improvement == pytest.approx((2 + 0 + 2 + 1 + 0.5 + 1) / 9)
    # Failing in every pair where the other does not is as clear as can be.
    assert compare_paired([INF] * 8, [3.0] * 8).p_value == pytest.approx(2 / 256)
    lost = compare_paired([INF, INF], [INF, INF])
    assert math.isnan(lost.median_ratio)
    assert lost.median_interval == (0, INF)
    assert (lost.mean_ratio, lost.p_value, lost.improvement) == (None, 1, 0.5)
    assert compare_paired([INF, INF, 3], [1, 2, 3]).median_ratio == INF
    assert compare_paired([1, 2, 3], [INF, INF, 3]).median_ratio == 0
    with pytest.raises(ValueError, match="at least one pair"):
        compare_paired([], [])


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_what_has_no_logarithm_is_refused(value):
    with pytest.raises(ValueError, match="expected values above 0"):
        compare_paired([1, value], [2, 2])


def test_ratios_that_differ_by_rounding_are_ties():
    differences = [math.log(2) - math.log(1), math.log(6) - math.log(3), math.log(28) - math.log(14)]
    assert len(set(differences)) > 1
    assert signed_ranks(differences).tolist() == [2, 2, 2]
    assert signed_ranks([1.0, -1.00000001, 1.0]).tolist() == [1.5, -3, 1.5]


def test_a_band_holds_the_mean_of_whole_runs():
    mean, low, high = band([[0.0, 10.0], [2.0, 30.0]])
    assert mean.tolist() == [1, 20]
    assert low.tolist() == [0, 10]
    assert high.tolist() == [2, 30]
    assert [part.tolist() for part in band([[5.0, 6.0]])] == [[5, 6]] * 3
