"""The budget runs out with the first stop condition, and wakes whoever waits."""

import asyncio

import pytest

from mlxe_async.supervisor.plan.budget import Bell, Budget, Counters


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


def test_each_executor_has_its_share_of_the_steps_that_were_left_at_the_end_of_the_last_round():
    budget = budget_of(env_steps=100)
    assert budget.share(3) == 34
    budget.counters.env_steps = 60
    assert budget.share(3) == 34  # whoever of the round delivers first
    budget.spend([{}])
    assert budget.share(3) == 14
    again = budget_of(env_steps=200)
    again.restore(budget.state())
    assert again.share(1) == 140
    budget.counters.env_steps = 150
    budget.spend([{}])
    assert budget.share(3) == 1
    assert budget_of(episodes=3).share(3) is None


def test_the_first_reason_stays():
    budget = budget_of(env_steps=1)
    budget.finish("SIGINT")
    budget.counters.env_steps = 5
    budget.spend([{}])
    budget.finish("solved")
    assert budget.reason == "SIGINT"
    assert budget.counters.rollouts == 1


def test_seconds_count_from_the_beginning():
    budget = budget_of(seconds=0.5)
    assert budget.remaining
    budget.began -= 1.0
    assert not budget.remaining


def test_solved_ends_the_run_only_where_it_is_asked_for():
    budget = budget_of(solved=False)
    budget.note_solved()
    assert budget.remaining
    budget = budget_of(solved=True, steps_after_solved=None)
    budget.note_solved()
    assert budget.reason == "solved"


def test_so_many_steps_after_it_was_solved_it_runs_out():
    budget = budget_of(solved=True, steps_after_solved=100)
    budget.counters.env_steps = 5000
    assert budget.remaining
    assert "steps_after_solved" not in budget.limits()
    budget.note_solved()
    budget.counters.env_steps = 5099
    budget.note_solved()  # a second time changes nothing
    assert budget.remaining
    assert budget.spent("steps_after_solved") / budget.limits()["steps_after_solved"] == 0.99
    budget.counters.env_steps = 5100
    assert not budget.remaining
    assert budget.reason == "solved"


def test_other_conditions_hold_after_it_was_solved_too():
    budget = budget_of(solved=True, steps_after_solved=100, episodes=3)
    budget.note_solved()
    budget.counters.episodes = 3
    assert not budget.remaining
    assert budget.reason == "episodes"


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


def test_a_run_that_was_solved_before_it_was_resumed_stops_by_that():
    solved = budget_of(solved=True, steps_after_solved=None)
    solved.note_solved()
    again = budget_of(solved=True, steps_after_solved=None)
    again.restore(solved.state())
    assert again.reason is None  # what a resumption has to do first is not cut short
    assert not again.remaining
    assert again.reason == "solved"
    later = budget_of(solved=True, steps_after_solved=100)
    later.counters.env_steps = 550
    later.was_solved(500)
    later.restore(budget_of(solved=False).state())  # of a checkpoint that knew no such condition
    assert later.remaining
    later.counters.env_steps = 600
    assert not later.remaining


def test_finished_episodes_are_those_of_the_end_of_the_last_round():
    budget = budget_of()
    budget.counters.episodes = 7
    assert budget.counted_episodes == 0
    budget.spend([{}])
    assert budget.counted_episodes == 7
    budget.counters.episodes = 9
    again = budget_of()
    again.restore(budget.state())
    assert again.counted_episodes == 7
