"""Draws by priorities, by given probabilities and evenly, in numbers: which rows, which weights, what is owed."""

import itertools

import numpy as np
import pytest
from test_replay import block, derive, episode, make

from mlxe_async.memory import priorities, sum_tree
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.sum_tree import SumTree


def memory_of(given, **sizes):
    """A memory whose rows 0, 1, ... have these priorities, left by an update."""
    memory, _ = make(**{"batch_rows": 8} | sizes)
    memory.ingest(0, 0, 1, block(episode(0, len(given))), derive, drop_open=False)
    plan = memory.draw(0, 1, len(given))
    places = memory.gather(plan, 0)[0]["value"].astype(int)
    memory.note_priorities(plan, 0, np.arange(len(given)), np.array(given)[places])
    assert memory.settle(plan) == 0
    assert memory._ring["priority"][memory.live()].tolist() == list(given)
    return memory


def counts(memory, draws=200, rows=4, **how):
    """How often each row is drawn."""
    result = np.zeros(len(memory))
    for _ in range(draws):
        plan = memory.draw(3, 1, rows, **how)
        result += np.bincount(memory.gather(plan, 0)[0]["value"].astype(int), minlength=len(memory))
    return result / draws / rows


def test_weights_are_shares_of_an_even_draw_for_each_exponent_in_turn():
    memory = memory_of([1.0, 0.5, 2.0, 4.0])
    for exponent, powered in ((1.0, [1, 0.5, 2, 4]), (2.0, [1, 0.25, 4, 16]), (0.5, [1, 0.5**0.5, 2**0.5, 2])):
        share = np.array(powered) / sum(powered)
        index, found = memory._priorities.draw(np.full(8, 0.5), exponent)
        np.testing.assert_allclose(found, 4 * share[index])
        assert counts(memory, exponent=exponent) == pytest.approx(share, abs=0.06)


def test_sums_are_made_once_and_kept_up_from_then_on(monkeypatch):
    made = []
    monkeypatch.setattr(SumTree, "add_up", lambda tree, old=SumTree.add_up: made.append(1) or old(tree))
    memory = memory_of([1.0, 1.0, 1.0, 1.0])
    for number in range(3):
        memory.draw(number, 1, 4, exponent=1.0)
    assert len(made) == 1


def test_large_memories_are_summed_in_pieces(monkeypatch):
    monkeypatch.setattr(priorities, "_AT_ONCE", 2)
    memory = memory_of([1.0, 2.0, 3.0, 4.0, 5.0])
    index, share = memory._priorities.draw(np.full(15, 0.5), 1.0)
    assert np.bincount(index).tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(share, 5 * (index + 1) / 15)


def test_of_rows_without_any_priority_none_is_drawn():
    memory = memory_of([0.0, 0.0, 0.0])
    assert memory.draw(0, 4, 2, exponent=1.0, beta=1.0)["updates"] == 0
    assert memory.draw(0, 4, 2, exponent=0.0)["updates"] == 4
    index, share = memory._priorities.draw(np.full(4, 0.5), 1.0)
    assert len(index) == len(share) == 0


@pytest.mark.parametrize("how", [{}, {"exponent": 1.0}])
def test_an_empty_memory_and_no_updates_give_empty_plans(how):
    empty, _ = make()
    assert empty.draw(0, 3, 2, **how) == {"slot": 0, "updates": 0, "rows": 0, "number": 0}
    plan = memory_of([1.0, 1.0]).draw(0, 0, 2, **how)
    assert (plan["updates"], plan["rows"]) == (0, 2)


def test_even_draws_weigh_one_and_ask_for_no_priority():
    memory = memory_of([0.0, 3.0, 0.5, 0.0])
    batch, _ = memory.gather(memory.draw(0, 1, 4, exponent=0.0, beta=1.0), 0)
    assert sorted(batch["value"].tolist()) == [0, 1, 2, 3]
    assert batch["weight"].tolist() == [1.0] * 4


def test_given_probabilities_are_corrected_by_the_exponent_of_the_weights():
    memory = memory_of([1.0] * 4)
    share = np.array([0.1, 0.2, 0.3, 0.4])
    for beta in (0.0, 0.5, 1.0):
        batch, _ = memory.gather(memory.draw(0, 1, 4, share=share, beta=beta), 0)
        wanted = (4 * share[batch["value"].astype(int)]) ** -beta
        np.testing.assert_allclose(batch["weight"], wanted / wanted.max(), rtol=1e-6)
    with pytest.raises(ValueError, match="probabilities of 4 rows"):
        memory.draw(0, 1, 4, share=share[:3])


