"""When a task counts as solved."""

from __future__ import annotations


class SolvedJudge:
    """Solved means: several tested versions in a row pass, counted at the first of them.

    One passing version is close to a lottery: of untrained networks one in forty or so passes by luck, and a version
    that passes is often lost again a few updates later.

    Args:
        passes: how many in a row.
    """

    def __init__(self, passes: int) -> None:
        self._passes = passes
        self.streak: list[int] = []
        """The versions that passed in a row: the first ones, and no more than it takes, or it would grow for ever."""
        self.length = 0
        """How many have passed in a row."""

    def go_on(self, streak: list[int], length: int | None = None) -> None:
        """Take up the versions that have passed in a row so far, of which there may be more than are named."""
        self.length = len(streak) if length is None else length
        self.streak = list(streak[: self._passes])

    def feed(self, version: int, *, passed: bool) -> int | None:
        """Hear the verdict on one version; returns the first version of the row once it is long enough."""
        if not passed:
            self.streak, self.length = [], 0
            return None
        self.length += 1
        if len(self.streak) < self._passes:
            self.streak.append(version)
        return self.streak[0] if self.length >= self._passes else None
