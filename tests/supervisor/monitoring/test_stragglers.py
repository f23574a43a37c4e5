"""Who the others wait for is named; who merely has a long episode is not."""

from dataclasses import dataclass

from mlxe_async.supervisor.monitoring.stragglers import LOOK_S, Stragglers


@dataclass
class Worker:
    """An executor and its progress page in one."""

    index: int
    at_work: tuple[int, int] | None = (1, 0)
    progress: int = 0
    pace: float = 250.0

    def pulse(self):
        return self.progress, 0


class Told:
    def __init__(self):
        self.events = []

    def emit(self, event, role, idx):
        self.events.append((idx, event))


def look(workers, seconds, paces, watch=None, began_s=100.0, change=lambda at_s, workers: None):
    """Let time pass while the executors take so many steps a look; what was told."""
    told = Told()
    watch = watch or Stragglers(workers, workers, told, envs=1)
    watch._log = told
    for number in range(round(seconds / LOOK_S) + 1):
        watch.look(began_s + number * LOOK_S)
        change(number * LOOK_S, workers)
        for worker, pace in zip(workers, paces, strict=True):
            worker.progress += pace if worker.at_work else 0
    return told.events, watch


def test_who_stands_still_is_named_once():
    events, _ = look([Worker(0), Worker(1)], 4.0, [0, 50])
    ((index, event),) = events
    assert (index, event.rows) == (0, 0)
    assert event.waited_s >= 1.0


def test_who_is_as_fast_as_the_others_is_not_named():
    assert look([Worker(0), Worker(1), Worker(2)], 20.0, [40, 50, 60])[0] == []


def test_who_is_slow_all_the_time_is_named_by_its_rate():
    events, _ = look([Worker(0), Worker(1), Worker(2)], 8.0, [5, 50, 60])
    assert [index for index, _ in events] == [0]
    assert 0 < events[0][1].rows < 200


def deliver(at_s, workers):
    """The others deliver after a second; the first one's episode goes on."""
    for worker in workers[1:]:
        worker.at_work = None if at_s >= 1.0 else worker.at_work


def test_who_is_waited_for_alone_is_named_if_it_is_slower():
    events, _ = look([Worker(0), Worker(1)], 5.0, [10, 50], change=deliver)
    assert [index for index, _ in events] == [0]
    assert look([Worker(0), Worker(1)], 5.0, [50, 50], change=deliver)[0] == []


def test_standing_still_together_names_nobody():
    assert look([Worker(0), Worker(1)], 10.0, [0, 0])[0] == []


def test_the_supervisors_own_sleep_names_nobody():
    workers = [Worker(0), Worker(1)]
    _, watch = look(workers, 2.0, [50, 50])
    workers[1].progress += 50
    assert look(workers, 0.4, [50, 50], watch, began_s=200.0)[0] == []


def test_the_first_rollout_of_a_life_says_nothing_about_what_is_usual():
    def rounds(at_s, workers):
        """The second one stands still for two seconds of its first rollout; then the first one does."""
        if at_s < 2.0:
            workers[1].progress = 0
        elif at_s > 3.0:
            workers[1].at_work = (1, 1)
            workers[0].progress -= 50

    events, _ = look([Worker(0), Worker(1)], 5.0, [50, 50], change=rounds)
    assert [index for index, _ in events] == [1, 0]
