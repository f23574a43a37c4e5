"""An executor's handle: interrupted, killed or given up, its counters stay exact and nobody waits for ever."""

import asyncio
import sys
from pathlib import Path

import pytest
from fake_processes import Room, context_of, executor_of

from mlxe_async.schedules import schedule_of
from mlxe_async.supervisor.handles.executor import ExecutorHandle

sys.path.insert(0, str(Path(__file__).parents[2] / "schedules"))

from virtual_time import in_virtual_time

from mlxe_async.supervisor.main_loop import Rounds


class NeverDue:
    """A keeper that saves nothing between rounds."""

    async def at_boundary(self):
        pass


class Rest:
    """Memorizer, learner and evaluator in one: a version for each round."""

    def __init__(self, context):
        self.context, self.rounds = context, 0

    async def publish(self):
        self.context.counters.version += 1
        return self.context.counters.version

    async def memorize(self):
        return {}

    async def learn(self, plan):
        self.rounds += 1
        await asyncio.sleep(0.5)
        return await self.publish()

    async def evaluate(self, version=None):
        await asyncio.sleep(0)


def played(kind, executors, context):
    rest = Rest(context)
    in_virtual_time(schedule_of(kind)(executors, rest, rest, rest, Rounds(context.budget, NeverDue())))
    return rest


def exact(context, executors):
    """Counters against what the fake processes did, and started = finished + aborted + under way."""
    counters = context.counters
    assert counters.env_steps == sum(executor.rows for executor in executors)
    started = sum(executor.episodes_started for executor in executors)
    under_way = sum(sum(executor._running) for executor in executors)
    assert started == counters.episodes + counters.episodes_aborted + under_way


@pytest.mark.parametrize("deaths", [0.0, 0.02])
@pytest.mark.parametrize("unfinished", ["keep", "drop"])
@pytest.mark.parametrize("seed", range(5))
def test_counters_stay_exact_whoever_is_interrupted_or_killed(seed, unfinished, deaths):
    context = context_of({"env_steps": 5000})
    executors = [executor_of(context, i, seed=seed, deaths=deaths, unfinished=unfinished) for i in range(3)]
    rest = played("ia", executors, context)
    assert rest.rounds > 30
    assert context.counters.rollouts > 3 * rest.rounds
    exact(context, executors)
    if not deaths:
        assert sum(e.process.begun_episodes for e in executors) == sum(e.episodes_started for e in executors)
        assert (context.counters.episodes_aborted > 0) == (unfinished == "drop")


def test_an_episode_that_is_kept_and_then_dies_with_its_executor_is_not_begun_again():
    context = context_of({"env_steps": 10**6})
    executor = executor_of(context, 0, unfinished="keep")

    async def main():
        await executor.generate(1)
        going = asyncio.ensure_future(executor.generate(1, interruptible=True))
        await asyncio.sleep(0.1)
        executor.interrupt()
        report = await going
        if report["running"] == [True]:
            executor.process.die()
            following = await executor.generate(2)
            return report["begun"], following["begun"]
        return None

    (before, after), _ = in_virtual_time(main())
    # One that went down and one that was finished.
    assert after[0] == before[0] + 2
    assert context.counters.episodes_aborted == 1
    exact(context, [executor])


class Scripted:
    """Answers with these reports."""

    epoch, alive = 1, True

    def __init__(self, *reports):
        self.reports = list(reports)

    async def call(self, verb, **_):
        return self.reports.pop(0)

    def note_progress(self):
        pass