def test_the_exponent_of_draws_is_not_that_of_weights():
    memory = memory_of([1.0, 1.0, 1.0, 3.0])
    assert counts(memory, rows=2, exponent=2.0, beta=0.0)[3] == pytest.approx(9 / 12, abs=0.06)
    weights = memory.gather(memory.draw(0, 1, 8, exponent=2.0, beta=0.0), 0)[0]["weight"]
    assert set(weights.tolist()) == {1.0}


def test_a_plan_without_new_priorities_changes_none_also_in_a_slot_that_was_used():
    memory = memory_of([0.25, 0.5])
    for number in range(5):
        plan = memory.draw(number, 2, 2)
        assert memory.settle(plan) == 0
        assert memory._ring["priority"][memory.live()].tolist() == [0.25, 0.5]
        memory.note_priorities(plan, 0, np.arange(2), np.array([9.0, 9.0]))  # left behind, never settled


def test_new_priorities_are_drawn_by_at_once_and_new_rows_have_the_largest_there_was():
    memory = memory_of([0.5, 0.5])
    memory.draw(0, 1, 2, exponent=1.0)  # from here on there are sums to keep up
    plan = memory.draw(1, 1, 2)
    memory.note_priorities(plan, 0, np.arange(2), np.array([3.0, 6.0]))
    memory.settle(plan)
    assert memory._priorities.largest == 6.0
    memory.ingest(0, 1, 1, block(episode(1, 1)), derive, drop_open=False)
    assert memory._ring["priority"][memory.live()].tolist()[-1] == 6.0
    index, share = memory._priorities.draw(np.full(15, 0.5), 1.0)
    assert sorted(np.bincount(index, minlength=3).tolist()) == [3, 6, 6]
    assert sorted({round(float(one), 6) for one in share}) == [0.6, 1.2]
    memory._priorities.reload()
    assert memory._priorities.largest == 6.0


def test_what_was_settled_is_committed_at_once_and_falls_once_only():
    memory = memory_of([8.0, 4.0], largest_decay=0.5)
    plan = memory.draw(1, 1, 2)
    memory.note_priorities(plan, 0, np.arange(2), np.array([1.0, 3.0]))
    memory.settle(plan)
    successor = ReplayMemory(memory.shape, memory._buffer)
    assert successor._priorities.largest == 4.0
    successor.settle(plan)
    assert successor._priorities.largest == 4.0


def test_the_largest_priority_falls_where_it_may_down_to_what_the_last_update_left():
    memory = memory_of([8.0, 4.0], largest_decay=0.5)
    assert memory._priorities.largest == 8.0
    for given, expected in (
        ((1.0, 3.0), 4.0),
        ((0.2, 0.5), 2.0),
        ((0.1, 0.1), 1.0),
        ((0.1, 0.3), 0.5),
        ((5.0, 0.1), 5.0),
    ):
        plan = memory.draw(1, 1, 2)
        memory.note_priorities(plan, 0, np.arange(2), np.array(given))
        memory.settle(plan)
        assert memory._priorities.largest == expected
    memory.ingest(0, 1, 1, block(episode(1, 1)), derive, drop_open=False)
    assert memory._ring["priority"][memory.live()].tolist()[-1] == 5.0
    fresh, _ = make(largest_decay=0.5)
    assert fresh._priorities.largest == 1.0  # before any update


def test_the_largest_priority_is_at_least_one():
    memory = memory_of([0.25, 0.125])
    assert memory._priorities.largest == 1.0


def test_rows_whose_frames_are_lost_get_no_priority():
    memory = memory_of([0.25, 0.5, 0.5, 0.75])
    memory._priorities.insert(np.array([0, 1, 2]), slice(0, 3), 1)
    assert memory._ring["priority"][:4].tolist() == [0.0, 1.0, 1.0, 0.75]


def test_rows_that_leave_are_not_drawn_any_more():
    memory = memory_of([1.0, 1.0, 1.0, 1.0])
    memory.draw(0, 1, 4, exponent=1.0)
    memory._priorities.remove(np.array([1, 2]))
    assert set(memory._priorities.draw(np.full(8, 0.5), 1.0)[0].tolist()) == {0, 3}


