"""Draws without replacement inside a minibatch, for all minibatches of a plan at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

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
    """Deal updates * rows points, one in each of so many equal parts of a whole, to minibatches.

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
