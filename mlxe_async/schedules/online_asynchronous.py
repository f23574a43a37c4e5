"""`oa`: online-asynchronous."""

from collections.abc import Sequence

from mlxe_async.schedules.verbs import Budget, Evaluator, Executor, Learner, Memorizer, together


async def online_asynchronous(
    executors: Sequence[Executor], memorizer: Memorizer, learner: Learner, evaluator: Evaluator, budget: Budget
) -> None:
    """Overlap generating, learning and testing: no process waits for a phase to end. Policy lag is bounded."""
    await learner.publish()

    async def generating(executor: Executor) -> None:
        while budget.remaining:
            budget.spend([await executor.generate()])

    async def learning() -> None:
        while budget.remaining:
            await budget.boundary()
            await learner.learn(await memorizer.memorize())

    async def evaluating() -> None:
        while budget.remaining:
            await evaluator.evaluate()

    await together([*map(generating, executors), learning(), evaluating()])