def test_a_priority_that_was_overwritten_is_mended_in_the_sums_too():
    memory = memory_of([0.5, 0.5, 0.5, 0.5])
    memory._priorities.draw(np.full(4, 0.5), 1.0)
    memory._ring["priority"][0] = np.nan
    memory._priorities.draw(np.full(4, 0.5), 1.0)  # meets the row, and gives it the largest, 1
    assert memory.mended == 1
    index, share = memory._priorities.draw(np.full(5, 0.5), 1.0)
    assert index.tolist() == [0, 0, 1, 2, 3]
    np.testing.assert_allclose(share, [1.6, 1.6, 0.8, 0.8, 0.8])


def test_a_priority_of_zero_is_one_and_is_not_mended():
    memory = memory_of([0.0, 1.0])
    memory._priorities.draw(np.full(4, 0.5), 1.0)
    assert memory.mended == 0


def test_what_is_drawn_is_owed_no_more_and_nothing_is_owed_below_zero():
    memory = memory_of([1.0, 1.0])
    memory.begin_phase(5)
    assert memory.owed == 5
    memory.draw(0, 2, 2)
    assert memory.owed == 3
    memory.draw(0, 4, 2)
    assert memory.owed == 0


def test_late_priorities_are_counted_and_the_others_taken_up():
    memory = memory_of([1.0, 1.0, 1.0], stream_rows=3, keep_rows=3, block_rows=3)
    plan = memory.draw(0, 1, 3)
    values = memory.gather(plan, 0)[0]["value"].tolist()
    memory.ingest(0, 1, 1, block(episode(1, 1)), derive, drop_open=False)
    given = np.array([5.0, 6.0, 7.0])
    given[values.index(2)] = np.nan
    memory.note_priorities(plan, 0, np.arange(3), given)
    assert memory.settle(plan) == 1  # row 0 is gone; row 2 was given none
    left = dict(
        zip(memory._ring["value"][memory.live()].tolist(), memory._ring["priority"][memory.live()], strict=True)
    )
    assert left[1] == given[values.index(1)]
    assert left[2] == left[100] == 1.0


# -- the sum tree --


def tree_of(weights):
    tree = SumTree(bytearray(SumTree.nbytes(len(weights))), 0, len(weights))
    tree.leaves[:] = weights
    tree.add_up()
    return tree


@pytest.mark.parametrize("capacity", [1, 4, 1024, 1025, 4096, 4097, 5000, 20_000])
def test_a_tree_has_four_sons_below_each_sum_and_a_small_top(capacity):
    tree = tree_of(np.ones(capacity))
    sizes = [len(level) for level in tree._levels]
    assert sizes[-1] <= 1024
    assert sizes[0] >= capacity > (sizes[0] - 4 ** (len(sizes) - 1))
    assert len(sizes) == 1 or capacity > 4 ** (len(sizes) - 2) * 1024
    assert all(below == 4 * above for below, above in itertools.pairwise(sizes))
    assert SumTree.nbytes(capacity) == 8 * sum(sizes)
    assert tree.total == capacity
    for level in range(1, len(sizes)):
        np.testing.assert_array_equal(tree._levels[level], tree._levels[level - 1].reshape(-1, 4).sum(1))


def test_a_tree_lies_where_it_is_told():
    buffer = bytearray(16 + SumTree.nbytes(3))
    tree = SumTree(buffer, 16, 3)
    tree.leaves[:] = [1.0, 2.0, 3.0]
    tree.add_up()
    assert np.frombuffer(buffer, np.float64, 3, 16).tolist() == [1.0, 2.0, 3.0]
    assert not any(buffer[:16])
    assert tree.leaves.shape == (3,)


@pytest.mark.parametrize("number", [1, 3, 50, 900, 3000])
def test_few_and_many_changes_leave_the_sums_of_the_weights(number):
    rng = np.random.default_rng(number)
    plain = rng.random(9000)
    tree = tree_of(plain)
    for _ in range(3):
        index, weight = rng.integers(0, 9000, number), rng.random(number)
        tree.set(index, weight)
        plain[index] = weight
        again = tree_of(plain)
        assert all((one == other).all() for one, other in zip(tree._levels, again._levels, strict=True))
    tree.set(np.array([3, 8999]), 0.0)
    plain[[3, 8999]] = 0
    assert tree.total == tree_of(plain).total


