"""Calling verbs: results, exceptions, notices, several roles in one process."""

import asyncio
import os
import re
import select
import signal

import pytest
from conftest import house

from mlxe_async.errors import ProcessDied, ProtocolError
from mlxe_async.ipc.messages.remote_error import RemoteError
from mlxe_async.ipc.processes.birth import TEXT_LIMIT
from mlxe_async.ipc.processes.restarts import RestartPolicy


def test_a_verb_is_answered_on_either_loop(run_both):
    async def main():
        async with house() as made:
            process = await made.process()
            assert await process.call("echo", a=[1, None, "x"]) == {"a": [1, None, "x"]}
            assert process.alive
            assert process.epoch == 1
            assert process.facts == {"epoch": 1}
            assert [fact[0] for fact in process.heard.all("started")] == [process.pid]

    run_both(main)


def test_calls_made_at_once_are_answered_in_turn(run):
    async def main():
        async with house() as made:
            process = await made.process()
            answers = await asyncio.gather(*(process.call("echo", i=i) for i in range(200)))
            assert answers == [{"i": i} for i in range(200)]

    run(main)


def test_one_process_serves_several_roles_by_name(run):
    async def main():
        async with house() as made:
            process = await made.process("pair")
            assert (await process.call("facts", role="left"))["spec"] == {"side": "left"}
            assert (await process.call("facts", role="right"))["spec"] == {"side": "right"}
            for role in (None, "middle"):
                with pytest.raises(RemoteError, match=r"no role .* here, there are \['left', 'right'\]"):
                    await process.call("echo", role=role)

    run(main)


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("value", "ValueError", "xxx"),
        ("rude", "Rude", "<cannot be shown: RuntimeError>"),
        ("exit", "SystemExit", "3"),
        ("interrupt", "KeyboardInterrupt", "KeyboardInterrupt()"),
        ("eof", "EOFError", "the simulator hung up"),
        ("loop", "RuntimeError", "its own cause"),
    ],
)
def test_whatever_a_verb_raises_comes_back_as_text_and_the_process_lives_on(run, how, kind, message):
    async def main():
        async with house() as made:
            process = await made.process()
            with pytest.raises(RemoteError) as caught:
                await process.call("fail", how=how)
            assert caught.value.kind == kind
            assert caught.value.message.startswith(message)
            assert "in fail" in caught.value.trace or how == "rude"
            assert len(caught.value.message) <= TEXT_LIMIT + 100
            assert len(caught.value.trace) <= TEXT_LIMIT + 100
            assert caught.value.exit_code == 3
            assert await process.call("echo", a=1) == {"a": 1}
            assert process.epoch == 1

    run(main)


def test_our_own_errors_bring_their_attributes_and_exit_code(run):
    async def main():
        async with house() as made:
            process = await made.process()
            with pytest.raises(RemoteError) as caught:
                await process.call("fail", how="fault")
            details = caught.value.details
            assert (details["phase"], details["env_index"], details["seed"], details["step"]) == ("step", 3, 7, 12)
            with pytest.raises(RemoteError) as caught:
                await process.call("fail", how="task")
            assert caught.value.exit_code == 2

    run(main)


def test_an_exception_marked_fatal_is_told_and_ends_the_process(run):
    async def main():
        async with house() as made:
            process = await made.process()
            with pytest.raises(RemoteError, match="the device is lost") as caught:
                await process.call("fail", how="fatal")
            assert caught.value.fatal
            await process.heard.saw("started", 2)
            ((sentence, status, expected),) = process.heard.all("exited")
            assert re.search(
                r"exited with code 70 in 'fail': Fatal: the device is lost \(\S+entries\.py:\d+\)$", sentence
            )
            assert (status.code, expected) == (70, False)
            assert await process.call("echo") == {}

    run(main)


def test_a_result_that_is_not_plain_json_is_an_error_of_that_call_only(run):
    async def main():
        async with house() as made:
            process = await made.process()
            with pytest.raises(RemoteError, match="cannot be framed"):
                await process.call("unsayable")
            assert await process.call("echo") == {}

    run(main)


