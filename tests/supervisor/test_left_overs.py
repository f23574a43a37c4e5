"""Rollouts that nothing comes of: they leave no room taken, and no executor learns one rollout late."""

import asyncio
from types import SimpleNamespace

import pytest

from mlxe_async.supervisor.handles.memorizer import MemorizerHandle
from mlxe_async.supervisor.learning.pushing import PushedLearnerHandle

PLAN = {"updates": 1, "slots": [3], "orders": [7]}


class Lane:
    """A memorizer that hands out one rollout after the other: how many versions each is too old."""

    def __init__(self, ages):
        self.ages, self.used_up = list(ages), []

    async def memorize_of(self, lane):
        return {**PLAN, "age": self.ages.pop(0)} if self.ages else {"updates": 0}


def pushed(ages, *, ending=False):
    """What is left of the rollouts of a lane after one push."""
    handle, lane = object.__new__(PushedLearnerHandle), Lane(ages)
    handle._drawing, handle._memorizer = asyncio.Lock(), lane
    handle._context = SimpleNamespace(ending=ending)

    async def push(plan, number):
        assert number == 2
        return plan["age"] > 0

    handle._push = push
    asyncio.run(handle._pushed(2))
    return lane.ages


def test_a_rollout_of_older_weights_is_not_pushed_in_place_of_the_executors_own():
    assert pushed([1, 0, 0]) == [0]
    assert pushed([2, 1, 0]) == []
    assert pushed([0, 0]) == [0]


def test_at_the_end_nothing_more_is_drawn():
    assert pushed([1, 0], ending=True) == [0]


@pytest.mark.parametrize("lane", [None, 1])
@pytest.mark.parametrize(("alive", "epoch", "is_free"), [(True, 1, True), (False, 1, False), (True, 2, False)])
def test_room_of_a_rollout_is_free_unless_a_death_made_it_ready_again(lane, alive, epoch, is_free):
    handle = object.__new__(MemorizerHandle)
    handle.process = SimpleNamespace(alive=alive, epoch=epoch)
    handle._used, handle._used_by, handle._drawn_in = None, {}, {lane: 1}
    handle.given_up(PLAN, lane)
    assert (handle._used if lane is None else handle._used_by.get(lane)) == (PLAN if is_free else None)