def test_what_lies_behind_the_last_row_counts_nothing():
    buffer = bytearray(np.full(SumTree.nbytes(5000) // 8, 7.0).tobytes())
    tree = SumTree(buffer, 0, 5000)
    tree.leaves[:] = 1.0
    tree.add_up()
    assert tree.total == 5000


def test_points_at_borders_belong_to_the_row_that_begins_there():
    tree = tree_of(np.array([1.0, 2.0, 1.0, 4.0]))
    below = np.nextafter(1, 0)
    index, weight = tree.draw_spread(np.array([0.0, 0.0, 0.0, 0.999, 0.5, 0.0, 0.0, 0.0]))
    assert index.tolist() == [0, 1, 1, 2, 3, 3, 3, 3]
    assert weight.tolist() == [1, 2, 2, 1, 4, 4, 4, 4]
    index, weight = tree.draw_spread(np.array([0.992, 0.0, 0.992, 0.0, 0.0, below, below, below]))
    assert index.tolist() == [0, 1, 1, 2, 3, 3, 3, 3]
    assert weight.tolist() == [1, 2, 2, 1, 4, 4, 4, 4]


@pytest.mark.parametrize("capacity", [5, 300, 5000])
def test_points_of_equal_parts_are_found_as_by_a_plain_search(capacity, monkeypatch):
    monkeypatch.setattr(sum_tree, "TOGETHER", 64)
    rng = np.random.default_rng(capacity)
    weights = np.round(rng.random(capacity) * 8) / 8  # sums without rounding
    tree, running = tree_of(weights), np.cumsum(weights)
    for number in (1, 2, 7, 256, 1100, 4200):
        offsets = rng.random(number)
        index, weight = tree.draw_spread(offsets)
        slow = running.searchsorted((np.arange(number) + offsets) * (running[-1] / number), side="right")
        assert (index == slow).all()
        assert (weight == weights[slow]).all()


def test_beside_a_row_without_weight_the_nearest_one_with_weight_is_found():
    weights = np.zeros(40)
    weights[[3, 17, 30]] = 1.0
    tree = tree_of(weights)
    assert [tree._nearest(k) for k in (0, 3, 9, 11, 17, 23, 24, 39)] == [3, 3, 3, 17, 17, 17, 30, 30]
    weights = np.zeros(9000)
    weights[[5, 8000]] = 1.0
    tree = tree_of(weights)  # with sixteen rows below each of the top's sums
    assert tree._nearest(0) == 5
    assert tree._nearest(8010) == 8000
    assert tree._nearest(6000) == 8000


def test_beside_a_row_without_weight_one_below_the_same_sum_comes_first():
    weights = np.zeros(9000)
    weights[[0, 16, 47]] = 1.0  # sixteen rows lie below each of the top's sums
    tree = tree_of(weights)
    assert [tree._nearest(k) for k in (15, 17, 33, 48)] == [0, 16, 47, 47]


def test_points_that_rounding_leads_to_rows_without_weight_go_to_the_nearest_with_one():
    class Misled(SumTree):
        def _descend(self, level, node, rest):
            return np.array([0, 8010, 5])

    weights = np.zeros(9000)
    weights[5], weights[8000] = 2.0, 3.0
    tree = Misled(bytearray(SumTree.nbytes(9000)), 0, 9000)
    tree.leaves[:] = weights
    tree.add_up()
    index, weight = tree.draw_spread(np.full(3, 0.5))
    assert index.tolist() == [5, 8000, 5]
    assert weight.tolist() == [2.0, 3.0, 2.0]


def test_sums_made_in_pieces_are_those_made_at_once(monkeypatch):
    weights = np.random.default_rng(0).random(5000)
    whole = tree_of(weights)
    monkeypatch.setattr(sum_tree, "_AT_ONCE", 7)
    for one, other in zip(whole._levels, tree_of(weights)._levels, strict=True):
        np.testing.assert_array_equal(one, other)


def test_running_sums_never_fall_and_end_with_the_total():
    weights = 10.0 ** np.random.default_rng(0).uniform(-12, 3, 20_000)
    weights[3::4] = 0.0
    tree = tree_of(weights)
    assert tree.total == np.cumsum(tree._levels[-1])[-1]
    for most in (1024, 6000, 20_000):
        _, running = tree._running(most)
        assert (np.diff(running) >= 0).all()
        assert running[-1] == tree.total


def test_the_largest_priority_falls_once_for_a_plan_that_a_successor_settles_again():
    memory, _ = make(batch_rows=8, largest_decay=0.5)
    memory.ingest(0, 0, 1, block(episode(0, 2)), derive, drop_open=False)
    for priority, largest in ((8.0, 8.0), (1.0, 4.0), (1.0, 2.0)):
        plan = memory.draw(0, 1, 2)
        memory.note_priorities(plan, 0, np.arange(2), np.full(2, priority))
        for _ in range(3):
            memory.settle(plan)
            assert memory._priorities.largest == largest
