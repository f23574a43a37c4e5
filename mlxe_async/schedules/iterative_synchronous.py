"""`is`: iterative-synchronous."""

from collections.abc import Sequence

from mlxe_async.schedules.verbs import Budget, Evaluator, Executor, Learner, Memorizer, together


async def iterative_synchronous(
    executors: Sequence[Executor], memorizer: Memorizer, learner: Learner, evaluator: Evaluator, budget: Budget
) -> None:
    """One rollout each, everybody waits, then one round of learning. Policy lag 0, the same story every time."""
    version = await learner.publish()
    while budget.remaining:
        await budget.boundary()
        budget.spend(await together(executor.generate(version) for executor in executors))
        version = await learner.learn(await memorizer.memorize())
        await evaluator.evaluate(version)
