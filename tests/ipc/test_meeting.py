"""Workers exchange numbers in shared memory: all get what all gave, or all hear that one is no more."""

import contextlib
import os
import random
import signal
import threading
import time

import numpy as np
import pytest

from mlxe_async.errors import AttemptBroken, StepsDiffer
from mlxe_async.ipc.shared.meeting import Meeting, declare_broken, meeting_bytes
from mlxe_async.ipc.shared.segments import Segment

KINDS, SLOT = ("gradient", "end"), 4096


@pytest.fixture
def exchange():
    with Segment.create("exchange", meeting_bytes(3, SLOT)) as segment:
        yield segment


def member(segment, index, workers=3, **how):
    return Meeting(segment, index, workers, kinds=KINDS, slot_bytes=SLOT, **how)


def together(segment, work, workers=3):
    """Have each worker do something in a thread; what each came to, or raised."""
    found = [None] * workers

    def run(index):
        meeting = member(segment, index, workers)
        meeting.begin(1)
        try:
            found[index] = work(index, meeting)
        except Exception as error:  # noqa: BLE001 - it is what is asked for
            found[index] = error
        finally:
            meeting.release()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_each_gets_what_all_gave_in_their_order(exchange):
    def work(index, meeting):
        told = []
        for step in range(50):
            given = np.full(3, 100 * step + index, np.float32)
            told.append([one.tolist() for one in meeting.give("gradient", given)()])
        return told

    found = together(exchange, work)
    assert found[0] == [[[100.0 * step + index] * 3 for index in range(3)] for step in range(50)]
    assert found[1] == found[2] == found[0]


def test_what_was_given_stays_until_the_next_exchange_however_slow_a_reader_is(exchange):
    """The fast ones may be one exchange ahead, and write to the other slot."""
    slow = threading.Event()

    def work(index, meeting):
        first = meeting.give("gradient", np.full(4, index + 1.0))()
        if index == 2:
            slow.wait(20)
            return [one.tolist() for one in first]
        given = threading.Thread(target=slow.set)
        given.start()
        meeting.give("gradient", np.full(4, -1.0))()
        given.join()
        return []

    def lazy(index, meeting):
        found = work(index, meeting)
        if index == 2:
            meeting.give("gradient", np.full(4, -1.0))()
        return found

    assert together(exchange, lazy)[2] == [[1.0] * 4, [2.0] * 4, [3.0] * 4]


def test_another_kind_or_length_is_told_to_all(exchange):
    def work(index, meeting):
        return meeting.give("end" if index == 1 else "gradient", np.zeros(2 + (index == 1)))()

    first, second, third = together(exchange, work)
    assert isinstance(first, StepsDiffer)
    assert "worker 0 gave gradient of 16 bytes, worker 1 end of 24 bytes" in str(first)
    assert "worker 1 gave end of 24 bytes, worker 0 gradient of 16 bytes" in str(second)
    assert "worker 2 gave gradient of 16 bytes, worker 1 end of 24 bytes" in str(third)


def test_more_than_a_slot_holds_is_refused(exchange):
    with pytest.raises(ValueError, match="expected at most 4096 bytes, got 4104"):
        member(exchange, 0).give("gradient", np.zeros(513))()


def test_who_waits_for_one_that_is_gone_hears_it_and_the_next_attempt_begins_anew(exchange):
    waits = threading.Event()

    @contextlib.contextmanager
    def waiting():
        waits.set()
        yield

    def first(attempt, found):
        meeting = member(exchange, 0, 2, waiting=waiting)
        meeting.begin(attempt)
        try:
            found.append([one.tolist() for one in meeting.give("gradient", np.ones(1))()])
        except AttemptBroken as error:
            found.append(str(error))
        meeting.release()

    found = []
    alone = threading.Thread(target=first, args=(1, found))
    alone.start()
    assert waits.wait(20)
    declare_broken(exchange, 1)
    alone.join(20)
    assert found == ["worker 0: worker 1 is no more, or has given up"]
    again = threading.Thread(target=first, args=(2, found))
    again.start()
    other = member(exchange, 1, 2)
    other.begin(2)
    assert [one.tolist() for one in other.give("gradient", np.full(1, 2.0))()] == [[1.0], [2.0]]
    again.join(20)
    other.release()
    assert found[1] == [[1.0], [2.0]]


def test_an_attempt_that_is_whole_is_not_broken_afterwards(exchange):
    """All have given: a worker that looks later takes it, whatever was declared meanwhile."""
    one, other = member(exchange, 0, 2), member(exchange, 1, 2)
    for meeting in (one, other):
        meeting.begin(1)
    taker = threading.Thread(target=lambda: one.give("gradient", np.ones(1))())
    taker.start()
    other.give("gradient", np.ones(1))()
    taker.join(20)
    declare_broken(exchange, 1)
    late = threading.Thread(target=lambda: one.give("end", np.ones(1))())
    other._words.set(other._tags[1][1], 1 << 40 | 8)
    other._words.set(other._given[1], 1 << 32 | 2)
    late.start()
    late.join(20)
    assert not late.is_alive()
    one.release()
    other.release()


def attempt_in_a_child(segment, attempt, steps, told):
    """A worker in a process of its own, which tells by a pipe that it has begun."""
    pid = os.fork()
    if pid:
        return pid
    try:
        meeting = member(segment, 1, 2)
        meeting.begin(attempt)
        os.write(told, b"b")
        for step in range(steps):
            meeting.give("gradient", np.full(300, 2.0 * step))()
        os._exit(0)
    except AttemptBroken:
        os._exit(3)
    finally:
        os._exit(1)


@pytest.mark.parametrize(
    "kills", [pytest.param(40, marks=pytest.mark.long), pytest.param(1000, marks=pytest.mark.slow)]
)
def test_a_worker_that_is_killed_tears_nothing_and_nothing_hangs(kills):
    """A worker is killed at a random moment of an attempt; the other hears it, and the attempt is made again."""
    chance, attempt, steps, ended = random.Random(0), 0, 200, 0  # noqa: S311 - chooses a moment, guards no secret
    reading, told = os.pipe()
    with Segment.create("exchange", meeting_bytes(2, SLOT)) as segment:
        meeting = member(segment, 0, 2)
        for _ in range(kills):
            attempt += 1
            pid = attempt_in_a_child(segment, attempt, steps, told)
            assert os.read(reading, 1) == b"b"

            after = 0.004 * chance.random()

            def kill(pid=pid, attempt=attempt, after=after):
                time.sleep(after)  # the moment is what is chosen
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                declare_broken(segment, attempt)

            killer = threading.Thread(target=kill)
            killer.start()
            meeting.begin(attempt)
            try:
                for step in range(steps):
                    mine, theirs = meeting.give("gradient", np.full(300, 1.0 * step))()
                    assert (mine == step).all()
                    assert (theirs == 2 * step).all()
                ended += 1
            except AttemptBroken:
                pass
            killer.join()
        meeting.release()
    os.close(reading)
    os.close(told)
    assert ended < kills
