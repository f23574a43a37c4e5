"""Plans of minibatches: rows are drawn and written down with their stamps; later new priorities are taken up from them.

A plan lies in shared memory, in one of a few slots that take turns. The keeper draws it, the learner gathers its
minibatches and leaves new priorities in it, and the keeper settles it. Rows are named by index and stamp, so that one
that was overwritten meanwhile gets no priority.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mlxe_async.memory.bookkeeping import ASKED, DRAWN, DRAWN_ROWS, OWED, PLANS, SETTLED, Bookkeeping
from mlxe_async.memory.priorities import Priorities
from mlxe_async.memory.shape import PLAN_SLOTS, ReplayShape
from mlxe_async.rows import Array

_PATIENCE = 8


def draw_evenly(rng: np.random.Generator, count: int, updates: int, rows: int) -> Array:
    """Positions (updates, rows) below `count`: any `rows` different ones as likely as any others."""
    if count < 8 * rows:
        return np.stack([rng.choice(count, rows, replace=False, shuffle=False) for _ in range(updates)])
    # Short numbers are drawn, sorted and compared in half the time.
    dtype = np.uint32 if count <= 1 << 32 else np.uint64
    first = rng.integers(0, count, (updates, rows), dtype=dtype)
    drawn, _ = _different(first, lambda n: rng.integers(0, count, n, dtype=dtype), None)
    return drawn.astype(np.int64)


def spread(rng: np.random.Generator, updates: int, rows: int) -> Array:
    """Deal updates * rows points, one in each of as many equal parts of a whole, to minibatches.

    Each minibatch gets one point of each of `rows` equal parts, any of the points there with the same probability and
    independently of what it gets of the others; which minibatches get neighbours differs from part to part.

    Returns:
        Which points (updates, rows) each gets.
    """
    steps = np.arange(1, updates + 1, dtype=np.uint32)
    steps = steps[np.gcd(steps, np.uint32(updates)) == 1]
    step = steps[rng.integers(0, len(steps), rows)]
    place = np.arange(updates, dtype=np.uint32)[:, None] * step
    place += rng.integers(0, updates, rows, dtype=np.uint32)
    place -= place // np.uint32(updates) * np.uint32(updates)
    return np.asarray(place + np.arange(rows) * updates)


def draw_shares(rng: np.random.Generator, share: Array, updates: int, rows: int) -> Array:
    """Positions (updates, rows): one after the other, each in proportion to what `share` (N,), all positive, leaves.

    Drawing with replacement until enough different ones came is the same; where that takes long, because few have
    nearly all, the rest is drawn at once (`pick`).
    """
    running = np.cumsum(share)
    below = np.nextafter(running[-1], 0)

    def more(n: int) -> Array:
        return np.asarray(running.searchsorted(np.minimum(rng.random(n) * running[-1], below), side="right"))

    drawn, again = _different(more(updates * rows).reshape(updates, rows), more, _PATIENCE)
    for k in np.flatnonzero(again.any(axis=1)):
        known = drawn[k][~again[k]]
        rest = share.copy()
        rest[known] = 0
        drawn[k] = np.concatenate((known, pick(rng, rest, rows - len(known))))
    return drawn


def pick(rng: np.random.Generator, share: Array, rows: int) -> Array:
    """Draw `rows` different indices one after the other, each in proportion to what `share` (N,) leaves.

    All at once: the smallest of independent exponential keys with these rates (Efraimidis and Spirakis 2006).
    """
    with np.errstate(divide="ignore"):
        keys = rng.standard_exponential(len(share)) / share
    picked: Array = np.argpartition(keys, rows - 1)[:rows]
    return picked


def _different(drawn: Array, more: Callable[[int], Array], patience: int | None) -> tuple[Array, Array]:
    """Draw anew what came before in its minibatch (K, M), until nothing did or patience ends.

    Returns:
        The draws, in rising order inside each minibatch, and where there is still one that came before.
    """
    drawn.sort(axis=1)
    again = np.zeros(drawn.shape, bool)
    np.equal(drawn[:, 1:], drawn[:, :-1], out=again[:, 1:])
    while again.any() and patience != 0:
        patience = None if patience is None else patience - 1
        some = np.flatnonzero(again.any(axis=1))
        part, doubled = drawn[some], again[some]
        part[doubled] = more(int(doubled.sum()))
        part.sort(axis=1)
        drawn[some] = part
        doubled[:, 1:] = part[:, 1:] == part[:, :-1]
        again[some] = doubled
    return drawn, again


class Sampler:
    """Draws plans and settles them.

    Args:
        shape: the memory's sizes.
        stamps: the stamps of the ring's rows (capacity,).
        plans: the columns of each of the plans.
        books: the memory's counters, committed here after each draw.
        priorities: of the ring's rows.
    """

    def __init__(
        self,
        shape: ReplayShape,
        stamps: Array,
        plans: Sequence[dict[str, Array]],
        books: Bookkeeping,
        priorities: Priorities,
    ) -> None:
        self._most_rows, self._stamps, self._plans = shape.batch_rows, stamps, plans
        self._books, self._priorities = books, priorities

    def next_slot(self, lane: int | None) -> int:
        """The slot of the plan that is drawn next: that of a lane, or the one whose turn it is."""
        return int(self._books.whole[PLANS]) % PLAN_SLOTS if lane is None else lane

    def drawn_for(self, call: int, lane: int | None) -> dict[str, Any] | None:
        """The address of the plan that was drawn last, if it was for this call; see `ReplayMemory.drawn_for`."""
        whole = self._books.whole
        if not call or int(whole[ASKED]) != call:
            return None
        number = int(whole[PLANS]) - 1
        drawn, rows = int(whole[DRAWN]), int(whole[DRAWN_ROWS])
        slot = number % PLAN_SLOTS if lane is None else lane
        return {"slot": slot, "updates": drawn, "rows": rows, "number": number}

    def draw(
        self,
        seed: int,
        updates: int,
        batch_rows: int,
        exponent: float,
        beta: float,
        share: Array | None,
        call: int,
        lane: int | None,
        *,
        is_local: bool,
    ) -> dict[str, Any]:
        """Write a plan and return its address; see `ReplayMemory.draw`."""
        books = self._books
        number, held, slot = int(books.whole[PLANS]), books.live_rows, self.next_slot(lane)
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, number])))
        weights: Array | float = 1.0
        if share is not None and share.shape != (held,):
            raise ValueError(f"drawing: expected probabilities of {held} rows, got an array of {share.shape}")
        first = 0
        if is_local and lane is not None:
            first, stop = books.positions_of(lane)
            held = stop - first
            if share is not None:
                share = share[first:stop]
        rows = min(batch_rows, held, self._most_rows)
        if not rows or not updates:
            index: Array = np.zeros((0, rows), np.int64)
        elif share is not None:
            positions = draw_shares(rng, share, updates, rows)
            index = books.places(first + positions.ravel()).reshape(positions.shape)
            weights = _importance(held * share[positions], beta)
        elif exponent > 0:
            index, weights = self._draw_by_priorities(rng, updates, rows, exponent, beta)
        else:
            positions = draw_evenly(rng, held, updates, rows)
            index = books.places(first + positions.ravel()).reshape(positions.shape)
        drawn, plan = len(index), self._plans[slot]
        plan["index"][:drawn, :rows] = index
        plan["stamp"][:drawn, :rows] = self._stamps.take(index, mode="clip")
        plan["weight"][:drawn, :rows] = weights
        plan["priority"][:drawn, :rows] = -1
        books.whole[PLANS] += 1
        books.whole[OWED] -= min(drawn, int(books.whole[OWED]))
        books.whole[[ASKED, DRAWN, DRAWN_ROWS]] = call, drawn, rows
        books.store()
        return {"slot": slot, "updates": drawn, "rows": rows, "number": number}

    def _draw_by_priorities(
        self, rng: np.random.Generator, updates: int, rows: int, exponent: float, beta: float
    ) -> tuple[Array, Array]:
        """Indices and importance weights (K, M), none (0, M) where no row has any priority."""
        offsets = rng.random(updates * rows)
        route = spread(rng, updates, rows)
        index, share = self._priorities.draw(offsets, exponent)
        if not len(index):
            return np.zeros((0, rows), np.int64), np.ones((0, rows))
        return index.take(route, mode="clip"), _importance(share.take(route, mode="clip"), beta)

    def note_priorities(self, plan: Mapping[str, Any], k: int, positions: Array, priorities: Array) -> None:
        """Leave new priorities (M,) for the k-th minibatch; see `ReplayMemory.note_priorities`."""
        self._plans[plan["slot"]]["priority"][k, positions] = priorities

    def settle(self, plan: Mapping[str, Any]) -> int:
        """Take up the priorities a learner left in a plan, for rows still in place. Returns how many were too late.

        A successor settles the plan again that its predecessor died with; the largest priority falls once for it.
        """
        slot, drawn, rows = self._plans[plan["slot"]], plan["updates"], plan["rows"]
        new = slot["priority"][:drawn, :rows].ravel()
        given = (new >= 0) & (new < np.inf)
        if not given.any():
            return 0
        index, stamp = slot["index"][:drawn, :rows].ravel(), slot["stamp"][:drawn, :rows].ravel()
        same = self._stamps.take(index, mode="clip") == stamp
        same &= given
        if not same.all():
            index, new = index[same], new[same]
        is_known = plan["number"] < int(self._books.whole[SETTLED])
        self._books.whole[SETTLED] = plan["number"] + 1
        if len(index):
            self._priorities.update(index, new, falls=not is_known)
        self._books.store()
        return int(given.sum()) - len(index)


def _importance(shares: Array, beta: float) -> Array:
    """(N P)^-beta over the largest of each minibatch (K, M), of N P (K, M)."""
    weights = np.power(shares, -beta)
    weights /= weights.max(axis=1, keepdims=True)
    return np.asarray(weights)
