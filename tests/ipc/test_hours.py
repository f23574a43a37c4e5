"""A process is in one mode at every moment, and the supervisor reads how long it was in each."""

import pytest

from mlxe_async.ipc.shared import hours, words
from mlxe_async.ipc.shared.hours import NUMBERS, ROOM, STARTING, WAITING, Hours
from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage, ProgressPages


@pytest.fixture
def clock(monkeypatch):
    """A clock of nanoseconds that goes on by itself only where it is told to."""

    class Clock:
        now = 10**9

        def monotonic_ns(self):
            return self.now

        def go(self, seconds):
            self.now += round(seconds * 1e9)

    one = Clock()
    monkeypatch.setattr(hours, "time", one)
    monkeypatch.setattr(words, "time", one)
    return one


def test_all_time_is_in_some_mode_from_the_beginning_on(clock):
    one = Hours(bytearray(hours.NBYTES), 0)
    one.begin()
    clock.go(0.5)
    assert one.switch(WAITING) == STARTING
    clock.go(2)
    assert one.switch(ROOM) == WAITING
    clock.go(0.25)
    assert one.seconds() == {"starting": 0.5, "waiting": 2.0, "room": 0.25}
    clock.go(0.25)
    one.switch(WAITING)
    clock.go(1)
    assert one.seconds() == {"starting": 0.5, "waiting": 3.0, "room": 0.5}


def test_before_it_is_begun_and_after_it_was_cleared_nothing_is_counted(clock):
    one = Hours(bytearray(hours.NBYTES), 0)
    clock.go(1)
    one.switch(WAITING)
    clock.go(1)
    assert one.seconds() == {}
    one.begin()
    clock.go(1)
    one.clear()
    clock.go(1)
    assert one.seconds() == {}


def test_calls_are_modes_and_what_was_before_comes_after_them(clock):
    page = ProgressPage(bytearray(PAGE_BYTES))
    page.hours.begin()
    page.hours.switch(NUMBERS["acting"])
    clock.go(1)
    page.enter(5.0, "step")
    clock.go(2)
    page.leave()
    clock.go(0.5)
    page.enter(5.0)  # a request's limit is no mode
    clock.go(0.5)
    page.enter(5.0, "reset")
    clock.go(4)
    page.enter(5.0, "step")  # one call after the other, without a leave
    clock.go(1)
    page.leave()
    page.leave()
    clock.go(1)
    assert page.hours.seconds() == {"acting": 3.0, "stepping": 3.0, "resetting": 4.0}


def test_modes_within_modes_end_also_by_an_error(clock):
    page = ProgressPage(bytearray(PAGE_BYTES))
    page.hours.begin()
    page.hours.switch(NUMBERS["gathering"])

    def fail():
        with page.spending("publishing"):
            clock.go(1)
            raise ValueError("full")

    with pytest.raises(ValueError, match="full"):
        fail()
    clock.go(2)
    assert page.hours.seconds() == {"publishing": 1.0, "gathering": 2.0}


def test_lives_are_added_up_for_each_page_and_what_lies_between_them_is_nobodys(clock):
    buffer = bytearray(2 * PAGE_BYTES)
    pages = ProgressPages([ProgressPage(buffer), ProgressPage(buffer, PAGE_BYTES)])
    worker = ProgressPage(buffer, PAGE_BYTES)
    for _ in range(2):
        pages.clear()
        clock.go(1)
        worker.hours.switch(WAITING)
        clock.go(2)
        pages.end()
        pages.end()
        clock.go(10)
    assert pages.seconds() == [{"starting": 6.0}, {"starting": 2.0, "waiting": 4.0}]
    pages.clear()
    clock.go(1)
    assert pages.seconds()[1] == {"starting": 3.0, "waiting": 4.0}


def test_a_number_that_is_no_mode_counts_as_some(clock):
    buffer = bytearray(hours.NBYTES)
    one = Hours(buffer, 0)
    one.begin()
    memoryview(buffer).cast("Q")[0] = 99
    clock.go(1)
    assert sum(one.seconds().values()) == 1.0