def test_environments_that_a_report_does_not_name_stand_where_they_stood():
    def report(moved, begun, running, finished):
        return {
            "rows": 5, "blocks": 1, "out_of_bounds": 0, "rss_mb": None, "version": 1, "seconds": 1.0,
            "lane_wait_s": 0.0, "ingested": [], "action_changes": None,
            "moved": moved, "begun": begun, "running": running,
            "episodes": {"return": [1.0] * finished, "steps": [1] * finished},
        }  # fmt: skip

    async def main():
        context = context_of({"env_steps": 100})
        first = report([0, 1, 2], [2, 0, 1], [True, True, False], 3)
        process = Scripted(
            first, report([2], [1], [True], 0), report([], [], [], 0), report([1, 0], [1, 4], [False, True], 2)
        )
        handle = ExecutorHandle(0, process, context, Room(), 3)
        stood = []
        while process.reports:
            await handle.generate()
            _, arrays = handle.state()
            stood.append((arrays["begun"].tolist(), arrays["running"].tolist(), handle.next_episodes))
            assert handle.episodes_started == sum(handle.next_episodes)
        assert stood == [
            ([2, 0, 1], [True, True, False], [3, 1, 1]),
            ([2, 0, 1], [True, True, True], [3, 1, 2]),
            ([2, 0, 1], [True, True, True], [3, 1, 2]),
            ([4, 1, 1], [True, False, True], [5, 1, 2]),
        ]
        assert (context.counters.episodes, context.counters.episodes_aborted) == (5, 1)

    asyncio.run(main())


def test_a_rollout_that_is_interrupted_before_it_began_is_none():
    context = context_of({"env_steps": 10**6})
    executor = executor_of(context, 0, most_rollouts=1)

    async def main():
        await executor.generate(1)
        going = asyncio.ensure_future(executor.generate(1, interruptible=True))
        await asyncio.sleep(5)
        assert not going.done()
        executor.interrupt()
        nothing = await going
        # The next round's first rollout is not held back, and not interrupted by what was asked before.
        executor.interrupt()
        report = await executor.generate(2)
        return nothing, report

    (nothing, report), _ = in_virtual_time(main())
    assert nothing is None
    assert report["episodes"]["return"]
    assert len(executor.process.calls) == 2


def test_a_rollout_that_is_interrupted_and_then_killed_is_not_begun_again():
    context = context_of({"env_steps": 10**6})
    executor = executor_of(context, 0, seed=1)
    process = executor.process

    async def main():
        await executor.generate(1)
        going = asyncio.ensure_future(executor.generate(1, interruptible=True))
        await asyncio.sleep(0.01)
        executor.interrupt()
        process.deaths = 1.0
        process.die = lambda: setattr(process, "deaths", 0.0)
        return await going

    assert in_virtual_time(main())[0] is None
    assert len(process.calls) == 2
    assert context.counters.episodes_aborted == 1


def test_nobody_plays_more_rollouts_in_a_round_than_allowed():
    context = context_of({"env_steps": 3000})
    executors = [executor_of(context, i, most_rollouts=2) for i in range(3)]
    rest = played("ia", executors, context)
    for executor in executors:
        by_version = [version for _, version, _ in executor.process.calls]
        assert max(by_version.count(version) for version in set(by_version)) == 2
    assert context.counters.rollouts <= 2 * 3 * rest.rounds


@pytest.mark.parametrize("kind", ["serial", "is", "ia"])
def test_a_round_goes_on_without_an_executor_that_is_given_up(kind):
    context = context_of({"env_steps": 500}, deterministic=kind != "ia")
    executors = [executor_of(context, 0), executor_of(context, 1, gives_up_after=3)]
    rest = played(kind, executors, context)
    assert executors[1].lost == "broken again and again"
    assert rest.rounds > 10
    assert context.budget.reason == "env_steps"


def test_what_kills_three_times_is_not_tried_in_the_same_way_again():
    context = context_of({"env_steps": 300}, deterministic=True)
    executor = executor_of(context, 0, deaths=0.1, seed=3)
    played("is", [executor], context)
    attempts = [attempt for _, _, attempt in executor.process.calls]
    rollouts = [rollout for rollout, _, _ in executor.process.calls]
    assert max(attempts) > 0
    assert sorted(set(rollouts)) == list(range(max(rollouts) + 1))
    # Redone alike: it counts once, however often it was begun.
    assert executor.episodes_started == context.counters.episodes
