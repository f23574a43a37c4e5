"""Normalised scores, their aggregates and profiles, against values computed by hand."""

import math

import numpy as np
import pytest
from study_runs import story, write_run

from mlxe_async.analysis.outcomes import failure, outcome
from mlxe_async.analysis.suites import (
    Level,
    Result,
    iqm_of,
    level_table,
    mean_of,
    median_of,
    normalised,
    optimality_gap,
    profile_rows,
    profiles,
    resampled,
    result,
    return_table,
    suite_table,
    with_interval,
)

LEVELS = {"pole": Level(20.0, 120.0, "as written"), "car": Level(-200.0, -100.0, "measured")}


def runs(*values):
    return [Result(seed, value, "" if value is not None else "killed") for seed, value in enumerate(values)]


RESULTS = {
    "ppo": {"pole": runs(120.0, 70.0), "car": runs(-200.0, -150.0)},
    "dqn": {"pole": runs(20.0, None), "car": runs(-100.0, -100.0)},
}


def test_random_play_is_zero_and_the_reference_is_one():
    assert [LEVELS["car"].normalised(value) for value in (-200.0, -100.0, -50.0, -250.0)] == [0.0, 1.0, 1.5, -0.5]


def test_a_run_that_failed_counts_as_random_play():
    assert [one.tolist() for one in normalised(RESULTS["dqn"], LEVELS)] == [[0.0, 0.0], [1.0, 1.0]]


def test_the_aggregates_are_those_of_the_paper():
    scores = [np.array([0.0, 0.5, 2.0]), np.array([0.1, 0.2, 0.3])]
    # Sorted 0, .1, .2, .3, .5, 2: a quarter is one and a half runs, of which the half counts.
    assert iqm_of(scores) == pytest.approx((0.5 * 0.1 + 0.2 + 0.3 + 0.5 * 0.5) / 3)
    assert mean_of(scores) == pytest.approx((2.5 / 3 + 0.2) / 2)
    assert median_of([*scores, np.array([9.0])]) == pytest.approx(2.5 / 3)
    assert optimality_gap(scores) == pytest.approx(((1.0 + 0.5 + 0.0) / 3 + (0.9 + 0.8 + 0.7) / 3) / 2)


def test_runs_are_drawn_within_their_own_task():
    scores = [np.array([0.0, 0.0, 0.0]), np.array([1.0, 2.0, 3.0])]
    drawn = [*zip(*resampled(scores, 50), strict=True)]
    assert len(drawn) == 50
    assert all(first.tolist() == [0.0] * 3 and set(second) <= {1.0, 2.0, 3.0} for first, second in drawn)
    assert len({tuple(second) for _, second in drawn}) > 5


def test_the_interval_holds_what_it_should_and_is_the_same_each_time():
    rng = np.random.default_rng(3)
    scores = [rng.normal(task, 0.1, 20) for task in range(3)]
    middle, interval = with_interval(scores, mean_of)
    assert interval == with_interval(scores, mean_of)[1]
    assert interval[0] < middle < interval[1]
    # Three means of twenty with deviation 0.1: 1.96 * 0.1 / sqrt(60), but for the luck of this draw.
    assert interval[1] - interval[0] == pytest.approx(2 * 1.96 * 0.1 / math.sqrt(60), rel=0.3)
    # Were runs drawn from all tasks together, the tasks' own differences would be in it.
    assert interval[1] - interval[0] < 0.2


def test_a_single_run_of_each_task_has_no_interval():
    assert with_interval([np.array([0.5]), np.array([1.5])], mean_of) == (1.0, None)


def test_a_profile_is_the_share_of_runs_above_each_score_each_task_weighing_the_same():
    found = profiles({"a": {"pole": runs(120.0), "car": runs(-200.0, -150.0, -150.0, -150.0)}}, LEVELS)["a"]
    where = int(np.searchsorted(found.at, 0.4))
    assert found.shares[where] == pytest.approx((1.0 + 0.75) / 2)
    assert found.shares[0] <= 1.0
    assert found.shares[-1] == 0.0
    assert (np.diff(found.shares) <= 0).all()
    assert ((found.low <= found.shares + 1e-12) & (found.shares <= found.high + 1e-12)).all()


def test_the_profiles_data_is_a_line_for_each_algorithm_and_score():
    found = profiles(RESULTS, LEVELS)
    lines = profile_rows(found).splitlines()
    assert lines[0] == "algorithm,normalised_score,share_above,low,high"
    assert len(lines) == 1 + 2 * len(found["ppo"].at)


def test_the_table_tells_normalised_scores_by_task_and_over_all_with_intervals():
    table = suite_table(RESULTS, LEVELS)
    assert table.head == ("algorithm", "pole", "car", "IQM", "median", "mean", "gap", "failed")
    ppo, dqn = table.rows
    assert ppo[:3] == ("ppo", "0.750", "0.250")
    assert ppo[3].startswith("0.500 [")
    assert dqn[-1] == "1 of 4"
    assert level_table(LEVELS).rows[1] == ("car", "-200", "-100", "measured")
    assert return_table(RESULTS, LEVELS).rows[1] == ("pole", "dqn", "20", "20, failed", "killed")


def test_a_run_is_judged_by_its_curve_and_one_that_was_killed_by_nothing(tmp_path):
    one = outcome(write_run(tmp_path, story(seed=1, solved_at=None, tested=False)))
    assert result(one, "final") == Result(1, 60.0)
    assert result(one, "area").value < 60.0
    assert result(failure("is", 2, "killed by SIGKILL", 1.0), "final") == Result(2, None, "killed by SIGKILL")
    none = outcome(write_run(tmp_path, story(seed=3, solved_at=None, tested=False, episodes=0)))
    assert result(none, "final").reason == "no episode ended in 0 steps"
