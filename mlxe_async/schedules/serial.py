"""`serial`: everything in order, for debuggers and as the reference that the others are compared with."""

from collections.abc import Sequence

from mlxe_async.schedules.verbs import Budget, Evaluator, Executor, Learner, Memorizer


async def serial(
    executors: Sequence[Executor], memorizer: Memorizer, learner: Learner, evaluator: Evaluator, budget: Budget
) -> None:
    """One rollout after the other, then one round of learning. Policy lag 0."""
    version = await learner.publish()
    while budget.remaining:
        await budget.boundary()
        budget.spend([await executor.generate(version) for executor in executors])
        version = await learner.learn(await memorizer.memorize())
        await evaluator.evaluate(version)
