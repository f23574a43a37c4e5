"""Work that is given up for a stop, but not before it had a moment."""

import asyncio

import pytest

from mlxe_async.supervisor.waiting import unless_stopped


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
