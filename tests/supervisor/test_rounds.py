"""A schedule is handed the budget, and between two rounds the run may save itself."""

import asyncio
from types import SimpleNamespace

from mlxe_async.supervisor.main_loop import Rounds
from mlxe_async.supervisor.plan.budget import Bell, Budget, Counters


def test_it_counts_by_the_budget_and_saves_at_a_boundary():
    saved, budget = [], Budget({"env_steps": 5}, Counters(), Bell())

    async def at_boundary():
        saved.append(budget.counters.rollouts)

    rounds = Rounds(budget, SimpleNamespace(at_boundary=at_boundary))
    assert rounds.remaining
    rounds.spend([{}, None, {}])
    asyncio.run(rounds.boundary())
    assert saved == [2]
    budget.counters.env_steps = 5
    assert not rounds.remaining
    assert budget.reason == "env_steps"
