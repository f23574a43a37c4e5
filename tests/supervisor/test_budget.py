"""The budget runs out with the first stop condition, and wakes whoever waits."""

import asyncio

import pytest

from mlxe_async.supervisor.budget import Bell, Budget, Counters


def budget_of(**stop):
    return Budget(stop, Counters(), Bell())


@pytest.mark.parametrize("name", ["env_steps", "episodes", "updates"])
def test_it_runs_out_when_a_counter_reaches_its_limit(name):
    budget = budget_of(**{name: 10})
    setattr(budget.counters, name, 9)
    assert budget.remaining
    setattr(budget.counters, name, 10)
    assert not budget.remaining
    assert budget.reason == name


def test_without_a_condition_it_never_runs_out():
    budget = budget_of(env_steps=None, solved=False)
    budget.counters.env_steps = 10**12
    assert budget.remaining


def test_the_first_reason_stays():
    budget = budget_of(env_steps=1)
    budget.finish("SIGINT")
    budget.counters.env_steps = 5
    budget.spend([None])
    budget.finish("solved")
    assert budget.reason == "SIGINT"
    assert budget.counters.rollouts == 1


def test_seconds_count_from_the_beginning():
    budget = budget_of(seconds=0.5)
    assert budget.remaining
    budget.began -= 1.0
    assert not budget.remaining


def test_whoever_waits_is_woken_when_it_runs_out():
    async def main():
        budget = budget_of(env_steps=1)
        waiting = asyncio.create_task(budget.bell.wait_until(lambda: budget.reason is not None))
        await asyncio.sleep(0)
        budget.bell.ring()
        await asyncio.sleep(0)
        assert not waiting.done()
        budget.finish("solved")
        async with asyncio.timeout(5):
            await waiting

    asyncio.run(main())
