"""Roles with threads of their own: at work at the same time, answered apart, ended together."""

import asyncio
import os
import signal

import pytest
from conftest import house

from mlxe_async.errors import ProcessDied
from mlxe_async.ipc.messages.remote_error import RemoteError


def test_they_work_at_the_same_time_and_their_messages_do_not_mix(run):
    async def main():
        async with house() as made:
            process = await made.process("threads")
            calls = [process.call("meet", role=side, times=50) for side in ("left", "right")]
            assert await asyncio.gather(*calls) == [{"thread": "left"}, {"thread": "right"}]
            said = [message["notice"]["thread"] for (message,) in process.heard.all("notice")]
            assert (said.count("left"), said.count("right")) == (50, 50)

    run(main)


def test_requests_to_one_role_are_answered_in_turn_and_the_others_do_not_wait_for_them(run):
    async def main():
        async with house() as made:
            process = await made.process("threads")
            first = asyncio.ensure_future(process.call("meet", role="left"))
            second = asyncio.ensure_future(process.call("echo", role="left", a=1))
            # The left thread waits for the right one; the main thread does not.
            assert await process.call("echo", role="main", a=2) == {"a": 2}
            assert not first.done()
            assert not second.done()
            await process.call("meet", role="right")
            assert await first == {"thread": "left"}
            assert await second == {"a": 1}

    run(main)


def test_what_a_thread_raises_comes_back_and_the_thread_lives_on(run):
    async def main():
        async with house() as made:
            process = await made.process("threads")
            for how in ("value", "exit", "interrupt"):
                with pytest.raises(RemoteError):
                    await process.call("fail", role="left", how=how)
            assert await process.call("echo", role="left", a=1) == {"a": 1}
            with pytest.raises(RemoteError, match="no role 'middle' here"):
                await process.call("echo", role="middle")

    run(main)


@pytest.mark.parametrize("how", ["fatal", "killed", "hangs"])
def test_what_ends_one_thread_for_good_ends_all_and_all_callers_hear_of_it(run, how):
    async def main():
        async with house() as made:
            process = await made.process("threads")
            waiting = asyncio.ensure_future(process.call("sleep", role="right"))
            # Once a later request is answered, the first has reached this life, not the next.
            await process.call("echo", role="left", a=0)
            if how == "fatal":
                with pytest.raises(RemoteError, match="the device is lost"):
                    await process.call("fail", role="left", how="fatal")
            elif how == "hangs":
                with pytest.raises(ProcessDied, match="over its limit"):
                    await process.call("hang", role="left", how="sleep")
                ((stack,),) = process.heard.all("hang_stack")
                assert "in hang" in stack
                assert "in sleep" in stack
            else:
                os.kill(process.pid, signal.SIGKILL)
            with pytest.raises(ProcessDied):
                await waiting
            assert await process.call("echo", role="left", a=1) == {"a": 1}
            assert process.epoch == 2

    run(main)


def test_asked_to_stop_it_lets_what_is_under_way_finish_and_closes_its_roles_in_reverse(run, tmp_path):
    async def main():
        async with house() as made:
            process = await made.process("threads", spec={"path": str(tmp_path / "closed")})
            calls = [asyncio.ensure_future(process.call("meet", role=side, times=20)) for side in ("left", "right")]
            await process.call("echo", role="main")
            await process.stop(20.0)
            assert await asyncio.gather(*calls) == [{"thread": "left"}, {"thread": "right"}]
            ((sentence, status, expected),) = process.heard.all("exited")
            assert (status.code, expected) == (0, True), sentence
            assert (tmp_path / "closed").read_text().split() == ["right", "left"]

    run(main)


def test_a_thread_in_the_middle_of_something_endless_does_not_delay_the_end(run):
    async def main():
        async with house() as made:
            process = await made.process("threads")
            busy = asyncio.ensure_future(process.call("sleep", role="left"))
            await process.call("echo", role="main")
            await process.stop(0.1)
            assert process.heard.all("exited")[0][1].signal_name == "SIGKILL"
            with pytest.raises(ProcessDied):
                await busy

    run(main)
