"""The schedules with fakes: who waits for whom, in milliseconds."""

import asyncio
import random

import pytest

from mlxe_async.schedules import iterative_synchronous, online_asynchronous, serial


class World:
    """Fake collaborators that note what they are asked, in order, and take random turns of the loop for it."""

    def __init__(self, executors, rounds, seed=0):
        self.story = []
        self.version = 0
        self.left = rounds
        self.random = random.Random(seed)  # noqa: S311 - orders events, guards no secret
        self.executors = [Executor(self, index) for index in range(executors)]
        self.news = asyncio.Event()

    @property
    def remaining(self):
        return self.left > 0

    async def boundary(self):
        await asyncio.sleep(0)

    def spend(self, rollouts):
        self.left -= len(list(rollouts))
        if not self.remaining:
            self.news.set()

    async def a_while(self):
        for _ in range(1 + self.random.randrange(6)):
            await asyncio.sleep(0)

    async def publish(self):
        await self.a_while()
        self.version += 1
        self.story.append(("publish", self.version))
        return self.version

    async def memorize(self):
        while self.news_wanted and self.remaining and not self.news.is_set():
            await self.news.wait()
        self.news.clear()
        self.story.append(("memorize", self.version))
        return "plan"

    news_wanted = False

    async def learn(self, plan):
        assert plan == "plan"
        self.story.append(("learn", self.version))
        await self.a_while()
        return await self.publish()

    async def evaluate(self, version=None):
        await self.a_while()
        self.story.append(("evaluate", version))

    def count(self, verb):
        return sum(1 for entry in self.story if entry[0] == verb)


class Executor:
    def __init__(self, world, index):
        self.world, self.index = world, index

    async def generate(self, version=None):
        used = self.world.version if version is None else version
        self.world.story.append(("generate", self.index, used))
        await self.world.a_while()
        self.world.story.append(("generated", self.index, used))
        self.world.news.set()
        return self.index


def run(schedule, world):
    asyncio.run(schedule(world.executors, world, world, world, world))
    return world.story


@pytest.mark.parametrize("schedule", [serial, iterative_synchronous])
@pytest.mark.parametrize("seed", range(5))
def test_no_executor_starts_a_round_before_the_last_one_was_published(schedule, seed):
    story = run(schedule, World(executors=3, rounds=12, seed=seed))
    newest = 0
    for entry in story:
        if entry[0] == "publish":
            newest = entry[1]
        if entry[0] == "generate":
            assert entry[2] == newest


@pytest.mark.parametrize("schedule", [serial, iterative_synchronous])
def test_a_round_is_all_executors_then_memory_then_learning_then_publication_then_the_test(schedule):
    story = run(schedule, World(executors=2, rounds=4))
    verbs = [entry[0] for entry in story if entry[0] not in ("generate",)]
    assert verbs == ["publish", *["generated", "generated", "memorize", "learn", "publish", "evaluate"] * 2]


def test_serial_has_one_executor_at_work_at_a_time():
    story = run(serial, World(executors=3, rounds=6))
    at_work = 0
    for entry in story:
        at_work += {"generate": 1, "generated": -1}.get(entry[0], 0)
        assert at_work <= 1


def test_the_synchronous_schedule_has_all_executors_at_work_at_once():
    story = run(iterative_synchronous, World(executors=3, rounds=3))
    assert [entry[0] for entry in story[1:4]] == ["generate"] * 3


@pytest.mark.parametrize("seed", range(5))
def test_in_the_asynchronous_schedule_nobody_waits_for_a_round_to_end(seed):
    world = World(executors=3, rounds=60, seed=seed)
    world.news_wanted = True
    story = run(online_asynchronous, world)
    learning, overlapped = False, 0
    for entry in story:
        learning = {"learn": True, "publish": False}.get(entry[0], learning)
        overlapped += learning and entry[0] == "generate"
    assert overlapped > 0
    assert world.count("generate") >= 60
    newest = 0
    for entry in story:
        if entry[0] == "publish":
            newest = entry[1]
        if entry[0] == "generate":
            assert entry[2] == newest


def test_the_asynchronous_schedule_ends_when_the_budget_does():
    world = World(executors=2, rounds=1)
    world.news_wanted = True
    story = run(online_asynchronous, world)
    assert [entry for entry in story if entry[0] == "generated"] != []


def test_a_failing_collaborator_ends_the_schedule_with_its_error():
    world = World(executors=2, rounds=10)

    async def failing(version=None):
        raise RuntimeError("broken")

    world.executors[1].generate = failing
    with pytest.raises(ExceptionGroup) as caught:
        run(online_asynchronous, world)
    assert caught.group_contains(RuntimeError, match="broken")
