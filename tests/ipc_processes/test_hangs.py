"""A child that hangs is judged from shared memory, shows its stack, and is replaced; a slow one is not."""

import asyncio
import os
import signal

import leaks
import pytest
from conftest import house

from mlxe_async.errors import ProcessDied, RunFailed
from mlxe_async.ipc.processes.restarts import RestartPolicy


@pytest.mark.parametrize("how", ["sleep", "gil"])
def test_a_hang_is_told_with_the_stack_it_hangs_in(run, how):
    async def main():
        async with house() as made:
            process = await made.process()
            with pytest.raises(
                ProcessDied,
                match=r"over its limit in 'hang' \(\d\.\d s of [\d.]+ s\) and was killed by signal 6 \(SIGABRT\)",
            ):
                await process.call("hang", how=how)
            ((hang,),) = process.heard.all("hang")
            assert (hang.call, hang.limit_s) == ("step", 0.2)
            assert hang.stuck_s > 0
            assert "in hang" in process.heard.all("hang_stack")[0][0]
            assert [entry[0] for entry in process.heard.told][1:4] == ["hang", "hang_stack", "exited"]
            assert await process.call("echo") == {}
            assert process.epoch == 2

    run(main)


def test_a_stopped_child_is_woken_to_show_its_stack_and_ends(run_both):
    async def main():
        async with house() as made:
            process = await made.process()
            with pytest.raises(
                ProcessDied, match=r"over its limit in 'hang' \(.*\) and was killed by signal 6 \(SIGABRT\)"
            ):
                await process.call("hang", how="stop")
            assert "in hang" in process.heard.all("hang_stack")[0][0]
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


def test_a_hang_is_told_before_its_stack_is_waited_for(run):
    async def main():
        async with house() as made:
            process = await made.process()
            call = asyncio.create_task(process.call("hang", how="deaf"))
            (hang,) = await process.heard.saw("hang")
            assert not leaks.gone(process.pid, 0)
            assert hang.call == "step"
            with pytest.raises(ProcessDied, match="killed by signal 9"):
                await call
            assert process.heard.all("hang_stack") == []

    run(main)


def test_a_worker_that_owes_an_answer_and_does_not_move_hangs_in_what_it_says_or_was_asked_for(run):
    async def main():
        async with house() as made:
            process = await made.process(policy=RestartPolicy(backoff_s=0.01, silence_s=0.3))
            for says, call in (("act", "act"), ("", "brood")):
                with pytest.raises(ProcessDied, match="over its limit in 'brood'"):
                    await process.call("brood", says=says)
                (hang,) = process.heard.all("hang")[-1]
                assert (hang.call, hang.limit_s) == (call, 0.3)
            assert "in brood" in process.heard.all("hang_stack")[-1][0]

    run(main)


def test_a_process_that_hangs_in_each_life_is_given_up_whatever_progress_it_makes(run):
    async def main():
        async with house() as made:
            process = await made.process(policy=RestartPolicy(limit=2, backoff_s=0.01))
            for _ in range(3):
                await process.call("echo")
                process.note_progress()
                with pytest.raises(ProcessDied, match="over its limit in 'hang'"):
                    await process.call("hang", how="sleep")
            with pytest.raises(RunFailed, match=r"mlxe-exe-0 hung in 3 lives in a row, .* expected at most 2"):
                await process.watcher
            assert len(process.heard.all("restarting")) == 2

    run(main)


def test_a_process_that_never_shakes_hands_is_given_up_however_long_that_takes(run):
    async def main():
        async with house() as made:
            # Each death is older than the window when the next one comes.
            policy = RestartPolicy(limit=1, window_s=0.1, backoff_s=0.01, start_timeout_s=0.2)
            with pytest.raises(RunFailed, match=r"hung in 2 lives in a row.*has not shaken hands for 0.2 s"):
                await made.process("silent", policy=policy)

    run(main)
