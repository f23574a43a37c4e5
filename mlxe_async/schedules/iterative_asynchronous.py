"""`ia`: iterative-asynchronous."""

from collections.abc import Sequence
from typing import Any

from mlxe_async.schedules.verbs import Budget, Evaluator, Executor, Learner, Memorizer, together


async def iterative_asynchronous(
    executors: Sequence[Executor], memorizer: Memorizer, learner: Learner, evaluator: Evaluator, budget: Budget
) -> None:
    """Who has delivered goes again until the slowest has, then one round of learning. Policy lag 0 for new rows."""

    async def generating(executor: Executor, version: int, awaited: set[Executor]) -> list[Any]:
        rollouts = [await executor.generate(version)]
        awaited.discard(executor)
        while awaited and budget.remaining and rollouts[-1] is not None:
            rollouts.append(await executor.generate(version, interruptible=True))
        for other in executors if not awaited else ():
            other.interrupt()
        return [rollout for rollout in rollouts if rollout is not None]

    version = await learner.publish()
    while budget.remaining:
        await budget.boundary()
        awaited = set(executors)
        for rollouts in await together(generating(executor, version, awaited) for executor in executors):
            budget.spend(rollouts)
        version = await learner.learn(await memorizer.memorize())
        await evaluator.evaluate(version)
