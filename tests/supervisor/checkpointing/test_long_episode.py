"""The first long training episode: counts of the moment when it began, and of that when it was through."""

import pytest

from mlxe_async.supervisor.checkpointing.solved import LongEpisode


class Log:
    def __init__(self):
        self.told = []

    def emit(self, event, role, index):
        self.told.append((role, index, event))


@pytest.fixture
def log():
    return Log()


def test_the_first_episode_that_is_long_enough_is_told_once(log):
    moments = iter(range(10))
    long_episode = LongEpisode(100, log, lambda: {"moment": next(moments)})
    first, second = long_episode.now(), long_episode.now()
    long_episode.ended(0, [99], 3, [first])
    long_episode.ended(1, [5, 100, 200], 4, [first, second, None])
    long_episode.ended(0, [500], 5, [first])
    [(role, index, event)] = log.told
    assert (role, index, event.length, event.version) == ("executor", 1, 100, 4)
    assert (event.began, event.ended) == ({"moment": 1}, {"moment": 2})
    assert long_episode.now() is None
