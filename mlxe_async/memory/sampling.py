"""Plans of minibatches: rows are drawn and written down with their stamps; later new priorities are taken up from them.

A plan lies in shared memory, in one of a few slots that take turns. The keeper draws it, the learner gathers its
minibatches and leaves new priorities in it, and the keeper settles it. Rows are named by index and stamp, so that one
that was overwritten meanwhile gets no priority.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlxe_async.memory.bookkeeping import ASKED, DRAWN, DRAWN_ROWS, OWED, PLANS, Bookkeeping
from mlxe_async.memory.drawing import draw_evenly, draw_shares, spread
from mlxe_async.memory.priorities import Priorities
from mlxe_async.memory.shape import PLAN_SLOTS, ReplayShape
from mlxe_async.rows import Array


class Sampler:
    """Draws plans and settles them.

    Args:
        shape: the memory's sizes.
        stamps: the stamps of the ring's rows (capacity,).
        plans: the columns of each of the `PLAN_SLOTS` plans.
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

    def drawn_for(self, call: int) -> dict[str, Any] | None:
        """The address of the plan that was drawn last, if it was for this call; see `ReplayMemory.drawn_for`."""
        whole = self._books.whole
        if not call or int(whole[ASKED]) != call:
            return None
        number = int(whole[PLANS]) - 1
        drawn, rows = int(whole[DRAWN]), int(whole[DRAWN_ROWS])
        return {"slot": number % PLAN_SLOTS, "updates": drawn, "rows": rows, "number": number}

    def draw(
        self, seed: int, updates: int, batch_rows: int, exponent: float, beta: float, share: Array | None, call: int
    ) -> dict[str, Any]:
        """Write a plan and return its address; see `ReplayMemory.draw`."""
        books = self._books
        number, held = int(books.whole[PLANS]), books.live_rows
        slot = number % PLAN_SLOTS
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, number])))
        rows = min(batch_rows, held, self._most_rows)
        weights: Array | float = 1.0
        if share is not None and share.shape != (held,):
            raise ValueError(f"drawing: expected probabilities of {held} rows, got an array of {share.shape}")
        if not rows or not updates:
            index: Array = np.zeros((0, rows), np.int64)
        elif share is not None:
            positions = draw_shares(rng, share, updates, rows)
            index = books.places(positions.ravel()).reshape(positions.shape)
            weights = _importance(held * share[positions], beta)
        elif exponent > 0:
            index, weights = self._draw_by_priorities(rng, updates, rows, exponent, beta)
        else:
            positions = draw_evenly(rng, held, updates, rows)
            index = books.places(positions.ravel()).reshape(positions.shape)
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
        """Take up the priorities a learner left in a plan, for rows still in place. Returns how many were too late."""
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
        if len(index):
            self._priorities.update(index, new)
        return int(given.sum()) - len(index)


def _importance(shares: Array, beta: float) -> Array:
    """(N P)^-beta over the largest of each minibatch (K, M), of N P (K, M)."""
    weights = np.power(shares, -beta)
    weights /= weights.max(axis=1, keepdims=True)
    return np.asarray(weights)
