"""`oa` with gradients of executors: A3C."""

from collections.abc import Sequence

from mlxe_async.schedules.verbs import Budget, Evaluator, Executor, Memorizer, Server, together


async def pushing(
    executors: Sequence[Executor],
    memorizer: Memorizer,  # noqa: ARG001 - asked by the server, for the rollouts of one executor
    learner: Server,
    evaluator: Evaluator,
    budget: Budget,
) -> None:
    """Each executor plays, differentiates what it played, and has the learner step by that; none waits for another."""
    await learner.publish()

    async def working(executor: Executor) -> None:
        while budget.remaining:
            await budget.boundary()
            budget.spend([await executor.generate()])
            await learner.step_by(executor)

    async def evaluating() -> None:
        while budget.remaining:
            await evaluator.evaluate()

    await together([*map(working, executors), evaluating()])
