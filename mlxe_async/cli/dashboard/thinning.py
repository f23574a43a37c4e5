"""Which lines of a log a page decodes: of thousands of episodes a second some stand for all.

What is left out is counted for each executor. An episode with the highest return so far is never left out.
"""

from __future__ import annotations

import math
import re
from collections import Counter

MANY, KEPT = 300, 30
"""Ends of episodes in one piece of a log from which on some are left out, and about how many stay."""
_EPISODE = re.compile(rb'"event": "episode_end", "role": "executor", "idx": (\d+), .*?"episode_return": (-?[\d.e+-]+),')


class Thinning:
    """Leaves out ends of episodes where there are many in a piece of a log."""

    def __init__(self) -> None:
        self.left_out: Counter[int] = Counter()
        "Episodes that were left out of the last piece, by executor."
        self._highest = -math.inf

    def __call__(self, lines: list[bytes]) -> list[bytes]:
        """The lines to decode, in their order."""
        self.left_out.clear()
        found = [_EPISODE.search(line, 0, 400) for line in lines]
        ends = sum(one is not None for one in found)
        if ends < MANY:
            return lines
        every, number, kept = ends // KEPT, 0, list[bytes]()
        for line, one in zip(lines, found, strict=True):
            if one is not None:
                number += 1
                value = float(one[2])
                if value <= self._highest and number % every and number < ends:
                    self.left_out[int(one[1])] += 1
                    continue
                self._highest = max(self._highest, value)
            kept.append(line)
        return kept
