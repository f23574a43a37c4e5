"""The sum tree, the draws made by it, and the memory over them: frequencies, weights, and what must never come."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_replay import block, derive, episode, make

from mlxe_async.memory import gathering, sum_tree
from mlxe_async.memory.sampling import draw_evenly, draw_shares, spread
from mlxe_async.memory.sum_tree import SumTree


def tree_of(weights):
    tree = SumTree(bytearray(SumTree.nbytes(len(weights))), 0, len(weights))
    tree.leaves[:] = weights
    tree.add_up()
    return tree


@pytest.fixture
def low_top(monkeypatch):
    """Small trees with several levels, and pieces that end anywhere."""
    monkeypatch.setattr(sum_tree, "TOP", 3)
    monkeypatch.setattr(sum_tree, "TOGETHER", 7)


WEIGHTS = st.lists(st.sampled_from([0.0, 0.0, 1e-9, 0.1, 1.0, 3.0, 1e6]), min_size=1, max_size=70)


TREES = {"weights": WEIGHTS, "changes": st.lists(st.tuples(st.integers(0, 69), st.sampled_from([0.0, 1e-3, 2.0, 5e5])))}


def check_changes(weights, changes):
    tree, plain = tree_of(weights), np.array(weights)
    for start in range(0, len(changes), 3):  # several at once, the same row twice too
        some = [(i % len(plain), w) for i, w in changes[start : start + 3]]
        tree.set(np.array([i for i, _ in some]), np.array([w for _, w in some]))
        for i, w in some:
            plain[i] = w
    again = tree_of(plain)
    assert [level.tolist() for level in tree._levels] == [level.tolist() for level in again._levels]
    assert tree.total == pytest.approx(plain.sum(), rel=1e-12)
    if not plain.any():
        return
    index, weight, points = np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
    for number in (1, 7, 60, 500):  # more points begin at a larger level
        offsets = np.random.default_rng(number).choice([0.0, 0.5, np.nextafter(1, 0)], number)
        spread, its_weight = tree.draw_spread(offsets)
        assert (plain[spread] > 0).all()
        assert (its_weight == plain[spread]).all()
        index, weight = np.append(index, spread), np.append(weight, its_weight)
        points = np.append(points, (np.arange(number) + offsets) / number)
    assert (plain[index] > 0).all()
    assert (weight == plain[index]).all()
    slow = np.searchsorted(np.cumsum(plain), points * plain.sum(), side="right")
    for point, found, expected in zip(points, index, slow, strict=True):
        if found != expected:  # only where rounding decides between neighbours
            border = np.cumsum(plain)[min(found, expected)]
            assert point * plain.sum() == pytest.approx(border, rel=1e-9, abs=1e-9 * plain.sum())


def test_a_tree_that_was_changed_is_the_one_built_from_the_same_weights_and_finds_what_a_plain_search_finds(low_top):
    settings(max_examples=60)(given(**TREES)(check_changes))()


@pytest.mark.slow
def test_the_same_with_very_many_trees(low_top):
    settings(max_examples=5000)(given(**TREES)(check_changes))()


@pytest.mark.parametrize("capacity", [1, 4095, 4096, 4097, 10_007])
def test_rows_are_found_as_often_as_their_weights_say_whatever_the_capacity(capacity):
    weights = np.random.default_rng(capacity).choice([0.0, 1.0, 7.0], capacity, p=[0.3, 0.5, 0.2])
    weights[0] = 2.0
    # Points at equal distances find every row as often as its share says, give or take one.
    found, _ = tree_of(weights).draw_spread(np.full(200_000, 0.5))
    counts = np.bincount(found, minlength=capacity)
    assert np.abs(counts - 200_000 * weights / weights.sum()).max() < 1.0001


@given(count=st.integers(1, 40), rows=st.integers(1, 40), seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_even_draws_and_draws_by_shares_never_repeat_a_row_inside_a_minibatch(count, rows, seed):
    rng = np.random.default_rng(seed)
    rows = min(rows, count)
    share = rng.random(count) ** 20 + 1e-12
    for drawn in (draw_evenly(rng, count, 5, rows), draw_shares(rng, share / share.sum(), 5, rows)):
        assert drawn.shape == (5, rows)
        assert all(len(set(some)) == rows for some in drawn.tolist())
        assert drawn.min() >= 0
        assert drawn.max() < count


@pytest.mark.parametrize("updates", [1, 2, 6, 7, 64])
def test_points_are_dealt_to_minibatches_one_of_each_part_and_each_to_one(updates):
    rng, rows = np.random.default_rng(updates), 5
    counts, neighbours = np.zeros((updates, updates), int), 0
    for _ in range(400):
        dealt = spread(rng, updates, rows)
        assert sorted(dealt.ravel().tolist()) == list(range(updates * rows))
        assert (dealt // updates == np.arange(rows)).all()
        place = dealt % updates
        np.add.at(counts, (np.arange(updates)[:, None], place), 1)
        neighbours += int((np.abs(np.diff(place, axis=0)) == 1).all(axis=1).sum())
    expected = 400 * rows / updates
    assert np.abs(counts - expected).max() < 6 * np.sqrt(expected)
    # No two minibatches are given neighbours everywhere, where there are enough of them to differ.
    assert updates < 7 or neighbours < 400 * updates * 0.02


def test_even_draws_are_even():
    drawn = draw_evenly(np.random.default_rng(1), 81, 20_000, 10)
    counts = np.bincount(drawn.ravel(), minlength=81)
    assert counts == pytest.approx(np.full(81, 200_000 / 81), rel=0.08)


def test_draws_by_shares_take_one_after_the_other_from_what_is_left():
    share = np.array([0.5, 0.3, 0.2])
    drawn = draw_shares(np.random.default_rng(2), share, 20_000, 2)
    left_out = np.bincount(3 - drawn.sum(axis=1), minlength=3) / 20_000
    # P(0 is left out) = 0.3 * 0.2 / 0.7 + 0.2 * 0.3 / 0.8, and so on.
    assert left_out == pytest.approx([0.1607, 0.3250, 0.5143], abs=0.012)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=12),
    stream_rows=st.integers(5, 23),
    given_priorities=st.lists(st.sampled_from([0.0, 0.5, 2.0, 9.0, -1.0, np.inf, np.nan]), min_size=8, max_size=8),
)
@settings(max_examples=20)
def test_priorities_stay_with_their_rows_while_others_come_and_go(lengths, stream_rows, given_priorities):
    memory, buffer = make(stream_rows=stream_rows, keep_rows=5, block_rows=9, batch_rows=8)
    expected, plan, settled = {}, None, 1.0  # stamp -> priority
    for number, length in enumerate(lengths):
        memory.ingest(0, number, 1, block(episode(number, length)), derive, drop_open=False)
        stamps = memory._ring["stamp"][memory.live()]
        expected = {int(stamp): expected.get(int(stamp), settled) for stamp in stamps}
        if plan and plan["updates"]:  # late for what was overwritten meanwhile
            drawn = memory._gatherer.plans[plan["slot"]]["stamp"][0, : plan["rows"]].tolist()
            memory.note_priorities(plan, 0, np.arange(plan["rows"]), np.array(given_priorities[: plan["rows"]]))
            valid = [(s, p) for s, p in zip(drawn, given_priorities, strict=False) if 0 <= p < np.inf]
            assert memory.settle(plan) == sum(s not in expected for s, _ in valid)
            for stamp, priority in valid:
                if stamp in expected:
                    expected[stamp] = priority
                    settled = max(settled, priority)
        assert memory._ring["priority"][memory.live()].tolist() == [expected[int(s)] for s in stamps]
        plan = memory.draw(5, 1, 8, exponent=0.5, beta=1.0)
        if plan["updates"]:
            drawn = memory._gatherer.plans[plan["slot"]]["stamp"][0, : plan["rows"]].tolist()
            shares = np.array([expected[s] ** 0.5 for s in drawn])
            assert (shares > 0).all()
            assert memory.gather(plan, 0)[0]["weight"] == pytest.approx(shares.min() / shares, rel=1e-5)
        else:
            assert not any(expected.values())
    # A successor, who knows only what is shared, draws the same rows.
    successor = type(memory)(memory.shape, bytearray(buffer))
    ours, theirs = (
        (one.gather(one.draw(5, 1, 8, exponent=0.5), 0)[0] for one in (memory, successor))
        if any(expected.values())
        else ({"value": np.zeros(0)},) * 2
    )
    assert ours["value"].tolist() == theirs["value"].tolist()


def test_a_memory_without_room_for_a_tree_refuses_priorities():
    memory, _ = make()
    plain = type(memory)(
        plain_shape := type(memory.shape)(**{**memory.shape.to_json(), "prioritised": False}),
        bytearray(plain_shape.nbytes),
    )
    plain.ingest(0, 0, 1, block(episode(0, 3)), derive, drop_open=False)
    assert "tree" not in dict(plain_shape.parts())
    with pytest.raises(ValueError, match="made for them"):
        plain.draw(0, 1, 2, exponent=1.0)


def test_arrays_that_are_reused_hold_what_fresh_ones_hold(monkeypatch):
    memory, _ = make(stream_rows=16)
    # Two minibatches of two rows.
    monkeypatch.setattr(gathering, "GATHERED_TOGETHER", 2 * 2 * memory.shape.payload.words * 8)
    memory.ingest(0, 0, 1, block(episode(0, 6)), derive, drop_open=False)
    for _ in range(4):
        plan = memory.draw(0, 5, 2)
        for k in (0, 1, 2, 3, 4, 2, 4, 0):
            fresh, reused = memory.gather(plan, k), memory.gather(plan, k, reuse=True)
            assert reused[0].keys() == fresh[0].keys()
            for name, column in fresh[0].items():
                assert reused[0][name].tolist() == column.tolist()
            assert reused[1].tolist() == fresh[1].tolist()


def test_arrays_that_are_reused_leave_out_what_was_overwritten_before_they_were_filled():
    memory, _ = make(stream_rows=6, batch_rows=6)
    for number in range(2):
        memory.ingest(0, number, 1, block(episode(number, 3)), derive, drop_open=False)
    plan = memory.draw(1, 2, 6)
    memory.ingest(0, 2, 1, block(episode(2, 3)), derive, drop_open=False)
    for k in range(2):
        batch, positions = memory.gather(plan, k, reuse=True)
        assert sorted(batch["value"].tolist()) == [100, 101, 102]
        assert len(positions) == 3
