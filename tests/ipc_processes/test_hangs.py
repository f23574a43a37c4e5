"""A child that hangs is judged from shared memory, shows its stack, and is replaced; a slow one is not."""

import asyncio
import os
import signal

import pytest
from conftest import house

from mlxe_async.errors import ProcessDied


@pytest.mark.parametrize("how", ["sleep", "gil"])
def test_a_hang_is_told_with_the_stack_it_hangs_in(run, how):
    async def main():
        async with house() as made:
            process = await made.process()
            with pytest.raises(ProcessDied, match=r"s over its limit in 'hang' and was killed by signal 6 \(SIGABRT\)"):
                await process.call("hang", how=how)
            ((stuck_s, stack),) = process.heard.all("hang")
            assert stuck_s > 0
            assert "in hang" in stack
            assert [entry[0] for entry in process.heard.told][1:3] == ["hang", "exited"]
            assert await process.call("echo") == {}
            assert process.epoch == 2

    run(main)


def test_a_stopped_child_is_killed_although_it_cannot_show_its_stack(run_both):
    async def main():
        async with house() as made:
            process = await made.process()
            with pytest.raises(ProcessDied, match=r"over its limit in 'hang' and was killed by signal 9"):
                await process.call("hang", how="stop")
            assert process.heard.all("hang")[0][1] == ""
            assert await process.call("echo") == {}

    run_both(main)


def test_a_child_stopped_for_less_than_its_limit_goes_on(run):
    async def main():
        async with house() as made:
            process = await made.process()
            os.kill(process.pid, signal.SIGSTOP)
            call = asyncio.create_task(process.call("limited", limit_s=30))
            await process.page.looked(3)
            os.kill(process.pid, signal.SIGCONT)
            assert await call == {}
            assert process.heard.all("hang") == []

    run(main)


def test_a_long_call_without_a_limit_is_nobodys_business(run):
    async def main():
        async with house() as made:
            process = await made.process()
            call = asyncio.create_task(process.call("sleep"))
            await process.page.looked(3)
            assert process.alive
            assert process.heard.all("hang") == []
            call.cancel()

    run(main)


def test_others_go_on_while_one_hangs(run):
    async def main():
        async with house() as made:
            stuck, other = await made.process(), await made.process(name="mlxe-exe-1")
            hanging = asyncio.create_task(stuck.call("hang", how="gil"))
            while not hanging.done():
                await other.call("echo")
            with pytest.raises(ProcessDied):
                await hanging
            assert other.epoch == 1

    run(main)