def test_arguments_that_cannot_be_sent_are_refused_on_this_side(run):
    async def main():
        async with house() as made:
            process = await made.process()
            for bad in (float("nan"), "x" * 2_000_000, object()):
                with pytest.raises(ProtocolError, match="cannot be framed"):
                    await process.call("echo", a=bad)
            assert await process.call("echo") == {}

    run(main)


@pytest.mark.parametrize("verb", ["_secret", "no_such_verb", "spec"])
def test_only_public_methods_are_verbs(run, verb):
    async def main():
        async with house() as made:
            process = await made.process()
            with pytest.raises(RemoteError, match=f"Echo has no verb '{verb}'"):
                await process.call(verb)

    run(main)


def test_notices_come_in_order_before_the_answer(run):
    async def main():
        async with house() as made:
            process = await made.process()
            await process.call("notices", count=100)
            assert process.heard.all("notice") == [({"notice": {"i": i}},) for i in range(100)]

    run(main)


def test_a_call_that_was_cancelled_does_not_confuse_the_next(run):
    async def main():
        async with house() as made:
            process = await made.process()
            for _ in range(20):
                calling = asyncio.create_task(process.call("echo", a="old"))
                await asyncio.sleep(0)
                calling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await calling
                assert await process.call("echo", a="new") == {"a": "new"}

    run(main)


def test_calls_wait_for_the_first_start_and_for_a_restart(run):
    async def main():
        async with house() as made:
            process = await made.process(started=False)
            early = asyncio.create_task(process.call("echo", a=1))
            await process.start()
            assert await early == {"a": 1}
            with pytest.raises(ProcessDied):
                await process.call("end", how="SIGKILL")
            assert not process.alive
            assert await process.call("echo", a=2) == {"a": 2}
            assert process.epoch == 2

    run(main)


def test_a_call_whose_turn_comes_after_the_death_is_answered_by_the_next_life(run):
    async def main():
        async with house() as made:
            process = await made.process()
            late = asyncio.create_task(process.call("facts"))
            os.kill(process.pid, signal.SIGKILL)
            # Nobody else has a turn before the death can be seen, as on a busy host.
            with select.epoll() as poll:
                poll.register(process.pidfd, select.EPOLLIN)
                assert poll.poll(30)
            facts = await late
            assert process.epoch == 2
            assert facts["pid"] == process.pid

    run(main)


def test_a_call_to_a_stopped_process_says_so(run):
    async def main():
        async with house() as made:
            process = await made.process()
            await process.stop()
            with pytest.raises(ProcessDied, match="mlxe-exe-0 is stopped"):
                await process.call("echo")

    run(main)


def test_a_listener_that_raises_ends_the_watch_with_its_error(run):
    async def main():
        async with house() as made:
            process = await made.process()

            def notice(process, message):
                raise LookupError("not in the listener's book")

            process.heard.notice = notice
            await process.call("notices", count=1)
            with pytest.raises(LookupError, match="book"):
                await process.watcher

    run(main)


def test_a_notice_that_the_listener_refuses_ends_the_child(run):
    async def main():
        async with house() as made:
            process = await made.process()

            def notice(process, message):
                raise ProtocolError("nobody knows this notice")

            process.heard.notice = notice
            with pytest.raises(ProcessDied, match="nobody knows this notice"):
                await process.call("notices", count=3)
            assert await process.call("echo") == {}

    run(main)


def test_a_limit_on_calls_is_kept_by_the_page(run):
    async def main():
        async with house() as made:
            process = await made.process(policy=RestartPolicy(call_limit_s=0.2, backoff_s=0.01))
            assert await process.call("echo") == {}
            with pytest.raises(ProcessDied, match=r"over its limit in 'sleep'"):
                await process.call("sleep")
            assert await process.call("echo") == {}

    run(main)
