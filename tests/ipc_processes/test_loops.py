"""The supervisor's side works in any loop and any thread, again and again, and keeps nothing between runs."""

import asyncio
import gc
import os
import signal
import threading

import leaks
import pytest
from conftest import LOOPS, house, run_on

from mlxe_async.errors import ProcessDied


async def one_run():
    async with house() as made:
        process = await made.process()
        with pytest.raises(ProcessDied):
            await process.call("end", how="SIGKILL")
        return await process.call("echo", a=1)


@pytest.mark.parametrize("loop", list(LOOPS))
def test_runs_one_after_the_other_leave_as_many_descriptors_and_threads_as_before(loop):
    before = len(leaks.descriptors()), leaks.threads()
    for _ in range(3):
        assert run_on(loop, one_run) == {"a": 1}
        gc.collect()  # the test's own mapped pages
        assert (len(leaks.descriptors()), leaks.threads()) == before


@pytest.mark.parametrize("loop", list(LOOPS))
def test_runs_at_the_same_time_do_not_meet(loop):
    async def main():
        assert await asyncio.gather(one_run(), one_run()) == [{"a": 1}, {"a": 1}]

    run_on(loop, main)


@pytest.mark.parametrize("loop", list(LOOPS))
def test_a_run_in_a_thread_needs_no_signal_handlers(loop):
    results = []
    thread = threading.Thread(target=lambda: results.append(run_on(loop, one_run)))
    thread.start()
    thread.join()
    assert results == [{"a": 1}]


def test_the_nursery_outlives_the_thread_that_started_it_as_long_as_the_supervisor_lives(run):
    # The kernel's parent-death signal comes when the thread ends; the nursery asks again before it believes it.
    async def main():
        async with house() as made:
            process = await made.process()
            os.kill(made.nursery.pid, signal.SIGCONT)
            assert await process.call("echo", a=1) == {"a": 1}
            with pytest.raises(ProcessDied):
                await process.call("end", how="SIGKILL")
            assert await process.call("echo", a=1) == {"a": 1}
            assert made.nursery.generation == 1

    run(main)


def test_no_signal_handler_is_changed(run):
    numbers = signal.valid_signals() - {signal.SIGINT}  # asyncio.Runner borrows this one
    before = {number: signal.getsignal(number) for number in numbers}

    async def main():
        async with house() as made:
            await made.process()
            return {number: signal.getsignal(number) for number in numbers}

    assert run(main) == before
