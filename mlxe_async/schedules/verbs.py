"""What a schedule may ask of its collaborators."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Executor(Protocol):
    """Steps environments."""

    async def generate(self, version: int | None = None, *, interruptible: bool = False) -> Any:
        """One rollout, under exactly `version`, or under the newest there is.

        None when there was nothing to do: the budget ran out, the executor is lost, or it was interrupted before it
        began.
        """

    def interrupt(self) -> None:
        """End an interruptible rollout that is under way at its next step; without one do nothing."""


class Memorizer(Protocol):
    """Keeps experience."""

    async def memorize(self) -> Any:
        """Take in what was committed and draw what to learn from; where the learner runs free, wait for something."""


class Learner(Protocol):
    """Updates weights."""

    async def publish(self) -> int:
        """Publish the present weights and return their version."""

    async def learn(self, plan: Any) -> int:
        """Learn from a plan, publish, and return the newest version."""


class Server(Learner, Protocol):
    """Updates weights by the gradients that executors make."""

    def stepping(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Step by what is pushed inside, and publish; at the end by all that was."""

    async def push_of(self, executor: Executor) -> None:
        """Have an executor differentiate what is to be learned, if anything is, and push it.

        Where executors wait for their own steps, it returns when the learner has stepped by it.
        """


class Evaluator(Protocol):
    """Tests frozen versions."""

    async def evaluate(self, version: int | None = None) -> None:
        """Test `version` to the end; without one, go on testing what is under way, and the newest if it is its turn."""


class Budget(Protocol):
    """Counts, and says when to stop."""

    @property
    def remaining(self) -> bool:
        """Whether to go on."""

    async def boundary(self) -> None:
        """Between two rounds, or two plans of a learner that never waits: the run may use the moment to save itself."""

    def spend(self, rollouts: Iterable[Any]) -> None:
        """Count finished rollouts."""


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once and return their results in the order given; the first failure cancels the rest."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(coroutine) for coroutine in work]
    return [task.result() for task in tasks]


Schedule = Callable[[Sequence[Executor], Memorizer, Any, Evaluator, Budget], Coroutine[Any, Any, None]]
"""The third is a `Learner`, or a `Server`."""
