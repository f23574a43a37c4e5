"""How a policy behaves, against values counted by hand."""

import numpy as np
import pytest

from mlxe_async.analysis.behaviour import Edge, Switching, edge, switching


def test_switches_are_counted_within_episodes_and_not_from_one_to_the_next():
    found = switching([[0, 0, 1, 1, 1, 0], [1, 1], [2]])
    # Pairs 5 + 1 + 0; changes at the third and at the sixth step of the first episode.
    assert found == Switching(episodes=3, steps=9, pairs=6, changes=2)
    assert found.rate == pytest.approx(2 / 6)
    # Runs 2, 3, 1, then 2, then 1.
    assert found.run_length == pytest.approx((2 + 3 + 1 + 2 + 1) / 5)
    assert found.mean_squared_change is None


def test_actions_of_several_entries_change_once_where_any_entry_does():
    found = switching([[[0, 1], [0, 1], [1, 0], [1, 1]]])
    assert (found.pairs, found.changes, found.run_length) == (3, 2, 4 / 3)


def test_continuous_actions_have_a_mean_squared_change_of_their_entries():
    found = switching([[[0.0, 0.0], [1.0, 0.0], [1.0, -2.0]], [[5.0, 5.0]]], continuous=True)
    # (1 + 0) / 2, then (0 + 4) / 2, over two pairs.
    assert found.mean_squared_change == pytest.approx((0.5 + 2.0) / 2)
    assert found.rate == 1.0
    assert switching([[1.0, 1.5]], continuous=True).mean_squared_change == 0.25
    # Small unsigned types do not wrap around.
    assert switching([np.array([3, 1], np.uint8)], continuous=True).mean_squared_change == 4.0


def test_what_nobody_can_know_is_none():
    assert (switching([]).rate, switching([]).run_length) == (None, None)
    one = switching([[3], []], continuous=True)
    assert (one.episodes, one.rate, one.run_length, one.mean_squared_change) == (1, None, 1.0, None)


def test_a_row_says_all_figures_by_name():
    assert switching([[0, 1, 1]]).to_json() == {
        "episodes": 1,
        "steps": 3,
        "changes": 1,
        "switching_rate": 0.5,
        "mean_run_length": 1.5,
        "mean_squared_change": None,
    }


def test_what_are_no_actions_of_an_episode_is_refused():
    with pytest.raises(ValueError, match="got a single one"):
        switching([3])
    with pytest.raises(ValueError, match="got NaN"):
        switching([[0.0, np.nan]], continuous=True)


def test_the_edge_is_a_share_of_the_way_to_the_limit():
    found = edge([[0.0, 1.2, -2.4], [0.6]], limit=2.4)
    assert found == Edge(mean=pytest.approx((0 + 0.5 + 1 + 0.25) / 4), worst=1.0, worst_mean=pytest.approx(0.625))
    for episodes, limit in (([], 1.0), ([[]], 1.0), ([[0.0]], 0.0), ([[[0.0]]], 1.0), ([[np.nan]], 1.0)):
        with pytest.raises(ValueError, match="expected finite positions"):
            edge(episodes, limit)
