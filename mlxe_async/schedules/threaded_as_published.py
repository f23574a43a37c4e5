"""`istb`, flavour `as_published`: the threaded baseline as its authors ran it. `fair` is `is` on threads."""

import asyncio
from collections.abc import Sequence
from typing import Any

from mlxe_async.schedules.verbs import Budget, Evaluator, Executor, Learner, Memorizer, together

POLL_S = 1.0


async def threaded_as_published(
    executors: Sequence[Executor], memorizer: Memorizer, learner: Learner, evaluator: Evaluator, budget: Budget
) -> None:
    """Run like `is`, but without messages: each thread checks once a second whether the others have come so far."""
    begun, version, over = 0, 0, False
    played: list[list[Any]] = [[] for _ in executors]

    async def generating(index: int, executor: Executor) -> None:
        while not over:
            if len(played[index]) < begun:
                played[index].append(await executor.generate(version))
            await asyncio.sleep(POLL_S)

    async def learning() -> None:
        nonlocal begun, version, over
        version = await learner.publish()
        while budget.remaining:
            await budget.boundary()
            begun += 1
            while min(map(len, played)) < begun:  # noqa: ASYNC110 - looking is the point of this flavour
                await asyncio.sleep(POLL_S)
            # Not before all have played: a round that was begun is finished by all.
            budget.spend([rollouts[-1] for rollouts in played])
            version = await learner.learn(await memorizer.memorize())
            await evaluator.evaluate(version)
        over = True

    await together([learning(), *(generating(index, executor) for index, executor in enumerate(executors))])
