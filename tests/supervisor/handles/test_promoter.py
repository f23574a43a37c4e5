"""Promote best where nobody waits: what an iteration is, whose version it belongs to, and when it is time."""

import asyncio

import pytest

from mlxe_async.supervisor.handles.context import Promoter


class Log:
    def __init__(self):
        self.told = []

    def emit(self, event, *_role):
        self.told.append((event.result, event.version))


class Player:
    """An executor's handle, of which the shelf shows who put what there last."""

    def __init__(self, index, shelf, *, dies=False):
        self.index, self._shelf, self._dies = index, shelf, dies
        self.version = 0

    async def shelve(self, result):
        await asyncio.sleep(0)
        if not self._dies:
            self._shelf.append((self.index, self.version, result))
        return not self._dies


def played(promoter, *rollouts):
    """Deliver `(player, version, lengths)` in this order."""

    async def deliver():
        for player, version, lengths in rollouts:
            player.version = version
            episodes = {"steps": lengths, "return": [float(length) for length in lengths]}
            await promoter.delivered(player, {"version": version, "episodes": episodes})

    asyncio.run(deliver())


@pytest.fixture
def log():
    return Log()


def test_an_iteration_is_over_when_each_executor_has_finished_an_episode(log):
    shelf = []
    a, b = Player(0, shelf), Player(1, shelf)
    promoter = Promoter(2, "steps", lambda: [0, 1], log)
    played(promoter, (a, 1, [10]), (a, 2, [20]), (b, 1, []), (b, 1, [300]), (b, 3, [5]), (a, 4, [6]))
    assert log.told == [(330.0, 1), (11.0, 4)]
    assert shelf == [(1, 1, 330.0)]
    assert promoter.iterations is None


def test_the_mean_return_weighs_episodes_alike(log):
    a, b = Player(0, []), Player(1, [])
    played(Promoter(2, "mean_return", lambda: [0, 1], log), (a, 1, [10]), (a, 2, [20]), (b, 5, [300]))
    assert log.told == [(110.0, 5)]


def test_it_is_time_to_go_back_until_the_learner_has_or_a_better_result_comes(log):
    shelf = []
    a = Player(0, shelf)
    promoter = Promoter(2, "steps", lambda: [0], log)
    played(promoter, (a, 1, [9]), (a, 2, [9]), (a, 3, [8]))
    assert promoter.iterations == 2
    played(promoter, (a, 4, [1]))
    assert promoter.iterations == 3
    promoter.went_back()
    assert promoter.iterations is None
    played(promoter, (a, 5, [1]), (a, 6, [1]))
    assert promoter.iterations == 2
    played(promoter, (a, 7, [10]))
    assert promoter.iterations is None
    assert shelf == [(0, 1, 9.0), (0, 7, 10.0)]


def test_what_could_not_be_put_on_the_shelf_is_not_the_best(log):
    shelf = []
    promoter = Promoter(1, "steps", lambda: [0], log)
    played(promoter, (Player(0, shelf, dies=True), 1, [100]), (Player(0, shelf), 2, [50]))
    assert shelf == [(0, 2, 50.0)]


def test_executors_that_are_lost_are_not_waited_for(log):
    living = [0, 1]
    a = Player(0, [])
    promoter = Promoter(1, "steps", lambda: living, log)
    played(promoter, (a, 1, [10]))
    living.remove(1)
    played(promoter, (a, 2, [20]))
    assert log.told == [(30.0, 2)]


def test_a_run_that_goes_on_knows_the_best_result(log):
    shelf = []
    first = Promoter(2, "steps", lambda: [0], log)
    played(first, (Player(0, shelf), 1, [100]), (Player(0, shelf), 2, [5]))
    second = Promoter(2, "steps", lambda: [0], log)
    second.restore(first.state())
    played(second, (Player(0, shelf), 3, [99]))
    assert (second.iterations, len(shelf)) == (2, 1)


@pytest.mark.parametrize("length", [1e300, -1e300])
def test_a_result_that_float32_cannot_hold_is_the_nearest_that_it_can(log, length):
    shelf = []
    played(Promoter(2, "mean_return", lambda: [0], log), (Player(0, shelf), 1, [length]))
    assert shelf[0][2] == pytest.approx(length / abs(length) * 3.4028235e38)


def test_two_iterations_at_once_leave_the_better_one(log):
    """Both end before either is on the shelf."""
    shelf = []
    promoter = Promoter(2, "steps", lambda: [0], log)

    async def both():
        reports = [
            (version, {"version": version, "episodes": {"steps": [steps]}}) for version, steps in ((1, 9), (2, 5))
        ]
        async with asyncio.TaskGroup() as group:
            for version, report in reports:
                player = Player(0, shelf)
                player.version = version
                group.create_task(promoter.delivered(player, report))

    asyncio.run(both())
    assert shelf == [(0, 1, 9.0)]
