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

    def go_on(self, streak: list[int]) -> None:
        """Take up the versions that have passed in a row so far."""
        self.streak = list(streak)

    def feed(self, version: int, *, passed: bool) -> int | None:
        """Hear the verdict on one version; returns the first version of the row once it is long enough."""
        self.streak = [*self.streak, version] if passed else []
        return self.streak[0] if len(self.streak) >= self._passes else None
