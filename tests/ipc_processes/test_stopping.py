"""Stopping: ask, terminate, kill, reap. Whatever happens, and whenever it is cancelled, nothing is left behind."""

import asyncio
import functools
import os
import signal
import time

import leaks
import pytest
from conftest import HERE, Recorder, house

from mlxe_async.errors import MlxeError, ProcessDied
from mlxe_async.ipc.processes.nursery import Nursery
from mlxe_async.ipc.processes.process import Process


def test_a_child_that_is_asked_closes_its_roles_and_leaves_with_code_0(run_both, tmp_path):
    async def main():
        async with house() as made:
            process = await made.process("tidy", spec={"path": str(tmp_path / "closed")})
            await process.stop()
            ((sentence, status, expected),) = process.heard.all("exited")
            assert sentence.endswith("exited with code 0")
            assert (status.code, expected) == (0, True)
            assert (tmp_path / "closed").read_text() == "yes"
            await process.watcher
            assert process.heard.all("restarting") == []

    run_both(main)


@pytest.mark.parametrize("entry", ["stubborn", "echo"])
def test_a_child_that_does_not_leave_is_killed(run, entry):
    async def main():
        async with house() as made:
            process = await made.process(entry)
            busy = asyncio.create_task(process.call("sleep"))
            await process.page.looked(1)
            await process.stop(0.1)
            assert leaks.gone(process.pid, 0)
            assert process.heard.all("exited")[0][1].signal_name == "SIGKILL"
            with pytest.raises(ProcessDied, match="SIGKILL"):
                await busy

    run(main)


def test_threads_and_exit_hooks_that_never_end_do_not_delay_the_exit(run):
    async def main():
        async with house() as made:
            process = await made.process()
            await process.call("linger")
            await process.stop(20)
            assert process.heard.all("exited")[0][1].code == 0

    run(main)


def test_without_grace_a_child_is_killed_at_once(run):
    async def main():
        async with house() as made:
            process = await made.process()
            await process.stop(0)
            assert process.heard.all("exited")[0][1].signal_name == "SIGKILL"

    run(main)


def test_a_simulator_may_tidy_up_when_its_child_is_terminated(run, tmp_path):
    async def main():
        async with house() as made:
            process = await made.process()
            await process.call("simulator", path=str(tmp_path / "tidied"))
            busy = asyncio.create_task(process.call("sleep"))
            await process.page.looked(1)
            await process.stop(0.1)
            assert (tmp_path / "tidied").exists()
            with pytest.raises(ProcessDied):
                await busy

    run(main)


def test_stop_may_be_called_twice_and_before_the_start(run):
    async def main():
        async with house() as made:
            process = await made.process()
            await asyncio.gather(process.stop(), process.stop())
            await process.stop()
            assert len(process.heard.all("exited")) == 1
            never = await made.process(started=False)
            await never.stop()
            with pytest.raises(ProcessDied, match="is stopped"):
                await never.call("echo")

    run(main)


def test_a_child_that_is_still_starting_can_be_stopped(run):
    async def main():
        async with house() as made:
            process = await made.process("silent", started=False)
            starting = asyncio.create_task(process.start())
            await process.page.looked(1)
            await process.stop()
            await starting
            assert leaks.gone(process.pid, 0)

    run(main)


def test_a_child_that_died_just_now_is_reaped_by_the_stop(run):
    async def main():
        async with house() as made:
            process = await made.process(watched=False)
            pid = process.pid
            os.kill(pid, signal.SIGKILL)
            await process.stop()
            assert pid not in leaks.all_pids()
            assert process.heard.all("exited")[0][2] is True

    run(main)


def test_stopping_the_nursery_ends_children_nobody_stopped(run):
    async def main():
        async with house() as made:
            process = await made.process()
            grandchild = (await process.call("daemon"))["pid"]
            pid = process.pid
            await made.nursery.stop()
            assert leaks.gone(pid, 0)
            assert leaks.gone(grandchild, 0)
            assert made.nursery_exits[0][2] is True

    run(main)


class CancelledAt:
    """Await a coroutine, but cancel the task when it suspends for the `turn`-th time."""

    def __init__(self, work, turn):
        self.work, self.turn, self.reached = work, turn, False

    def __await__(self):
        steps = self.work.__await__()
        answer = functools.partial(next, steps)
        for turn in range(1_000_000):
            try:
                waits_for = answer()
            except StopIteration as done:
                return done.value
            if turn == self.turn:
                self.reached = True
                asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 handed on
                answer = functools.partial(steps.throw, error)
            else:
                answer = functools.partial(next, steps)


async def _life_of_a_run(crash):
    nursery = Nursery()
    process = Process(lambda: nursery, "mlxe-exe-0", "entries:echo", lambda epoch: {}, listener=Recorder())
    try:
        await nursery.start([], [HERE])
        async with asyncio.TaskGroup() as group:
            await process.start()
            watch = group.create_task(process.run())
            await process.call("grandchildren")
            if crash:
                try:
                    await process.call("end", how="SIGKILL")
                except ProcessDied:
                    await process.call("echo")
            watch.cancel()
    finally:
        try:
            await process.stop()
        finally:
            await nursery.stop()


@pytest.mark.parametrize("crash", [False, pytest.param(True, marks=pytest.mark.long)], ids=["quiet", "crash"])
def test_a_run_cancelled_at_any_moment_leaves_nothing_behind(run, crash):
    async def cancelled_at(turn):
        run_ = CancelledAt(_life_of_a_run(crash), turn)
        task = asyncio.ensure_future(_await(run_))
        await asyncio.wait([task])
        assert task.cancelled() == run_.reached or isinstance(task.exception(), MlxeError), task
        assert leaks.processes_after(1.0) == {}  # what is killed is seen for as long as the kernel takes to end it
        return run_.reached

    async def main():
        turn = 0
        while await cancelled_at(turn):
            turn += 1
        assert turn > 5

    run(main)


async def _await(awaitable):
    return await awaitable


@pytest.mark.parametrize("is_woken", [True, False])
def test_a_nursery_that_was_stopped_holds_up_no_end(run, is_woken):
    async def main():
        async with house() as made:
            process = await made.process(watched=False)
            daemon = (await process.call("daemon"))["pid"]
            nursery = made.nursery.pid
            os.kill(nursery, signal.SIGSTOP)
            if is_woken:
                made.nursery.wake()
            began = time.monotonic()
            await process.stop(5.0)
            took_s = time.monotonic() - began
            # How it ended only the nursery knows; that it is dead is known without.
            assert leaks.gone(process.pid, 0)
            assert ("in an unknown way" in process.death) != is_woken
            await made.nursery.stop()
            assert leaks.gone(nursery, 0)
            assert leaks.gone(daemon, 5)
            return took_s

    took_s = run(main)
    assert took_s < 5.0, "the nursery's answer was waited for"
