"""When the nursery dies all children go with it; one new nursery is started and everybody comes back through it."""

import asyncio
import os
import signal

import leaks
import pytest
from conftest import house

from mlxe_async.errors import OutOfMemory, ProcessDied, ResourceError, RunFailed
from mlxe_async.ipc.processes import linux
from mlxe_async.ipc.processes import nursery as nursery_module
from mlxe_async.ipc.processes.linux import Scheduling


def test_all_children_come_back_through_one_new_nursery(run_both):
    async def main():
        async with house(["colorsys"]) as made:
            processes = [await made.process(name=f"mlxe-exe-{i}") for i in range(3)]
            old = [process.pid for process in processes]
            died = made.nursery.died
            calls = [asyncio.create_task(process.call("sleep")) for process in processes]
            for process in processes:
                await process.page.looked(1)
            os.kill(made.nursery.pid, signal.SIGKILL)
            for call in calls:
                with pytest.raises(ProcessDied, match="killed with the nursery it was forked from"):
                    await call
            assert all(leaks.gone(pid, 0) for pid in old)
            assert "killed by signal 9 (SIGKILL)" in await died
            for process in processes:
                facts = await process.call("facts")
                assert "colorsys" in facts["modules"]
                assert facts["parent"] == made.nursery.pid
                assert process.heard.all("restarting") == [(0.0, 0)]
            assert made.nursery.generation == 2
            assert [generation for _, _, generation in made.nursery_starts] == [1, 2]
            assert [expected for _, _, expected in made.nursery_exits] == [False]

    run_both(main)


@pytest.mark.parametrize("how", ["group", "session", "daemon"])
def test_what_the_children_had_started_dies_too(run, how):
    async def main():
        async with house() as made:
            process = await made.process()
            verb, args = ("daemon", {}) if how == "daemon" else ("grandchildren", {"session": how == "session"})
            pid = (await process.call(verb, **args))["pid"]
            os.kill(made.nursery.pid, signal.SIGKILL)
            await process.heard.saw("started", 2)
            assert leaks.gone(pid, 5)

    run(main)


def test_a_nursery_that_dies_while_it_imports_is_replaced(run):
    async def main():
        async with house(["slow_to_import"]) as made:
            starting = asyncio.create_task(made.process())
            await asyncio.sleep(0)
            os.kill(made.nursery.pid, signal.SIGKILL)
            process = await starting
            assert await process.call("echo", a=1) == {"a": 1}
            assert made.nursery.generation == 2

    run(main)


def test_a_nursery_that_does_not_answer_is_replaced(run, monkeypatch):
    monkeypatch.setattr(nursery_module, "ANSWER_LIMIT_S", 0.5)

    async def main():
        async with house() as made:
            process = await made.process()
            os.kill(made.nursery.pid, signal.SIGSTOP)
            os.kill(process.pid, signal.SIGKILL)
            await process.heard.saw("started", 2)
            assert await process.call("echo", a=1) == {"a": 1}
            assert made.nursery.generation == 2

    run(main)


def test_a_nursery_that_gets_no_core_is_given_longer(run, monkeypatch):
    looks = []

    def waits_for_a_core(pid):
        looks.append(pid)
        if len(looks) == 4:  # before and after each of two limits
            os.kill(pid, signal.SIGCONT)
        return Scheduling(0, 0, ready=True)

    async def main():
        async with house() as made:
            await made.process()  # it imports no longer
            monkeypatch.setattr(nursery_module, "ANSWER_LIMIT_S", 0.2)
            monkeypatch.setattr(nursery_module, "GRACE_S", 0.0)
            monkeypatch.setattr(linux, "scheduling", waits_for_a_core)
            os.kill(made.nursery.pid, signal.SIGSTOP)
            process = await made.process(name="mlxe-exe-1")
            assert (made.nursery.generation, looks[:4]) == (1, [made.nursery.pid] * 4)
            assert await process.call("echo", a=1) == {"a": 1}

    run(main)


def test_a_nursery_is_given_longer_while_it_imports(run, monkeypatch):
    monkeypatch.setattr(nursery_module, "ANSWER_LIMIT_S", 0.0)
    monkeypatch.setattr(nursery_module, "GRACE_S", 0.0)

    async def main():
        async with house() as made:
            importing = asyncio.create_task(made.nursery.preload(["slow_to_import"]))
            await asyncio.sleep(0)
            process = await made.process()
            assert (made.nursery.generation, await importing) == (1, {})
            assert process.alive

    run(main)


@pytest.mark.parametrize(
    ("for_memory", "error", "told"),
    [
        (False, RunFailed, "the nursery died 2 times"),
        (True, ResourceError, "the nursery died 2 times in 60 s, at last killed by the kernel for lack of memory"),
    ],
)
def test_a_nursery_that_dies_too_often_fails_the_run(run, monkeypatch, for_memory, error, told):
    monkeypatch.setattr(nursery_module.OomKills, "one_just_now", lambda _self: for_memory)

    async def main():
        async with house() as made:
            made.nursery._restart_limit = 1
            process = await made.process()
            os.kill(made.nursery.pid, signal.SIGKILL)
            await process.heard.saw("started", 2)
            os.kill(made.nursery.pid, signal.SIGKILL)
            with pytest.raises(error, match=told):
                await process.watcher
            with pytest.raises(ProcessDied, match=told):
                await process.call("echo")

    run(main)


def test_the_last_words_of_a_nursery_are_told(run):
    async def main():
        async with house() as made:
            died = made.nursery.died
            await made.nursery.preload(["colorsys"])
            made.nursery._life.channel._sock.send(b"this is not a frame")
            assert "exited with code 70: mlxe_async.errors.ProtocolError: not a control frame" in await died

    run(main)


def test_a_nursery_that_is_killed_for_memory_is_told_as_a_lack_of_it(run, monkeypatch):
    monkeypatch.setattr(nursery_module.OomKills, "one_just_now", lambda _self: True)

    async def main():
        async with house() as made:
            process = await made.process()
            # A stopped nursery cannot answer before it is killed.
            os.kill(made.nursery.pid, signal.SIGSTOP)
            call = asyncio.create_task(made.nursery.preload(["colorsys"]))
            await asyncio.sleep(0)
            os.kill(made.nursery.pid, signal.SIGKILL)
            with pytest.raises(
                OutOfMemory, match=r"killed by signal 9 .SIGKILL., by the kernel for lack of memory"
            ) as told:
                await call
            assert told.value.exit_code == ResourceError.exit_code
            assert (await process.call("facts"))["parent"] == made.nursery.pid

    run(main)
