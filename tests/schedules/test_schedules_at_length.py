"""All schedules for very many phases with random delays: nobody waits for ever, and no increment is lost."""

import asyncio
import contextlib
import random

import pytest
from virtual_time import Deadlock, in_virtual_time

from mlxe_async.schedules import SCHEDULES, schedule_of

KINDS = list(SCHEDULES)
SYNCHRONOUS = [kind for kind in KINDS if kind[0] != "oa"]


class Player:
    """Delivers rollouts after random delays, one at a time; those that are interrupted come at once."""

    def __init__(self, world, index):
        self.world, self.index = world, index
        self.delivered = self.cut = self.stepped = 0
        self._playing = None

    async def generate(self, version=None, *, interruptible=False):
        assert self._playing is None, "two rollouts of one executor at once"
        assert version is None or version == self.world.version, "begun under weights that are not the newest"
        loop = asyncio.get_running_loop()
        playing = loop.create_future()
        self._playing = (playing, interruptible)
        # Now and then one is a thousand times slower, or not slower at all.
        delay = self.world.random.choice((0.0, 0.001, 1.0)) * self.world.random.random()
        timer = loop.call_later(delay, lambda: playing.done() or playing.set_result(False))
        self.world.note("generate", self.index)
        try:
            self.cut += await playing
        finally:
            timer.cancel()
            self._playing = None
        assert version is None or version == self.world.version, "published while a rollout was under way"
        self.delivered += 1
        self.world.committed += 1
        self.world.news.set()
        return self.index

    def interrupt(self):
        if self._playing and self._playing[1] and not self._playing[0].done():
            self._playing[0].set_result(True)


class Long:
    """A world of fakes that counts phases; the budget ends after so many."""

    def __init__(self, executors, phases, seed, free_running):
        self.random = random.Random(seed)  # noqa: S311 - orders events, guards no secret
        self.left, self.free_running = phases, free_running
        self.executors = [Player(self, index) for index in range(executors)]
        self.version = self.spent = self.committed = self.memorized = self.learned = 0
        self.by_phase = {}
        self.news = asyncio.Event()

    def note(self, phase, index=0):
        self.by_phase[phase] = self.by_phase.get(phase, 0) + 1
        self.left -= 1
        if self.left <= 0:
            self.news.set()

    @property
    def remaining(self):
        return self.left > 0

    async def boundary(self):
        await asyncio.sleep(0)

    def spend(self, rollouts):
        self.spent += sum(1 for _ in rollouts)

    async def publish(self):
        await asyncio.sleep(0.001 * self.random.random())
        self.note("publish")
        self.version += 1
        return self.version

    async def memorize(self):
        while self.free_running and self.remaining and self.committed == self.memorized:
            self.news.clear()
            await self.news.wait()
        self.note("memorize")
        plan = self.committed - self.memorized
        self.memorized = self.committed
        return plan

    async def learn(self, plan):
        await asyncio.sleep(0.01 * self.random.random())
        self.note("learn")
        self.learned += plan
        return await self.publish()

    @contextlib.asynccontextmanager
    async def stepping(self):
        yield

    async def push_of(self, executor):
        self.note("memorize")
        mine = executor.delivered - executor.stepped
        assert mine <= 1, "two rollouts of one executor wait for its gradients"
        executor.stepped, self.memorized = executor.delivered, self.memorized + mine
        await self.learn(mine)

    async def evaluate(self, version=None):
        await asyncio.sleep(0.002 * self.random.random())
        self.note("evaluate")


def at_length(kind, phases, executors=3, seed=0):
    world = Long(executors, phases, seed, free_running=kind[0] == "oa")
    _, seconds = in_virtual_time(schedule_of(*kind)(world.executors, world, world, world, world))
    return world, seconds


@pytest.mark.parametrize("phases", [1000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nobody_waits_for_ever_and_every_rollout_is_counted_once(kind, phases):
    for seed in range(3 if phases <= 1000 else 1):
        world, _ = at_length(kind, phases, seed=seed)
        delivered = sum(player.delivered for player in world.executors)
        assert sum(world.by_phase.values()) >= phases
        assert world.spent == delivered == world.committed
        assert world.by_phase["generate"] == delivered
        assert world.learned == world.memorized
        # A memorizer that runs free may look for the last time before the last rollouts are in.
        assert world.memorized <= delivered if kind[0] == "oa" else world.memorized == delivered
        assert world.version == world.by_phase["publish"] == world.by_phase["learn"] + 1


@pytest.mark.parametrize("executors", [1, 2, 8])
@pytest.mark.parametrize("kind", SYNCHRONOUS, ids=str)
def test_every_executor_delivers_in_every_round(kind, executors):
    world, _ = at_length(kind, 600, executors)
    rounds = world.by_phase["learn"]
    if kind[0] == "ia":
        assert all(player.delivered >= rounds for player in world.executors)
        assert all(player.cut <= player.delivered - rounds for player in world.executors)
    else:
        assert {player.delivered for player in world.executors} == {rounds}


def test_fast_executors_go_again_and_are_interrupted_when_the_slowest_has_delivered():
    world, _ = at_length(("ia", None), 2000)
    rounds = world.by_phase["learn"]
    assert rounds > 50
    assert sum(player.delivered for player in world.executors) > 1.5 * rounds * len(world.executors)
    assert sum(player.cut for player in world.executors) > 0.5 * rounds


def test_looking_once_a_second_takes_its_time():
    fair, fair_s = at_length(("istb", "fair"), 600)
    published, published_s = at_length(("istb", "as_published"), 600)
    rounds = published.by_phase["learn"]
    assert rounds == fair.by_phase["learn"]
    assert fair_s < 1.1 * rounds
    assert rounds < published_s < 4.1 * rounds


def test_a_deadlock_would_be_seen():
    async def never():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        in_virtual_time(never())
