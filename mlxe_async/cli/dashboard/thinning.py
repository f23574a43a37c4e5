"""Choose the lines of a log that a page decodes: of thousands of episodes a second some stand for all.

What is left out is counted for each executor. An episode with the highest return so far is never left out.
"""

from __future__ import annotations

import math
import re
from collections import Counter

MANY, KEPT = 300, 10
"""Ends of episodes in one piece of a log from which on some are left out, and about how many stay."""
MOST_EXECUTORS = 64
ENDED = b'"event": "episode_end", "role": "executor", "idx": '
_EXECUTOR = re.compile(ENDED + rb"(\d{1,9}),")
_RETURN = re.compile(rb'"episode_return": (-?\d[\d.e+-]{0,40}),')


class Thinning:
    """Leaves out ends of episodes where there are many in a piece of a log."""

    def __init__(self) -> None:
        self._left_out: Counter[int] = Counter()
        self._highest = -math.inf

    def taken(self) -> Counter[int]:
        """Return the episodes that were left out since this was asked last, by executor."""
        found, self._left_out = self._left_out, Counter()
        return found

    def __call__(self, lines: list[bytes]) -> list[bytes]:
        """The lines to decode, in their order.

        A piece in which anything is not as runs write it is decoded as a whole.
        """
        whole = b"\n".join(lines)
        found = _RETURN.findall(whole)
        if len(found) < MANY:
            return lines
        ends = [*range(len(lines))]
        if len(found) != len(lines):
            ends = [place for place, line in enumerate(lines) if ENDED in line]
        try:
            returns = [*map(float, found)]
        except ValueError:
            return lines
        kept = {*range(0, len(ends), max(1, len(ends) // KEPT)), len(ends) - 1}
        if (highest := max(returns)) > self._highest and len(returns) == len(ends):
            kept.add(returns.index(highest))
        if (ours := _by_executor(whole, len(ends))) is None or len(returns) != len(ends):
            return lines
        self._highest = max(self._highest, highest)
        told = [_EXECUTOR.search(lines[ends[number]]) for number in kept]
        ours.subtract(int(one[1]) for one in told if one is not None)
        self._left_out.update({executor: count for executor, count in ours.items() if count})
        without = {place for number, place in enumerate(ends) if number not in kept}
        return [line for place, line in enumerate(lines) if place not in without]


def _by_executor(whole: bytes, count: int) -> Counter[int] | None:
    """Count the episodes that each executor ended; None where that does not add up to `count`."""
    found, executor = Counter[int](), 0
    while found.total() < count and executor < MOST_EXECUTORS:
        found[executor] = whole.count(b"%b%d," % (ENDED, executor))
        executor += 1
    return found if found.total() == count else None
