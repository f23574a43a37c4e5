"""`oa` with gradients of executors: A3C, Gorila."""

from collections.abc import Sequence

from mlxe_async.schedules.verbs import Budget, Evaluator, Executor, Memorizer, Server, together


async def pushing(
    executors: Sequence[Executor],
    memorizer: Memorizer,  # noqa: ARG001 - asked by the server, for the rows of one executor
    learner: Server,
    evaluator: Evaluator,
    budget: Budget,
) -> None:
    """Each executor plays and differentiates, and the learner steps by that; none waits for another."""
    await learner.publish()

    async def working(executor: Executor) -> None:
        while budget.remaining:
            await budget.boundary()
            budget.spend([await executor.generate()])
            await learner.push_of(executor)

    async def evaluating() -> None:
        while budget.remaining:
            await evaluator.evaluate()

    async with learner.stepping():
        await together([*map(working, executors), evaluating()])
