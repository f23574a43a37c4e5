"""The learner gets a core of its own where that pays, and gives it up where it does not; nobody else is moved."""

import os
import signal
import subprocess
import sys

import pytest

from mlxe_async.supervisor.monitoring import affinity
from mlxe_async.supervisor.monitoring.affinity import Affinity, Load, pays

CORES = os.sched_getaffinity(0)
several = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores to choose from")


class Told:
    """A log that remembers what it was told."""

    def __init__(self):
        self.events = []

    def emit(self, event):
        self.events.append(event)


@pytest.fixture
def family():
    """A learner and two executors that sleep, pid -> name."""
    names = ("mlxe-lrn", "mlxe-exe-0", "mlxe-exe-1")
    children = [subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) for _ in names]
    yield {child.pid: name for child, name in zip(children, names, strict=True)}
    for child in children:
        child.send_signal(signal.SIGKILL)
        child.wait()


@pytest.fixture
def clock(monkeypatch):
    """Processes that have worked as much as the test says, and a machine that was as busy."""

    class Clock:
        def __init__(self):
            self.now, self.busy, self.spent, self.starved = 0.0, 0.0, {}, {}

        def passes(self, shares, foreign=0.0, starved=None):
            self.now += 1.0
            for pid, share in (starved or {}).items():
                self.starved[pid] = self.starved.get(pid, 0.0) + share
            for pid, share in shares.items():
                self.spent[pid] = self.spent.get(pid, 0.0) + share
            self.busy += sum(shares.values()) + foreign

    made = Clock()
    monkeypatch.setattr(affinity.time, "monotonic", lambda: made.now)
    monkeypatch.setattr(affinity, "process_seconds", lambda pid: made.spent.get(pid, 0.0))
    monkeypatch.setattr(affinity, "starved_seconds", lambda pid: made.starved.get(pid, 0.0))
    monkeypatch.setattr(affinity, "_busy_seconds", lambda _cores: made.busy)
    return made


@pytest.mark.parametrize(
    ("load", "gets", "keeps"),
    [
        (Load(0.95, 0.6, 0.0), True, True),
        (Load(0.7, 0.6, 0.0), False, True),  # it waits now and then
        (Load(0.5, 0.6, 0.0), False, False),  # it has time to spare
        (Load(0.95, 0.9, 0.0), False, True),  # the others fill what is left, and could use more
        (Load(0.95, 0.99, 0.0), False, True),  # all cores are full
        (Load(0.8, 0.99, 0.0), False, False),
        (Load(0.8, 0.85, 0.0, 0.15), True, True),  # it is ready to run, but an executor has its place
        (Load(0.6, 0.85, 0.0, 0.15), False, False),
        (Load(0.8, 0.95, 0.0, 0.15), False, True),
        (Load(0.95, 0.3, 0.15), False, True),  # somebody else is at work, too
        (Load(0.95, 0.3, 0.5), False, False),
    ],
)
def test_a_core_of_its_own_pays_while_all_wait_for_the_learner_and_fit_elsewhere(load, gets, keeps):
    assert pays(load, 2, already=False) is gets
    assert pays(load, 2, already=True) is keeps


def test_with_more_cores_the_others_may_use_more():
    assert pays(Load(0.95, 2.3, 0.0), 4, already=False)
    assert not pays(Load(0.95, 2.8, 0.0), 4, already=False)


@several
def test_the_learner_is_kept_apart_while_it_pays_and_not_at_once_again(family, clock):
    told = Told()
    kept = Affinity("auto", lambda: family, told)
    learner, one, other = family
    busy, idle = {learner: 0.95, one: 0.3, other: 0.3}, {learner: 0.2, one: 0.3, other: 0.3}
    clock.passes(busy)
    kept.look()
    assert kept.own is None  # one look is not enough
    clock.passes(busy)
    kept.look()
    assert kept.own in CORES
    assert os.sched_getaffinity(learner) == {kept.own}
    assert os.sched_getaffinity(one) == os.sched_getaffinity(other) == CORES - {kept.own}
    assert os.sched_getaffinity(0) == CORES  # who asked for the run is not moved
    for _ in range(2):
        clock.passes(idle)
        kept.look()
    assert kept.own is None
    assert all(os.sched_getaffinity(pid) == CORES for pid in family)
    for _ in range(9):
        clock.passes(busy)
        kept.look()
        assert kept.own is None
    for _ in range(3):
        clock.passes(busy)
        kept.look()
    assert kept.own is not None
    assert [event.core is None for event in told.events] == [False, True, False]
    assert told.events[0].learner == pytest.approx(0.95)
    assert told.events[0].others == pytest.approx(0.6)


@several
def test_a_learner_that_is_ready_without_a_core_gets_one_as_soon_as_one_that_fills_it(family, clock):
    told = Told()
    kept = Affinity("auto", lambda: family, told)
    learner, one, other = family
    for starved in ({one: 0.3}, {learner: 0.2}, {learner: 0.2}):  # an executor may wait
        assert kept.own is None
        clock.passes({learner: 0.75, one: 0.4, other: 0.4}, starved=starved)
        kept.look()
    assert kept.own is not None
    assert told.events[0].starved == pytest.approx(0.2)


@several
def test_who_is_new_goes_where_it_belongs_and_who_is_gone_is_forgotten(family, clock):
    living = dict(family)
    kept = Affinity(True, lambda: living, Told())
    learner, one, other = family
    gone = living.pop(other)
    for _ in range(2):
        clock.passes({learner: 0.1})
        kept.look()
    assert os.sched_getaffinity(one) == CORES - {kept.own}
    assert os.sched_getaffinity(other) == CORES
    living[other] = gone
    for _ in range(2):
        clock.passes({learner: 0.1})
        kept.look()
    assert os.sched_getaffinity(other) == CORES - {kept.own}
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    living[dead.pid] = "mlxe-exe-2"
    for _ in range(2):
        clock.passes({learner: 0.1})
        kept.look()  # not an error
    assert kept.own is not None


def test_without_a_learner_of_its_own_or_with_one_core_nobody_is_moved(family, monkeypatch):
    told = Told()
    learner, *others = family
    alone = Affinity(True, lambda: {pid: family[pid] for pid in others}, told)
    with monkeypatch.context() as patched:
        patched.setattr(affinity.os, "sched_getaffinity", lambda _pid: {0})
        single = Affinity(True, lambda: family, told)
    for kept in (alone, single):
        for _ in range(3):
            kept.look()
        assert kept.own is None
    assert not told.events
    assert os.sched_getaffinity(learner) == CORES


def test_the_machine_says_what_its_cores_have_worked_and_where_a_process_was_last():
    before = affinity._busy_seconds(CORES)
    assert before > 0
    assert affinity._busy_seconds(set()) == 0
    assert affinity._busy_seconds(CORES) >= before
    assert affinity._last_core(os.getpid()) in CORES
    assert affinity._last_core(2**22 + 1) == -1
