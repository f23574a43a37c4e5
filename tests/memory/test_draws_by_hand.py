"""Draws equal those of loops over sets and single numbers: records and replays count on what a seed draws."""

import math

import numpy as np
import pytest

from mlxe_async.memory import sampling

PATIENCE = 8


def generator(seed=5):
    return np.random.default_rng(seed)


def until_different(drawn, more, patience):
    """Minibatches as sets, and how many each still lacks when patience has ended."""
    size = len(drawn[0])
    sets = [set(one) for one in drawn]
    while (lacking := [size - len(one) for one in sets]) and any(lacking) and patience != 0:
        new = iter(more(sum(lacking)))
        for one, count in zip(sets, lacking, strict=True):
            one.update(next(new) for _ in range(count))
        patience -= 1
    return sets, lacking


def evenly(rng, count, updates, rows):
    if count < 8 * rows:
        return [set(rng.choice(count, rows, replace=False, shuffle=False).tolist()) for _ in range(updates)]
    dtype = np.uint32 if count <= 2**32 else np.uint64

    def more(n):
        return rng.integers(0, count, n, dtype=dtype).tolist()

    first = more(updates * rows)
    return until_different([first[k * rows : (k + 1) * rows] for k in range(updates)], more, math.inf)[0]


SIZES = [(1, 1), (8, 1), (9, 1), (10, 2), (31, 4), (32, 4), (33, 4), (160, 20), (2**32, 8), (2**32 + 1, 8), (2**40, 8)]


@pytest.mark.parametrize(("count", "rows"), SIZES)
def test_even_draws_are_those_of_a_loop_and_leave_the_generator_where_it_does(count, rows):
    ours, loops = generator(), generator()
    for updates in (1, 5, 64):
        drawn = sampling.draw_evenly(ours, count, updates, rows)
        assert drawn.shape == (updates, rows)
        assert [set(one) for one in drawn.tolist()] == evenly(loops, count, updates, rows)
    assert ours.random() == loops.random()


def by_shares(rng, share, updates, rows):
    running = np.cumsum(share)

    def more(n):
        points = rng.random(n) * running[-1]
        return [int(np.flatnonzero(running > point)[0]) for point in points]

    first = more(updates * rows)
    sets, lacking = until_different([first[k * rows : (k + 1) * rows] for k in range(updates)], more, PATIENCE)
    for one, count in zip(sets, lacking, strict=True):
        if count:
            keys = rng.standard_exponential(len(share))
            left = [k for k in range(len(share)) if k not in one]
            one.update(sorted(left, key=lambda k: keys[k] / share[k])[:count])
    return sets, lacking


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("steepness", "patience_ends"), [(0.0, False), (12.0, True)])
def test_draws_by_shares_are_those_of_a_loop_also_where_patience_ends(seed, steepness, patience_ends):
    share = np.exp(-steepness * np.arange(40) / 10)
    share *= 0.7 + seed  # what is given need not add up to 1
    given = share.copy()
    ours, loops = generator(seed), generator(seed)
    drawn = sampling.draw_shares(ours, share, 7, 12)
    wanted, lacking = by_shares(loops, share, 7, 12)
    assert [set(one) for one in drawn.tolist()] == wanted
    assert {len(one) for one in wanted} == {12}
    assert ours.random() == loops.random()
    assert any(lacking) == patience_ends
    np.testing.assert_array_equal(share, given)


class Given:
    """A generator whose numbers are given."""

    def __init__(self, *points):
        self.points = list(points)

    def random(self, n):
        taken, self.points = self.points[:n], self.points[n:]
        return np.array(taken)


def test_a_point_between_two_rows_is_the_seconds_and_one_at_the_end_the_lasts():
    share = np.array([0.25, 0.25, 0.5])
    for point, row in ((0.0, 0), (0.25, 1), (0.5, 2), (0.75, 2), (1.0, 2)):
        assert sampling.draw_shares(Given(point), share, 1, 1).tolist() == [[row]]


@pytest.mark.parametrize("rows", [1, 2, 3, 300, 1500, 2999, 3000])
def test_picked_are_the_rows_with_the_smallest_keys(rows):
    for seed in range(20):
        share = generator(seed).random(3000) + 0.01
        keys = generator(seed + 1).standard_exponential(3000) / share
        assert set(sampling.pick(generator(seed + 1), share, rows).tolist()) == set(np.argsort(keys)[:rows].tolist())


@pytest.mark.parametrize("updates", [1, 2, 3, 12, 35, 64])
def test_points_are_dealt_as_a_loop_deals_them(updates):
    rows = 40
    rng = generator()
    strides = [step for step in range(1, updates + 1) if math.gcd(step, updates) == 1]
    stride = [strides[k] for k in rng.integers(0, len(strides), rows)]
    start = rng.integers(0, updates, rows, dtype=np.uint32).tolist()
    wanted = [[j * updates + (start[j] + k * stride[j]) % updates for j in range(rows)] for k in range(updates)]
    assert sampling.spread(generator(), updates, rows).tolist() == wanted
