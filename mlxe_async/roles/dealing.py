"""Who takes which item of a data set: numbers are dealt to executors like cards.

Items are numbered on and on: number i is item i modulo how many there are, and i divided by that is the pass. Of each
number one episode is begun. Executors play at the same time and their episodes are of any length, so with E executors
each takes every E-th of those that are left, in order. What a deal leaves over comes first in the next one. Under `is`
and `serial` each round is a deal, elsewhere a whole sitting of a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlxe_async.seeds import generator


class Order:
    """Places of items by their numbers.

    Args:
        count: items in a pass.
        seed: of the run; None: each pass is in the order of the file.
    """

    def __init__(self, count: int, seed: int | None) -> None:
        self._count, self._seed = count, seed
        self._pass = -1
        self._places: Sequence[int] = range(count)

    def place(self, number: int) -> int:
        """The place in the file of the item that a number has."""
        turn, place = divmod(number, self._count)
        if self._seed is not None and turn != self._pass:
            self._pass = turn
            self._places = generator(self._seed, "task.items", turn).permutation(self._count).tolist()
        return self._places[place]


@dataclass(frozen=True)
class Hand:
    """The numbers that one executor takes in a deal: those in `first`, then every `step`-th from `then` on.

    Args:
        first: numbers that an earlier deal left over.
        then: the number after those.
        step: executors in the deal.
    """

    first: tuple[int, ...]
    then: int
    step: int

    def numbers(self, taken: int = 0) -> Iterator[int]:
        """All of them, but for those that were taken already."""
        yield from self.first[taken:]
        beyond = max(0, taken - len(self.first))
        yield from itertools.count(self.then + beyond * self.step, self.step)

    def to_json(self) -> dict[str, Any]:
        """The hand as plain JSON types."""
        return {"first": list(self.first), "then": self.then, "step": self.step}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Hand:
        """The inverse of `to_json`."""
        return cls(tuple(told["first"]), told["then"], told["step"])


@dataclass
class Dealer:
    """Deals numbers, and knows which were taken.

    Args:
        executors: that take part.
        left: numbers below `following` that no episode had, ascending.
        following: all numbers from here on are left too.
        taken: numbers that each executor has taken of its hand; None: there is no deal.
    """

    executors: int
    left: tuple[int, ...] = ()
    following: int = 0
    taken: list[int] | None = field(default=None)

    def deal(self) -> None:
        """Deal what is left to all executors; without effect while a deal is on."""
        if self.taken is None:
            self.taken = [0] * self.executors

    def hand(self, index: int) -> Hand:
        """Return what an executor has been dealt."""
        rest = (index - len(self.left)) % self.executors
        return Hand(self.left[index :: self.executors], self.following + rest, self.executors)

    def take(self, index: int, count: int) -> None:
        """An executor has begun episodes of the next numbers of its hand."""
        assert self.taken is not None  # noqa: S101 - hands are of a deal
        self.taken[index] += count

    def settle(self) -> None:
        """End the deal: what was not taken is left for the next one."""
        if self.taken is None:
            return
        hands = [self.hand(index) for index in range(self.executors)]
        used = {
            number
            for hand, count in zip(hands, self.taken, strict=True)
            for number in itertools.islice(hand.numbers(), count)
        }
        beyond = max(self.following, max(used, default=-1) + 1)
        self.left = tuple(n for n in (*self.left, *range(self.following, beyond)) if n not in used)
        self.following, self.taken = beyond, None

    def state(self) -> dict[str, Any]:
        """All of it as plain JSON types."""
        return {
            "executors": self.executors,
            "left": list(self.left),
            "following": self.following,
            "taken": self.taken,
        }

    def restore(self, state: Mapping[str, Any], *, keeps_deal: bool) -> None:
        """Go on from there.

        Args:
            state: as of `state`.
            keeps_deal: whether a deal goes on; with another number of executors what is left is dealt anew.
        """
        mine = self.executors
        self.executors, self.taken = state["executors"], state["taken"]
        self.left, self.following = tuple(state["left"]), state["following"]
        if not keeps_deal or mine != self.executors:
            self.settle()
        self.executors = mine
