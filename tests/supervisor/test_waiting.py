"""Work that is given up for a stop, but not before it had a moment; and what ticks together."""

import asyncio

import pytest
from virtual_time import in_virtual_time

from mlxe_async.supervisor.waiting import at_the_end, every, to_the_end, unless_stopped
from mlxe_async.ticks import TICK_S


async def work(done, gate=None, error=None):
    if gate is not None:
        await gate.wait()
    if error is not None:
        raise error
    done.append("work")


def run(main):
    return asyncio.run(asyncio.wait_for(main, 30))


def test_work_that_comes_to_its_end_needs_no_stop():
    async def main():
        done = []
        return await unless_stopped(work(done), asyncio.Event().wait(), 0.0), done

    assert run(main()) == (True, ["work"])


def test_after_a_stop_it_is_given_up():
    async def main():
        done, stop = [], asyncio.Event()
        stop.set()
        return await unless_stopped(work(done, asyncio.Event()), stop.wait(), 0.01), done

    assert run(main()) == (False, [])


def test_what_ends_in_its_last_moment_counts():
    async def main():
        done, gate, stop = [], asyncio.Event(), asyncio.Event()
        stop.set()
        asyncio.get_running_loop().call_soon(gate.set)
        return await unless_stopped(work(done, gate), stop.wait(), 20.0), done

    assert run(main()) == (True, ["work"])


def test_what_it_raises_is_raised():
    async def main():
        await unless_stopped(work([], error=ZeroDivisionError("x")), asyncio.Event().wait(), 0.0)

    with pytest.raises(ZeroDivisionError):
        run(main())


async def ticked(seconds, begun_after, times):
    """The loop's time at each tick, and when it began."""
    loop, found = asyncio.get_running_loop(), []
    await asyncio.sleep(begun_after)
    began = loop.time()
    async for _ in every(seconds):
        found.append(loop.time())
        if len(found) == times:
            break
    return began, found


@pytest.mark.parametrize("seconds", [0.2, 0.25, 0.5, 1.0, 2.0, 10.0])
def test_what_is_begun_at_different_times_ticks_together_and_as_often_as_asked(seconds):
    for begun_after in (0.0, 0.013, 0.0999, 0.1001, 0.17):
        (began, found), _ = in_virtual_time(ticked(seconds, begun_after, 40))
        assert all(abs(at / TICK_S - round(at / TICK_S)) < 1e-6 for at in found)
        between = [later - at for at, later in zip([began, *found], found, strict=False)]
        assert all(one > 0 and abs(one - seconds) <= TICK_S / 2 + 1e-9 for one in between)


def test_what_ticks_more_often_has_its_own_time():
    (began, found), _ = in_virtual_time(ticked(0.05, 0.013, 10))
    assert found == pytest.approx([began + 0.05 * (1 + tick) for tick in range(10)])


async def cancelled_in(awaiting, seconds=0.0):
    """What became of a task that was cancelled while it awaited work to its end, and whether that came to it."""
    came, begun = [], asyncio.Event()

    async def work():
        begun.set()
        await asyncio.sleep(seconds)
        came.append(True)
        return 7

    async def caller():
        return await awaiting(work())

    task = asyncio.create_task(caller())
    await begun.wait()
    task.cancel()
    return (await asyncio.gather(task, return_exceptions=True))[0], came


def test_a_cancellation_meanwhile_is_not_forgotten():
    found, came = asyncio.run(cancelled_in(to_the_end))
    assert came == [True]
    assert isinstance(found, asyncio.CancelledError)


def test_at_the_end_of_a_run_the_result_counts():
    assert asyncio.run(cancelled_in(at_the_end)) == (7, [True])


def test_an_error_of_the_work_counts_more():
    async def fails():
        raise ValueError("seven")

    async def main():
        task = asyncio.create_task(to_the_end(fails()))
        await asyncio.sleep(0)
        task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    assert isinstance(asyncio.run(main()), ValueError)
