"""Rollouts that nothing comes of: they leave no room taken, and no executor learns one rollout late."""

import asyncio
from collections import deque
from types import SimpleNamespace

import pytest

from mlxe_async.supervisor.handles.memorizer import MemorizerHandle
from mlxe_async.supervisor.learning.pushing import Push, PushedLearnerHandle, Pushes
from mlxe_async.supervisor.plan.budget import Bell

PLAN = {"updates": 1, "slots": [3], "orders": [7]}


class Lane:
    """A memorizer that hands out one rollout after the other: how many versions each is too old."""

    def __init__(self, ages):
        self.ages, self.used_up = list(ages), []

    def used(self, plan, lane):
        self.used_up.append(plan)

    async def memorize_of(self, lane):
        return {**PLAN, "age": self.ages.pop(0)} if self.ages else {"updates": 0}


def pushed(ages, *, ending=False):
    """What is left of the rollouts of a lane after one push; those that are too old give no update."""
    handle, lane = object.__new__(PushedLearnerHandle), Lane(ages)
    handle._drawing, handle._memorizer = asyncio.Lock(), lane
    handle._context = SimpleNamespace(ending=ending)
    handle.pushes, handle._free, handle._waiting, handle._bell = Pushes(), [[0]] * 3, deque(), Bell()
    handle._how = SimpleNamespace(waits=False, gives_way=False)
    handle._outliers, handle._odd_in_a_row, handle._fruitless, handle._why = None, 0, 0, ""
    handle._note_waiting = lambda: None
    ended = []
    handle._end = lambda push, how: (ended.append(how), handle._free[2].append(push.about["place"]))

    async def differentiated(plan, number, place):
        done = {"updates": int(plan["age"] == 0), "metrics": {"loss": 1.0}, "finite": True}
        return Push({"worker": number, "number": 1, "place": place, "done": done})

    handle._differentiated = differentiated
    asyncio.run(handle._pushed(2))
    assert ended == ["too_old"] * len(ended)
    assert len(lane.used_up) == len(ages) - len(lane.ages)
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
