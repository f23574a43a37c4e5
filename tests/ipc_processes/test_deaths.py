"""A child that dies is noticed, named, and started again as long as its budget lasts."""

import asyncio
import os
import re
import signal

import leaks
import pytest
from conftest import house

from mlxe_async.errors import ProcessDied, ResourceError, RunFailed
from mlxe_async.ipc.messages.remote_error import RemoteError
from mlxe_async.ipc.processes import linux
from mlxe_async.ipc.processes.linux import Scheduling
from mlxe_async.ipc.processes.restarts import RestartPolicy

QUICK = {"backoff_s": 0.01, "backoff_max_s": 0.02}


def test_a_killed_child_comes_back_on_either_loop(run_both):
    async def main():
        async with house() as made:
            process = await made.process()
            first = process.pid
            with pytest.raises(
                ProcessDied, match=rf"mlxe-exe-0 \(pid {first}\) killed by signal 9 \(SIGKILL\) in 'end'"
            ):
                await process.call("end", how="SIGKILL")
            assert await process.call("echo", a=1) == {"a": 1}
            assert process.pid != first
            assert process.epoch == 2
            assert (await process.call("facts"))["spec"] == {"epoch": 2}
            told = [entry[0] for entry in process.heard.told]
            assert told == ["started", "exited", "restarting", "started"]

    run_both(main)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"])
def test_a_crash_is_named_and_its_stack_is_told(run, name):
    async def main():
        async with house() as made:
            process = await made.process()
            with pytest.raises(ProcessDied, match=name):
                await process.call("end", how="segv" if name == "SIGSEGV" else name)
            ((_, status, expected),) = process.heard.all("exited")
            assert (status.signal_name, status.code, expected) == (name, None, False)
            assert "entries.py" in status.stack
            assert "in end" in status.stack

    run(main)


def test_an_exit_with_code_0_is_a_death_unless_it_was_asked_for(run):
    async def main():
        async with house() as made:
            process = await made.process()
            with pytest.raises(ProcessDied, match="exited with code 0 in 'end' without being asked to"):
                await process.call("end", how="exit 0")
            assert await process.call("echo") == {}

    run(main)


def test_a_child_that_closes_all_its_descriptors_is_replaced(run):
    async def main():
        async with house() as made:
            process = await made.process()
            with pytest.raises(ProcessDied, match="exited with code 71"):
                await process.call("end", how="close all")
            assert await process.call("echo") == {}

    run(main)


@pytest.mark.parametrize("session", [False, True], ids=["group", "session"])
def test_what_a_child_had_started_dies_with_it_and_its_siblings_keep_theirs(run, session):
    async def main():
        async with house() as made:
            process, sibling = await made.process(), await made.process(name="mlxe-exe-1")
            theirs = (await sibling.call("grandchildren", session=session))["pid"]
            orphan = (await sibling.call("daemon"))["pid"]
            mine = [(await process.call("grandchildren", session=session))["pid"] for _ in range(3)]
            mine.append((await process.call("daemon"))["pid"])
            with pytest.raises(ProcessDied):
                await process.call("end", how="SIGKILL")
            assert all(leaks.gone(pid, 5) for pid in mine)
            await process.call("echo")
            assert not leaks.gone(theirs, 0)
            assert not leaks.gone(orphan, 0)

    run(main)


def test_before_start_runs_once_per_life_and_only_when_the_old_one_is_dead(run):
    async def main():
        async with house() as made:
            seen = []
            process = None

            def before_start(epoch):
                seen.append((epoch, process is None or process.pid is None or leaks.gone(process.pid, 0)))

            process = await made.process(before_start=before_start)
            for _ in range(2):
                with pytest.raises(ProcessDied):
                    await process.call("end", how="SIGKILL")
                await process.call("echo")
            assert seen == [(1, True), (2, True), (3, True)]

    run(main)


def test_the_page_of_a_dead_worker_is_cleared_before_the_next_starts(run):
    async def main():
        async with house() as made:
            process = await made.process()
            with pytest.raises(ProcessDied):
                await process.call("die_in_call")
            await process.call("echo")
            assert process.page.get("in_call_since_ns") == 0

    run(main)


def test_a_child_that_dies_too_often_ends_the_watch_and_every_call(run):
    async def main():
        async with house() as made:
            process = await made.process(policy=RestartPolicy(limit=2, **QUICK))
            for _ in range(3):
                with pytest.raises(ProcessDied):
                    await process.call("end", how="SIGKILL")
            with pytest.raises(RunFailed, match=r"mlxe-exe-0 died 3 times in 60 s; at last: .* signal 9"):
                await process.watcher
            with pytest.raises(ProcessDied, match="died 3 times"):
                await process.call("echo")
            assert [attempt for _, attempt in process.heard.all("restarting")] == [1, 2]

    run(main)


def test_progress_between_deaths_gives_the_budget_back(run):
    async def main():
        async with house() as made:
            process = await made.process(policy=RestartPolicy(limit=1, **QUICK))
            for _ in range(4):
                with pytest.raises(ProcessDied):
                    await process.call("end", how="SIGKILL")
                await process.call("echo")
                process.note_progress()
            assert process.epoch == 5

    run(main)


def test_a_start_that_fails_is_tried_again_within_the_budget(run):
    async def main():
        async with house() as made:
            process = await made.process("flaky", spec={"failures": 2}, policy=RestartPolicy(limit=2, **QUICK))
            assert process.epoch == 3
            first, *_ = process.heard.all("exited")
            assert "exited with code 70: RuntimeError: not yet (" in first[0]
            assert re.search(r"/\w+\.py:\d+\)$", first[0]), first[0]

    run(main)


def test_a_start_that_always_fails_fails_the_run_with_the_reason(run):
    async def main():
        async with house() as made:
            with pytest.raises(RunFailed, match=r"died 2 times .* RuntimeError: cannot be built"):
                await made.process("broken", policy=RestartPolicy(limit=1, **QUICK))
            with pytest.raises(RunFailed, match="no_such_entry"):
                await made.process("no_such_entry", policy=RestartPolicy(limit=0))

    run(main)


def test_a_mistake_of_the_user_is_raised_at_once(run):
    async def main():
        async with house() as made:
            with pytest.raises(RemoteError, match="no such environment") as caught:
                await made.process("unbuildable")
            assert caught.value.exit_code == 2
            assert caught.value.kind == "TaskError"

    run(main)


def test_a_child_that_never_shakes_hands_is_ended_and_shows_where_it_was(run, monkeypatch):
    async def main():
        async with house() as made:
            monkeypatch.setattr(linux, "scheduling", lambda pid: Scheduling(0, 0, ready=False))  # however full the host
            policy = RestartPolicy(limit=0, start_timeout_s=0.2, start_advice="; give it longer by a.key")
            process = await made.process("silent", policy=policy, started=False)
            with pytest.raises(
                RunFailed,
                match=r"has not shaken hands for 0\.2 s and was killed by signal 6.*; give it longer by a\.key",
            ):
                await process.start()
            assert "in silent" in process.heard.all("exited")[0][1].stack

    run(main)


def test_a_child_that_gets_no_core_has_longer_to_shake_hands(run, monkeypatch):
    async def main():
        async with house() as made:
            looks = []

            def waits_for_a_core(pid):
                looks.extend([pid] * (pid != made.nursery.pid))
                if len(looks) == 3:  # its start, and two times out
                    os.kill(pid, signal.SIGCONT)
                return Scheduling(0, 0, ready=True)

            monkeypatch.setattr(linux, "scheduling", waits_for_a_core)
            policy = RestartPolicy(limit=0, start_timeout_s=0.2)
            process = await made.process("stopped_at_first", policy=policy)
            monkeypatch.undo()
            assert await process.call("echo", a=1) == {"a": 1}
            assert process.epoch == 1

    run(main)


@pytest.mark.parametrize("entry", ["impostor", "prattler", "parrot"])
def test_a_child_that_does_not_keep_the_protocol_is_replaced(run, entry):
    async def main():
        async with house() as made:
            with pytest.raises(RunFailed, match="broke the protocol: a"):
                await made.process(entry, policy=RestartPolicy(limit=0))

    run(main)


@pytest.mark.parametrize("data", [b"Traceback (most recent", b'{"event": 1}\n', bytes(64)])
def test_garbage_on_the_control_channel_ends_the_child_and_is_quoted(run, data):
    async def main():
        async with house() as made:
            process = await made.process()
            with pytest.raises(ProcessDied, match=rf"broke the protocol.*{data[:4].hex()}.*SIGKILL"):
                await process.call("garbage", digits=data.hex())
            assert await process.call("echo") == {}

    run(main)


def test_a_child_that_does_not_read_is_ended(run):
    async def main():
        async with house() as made:
            process = await made.process()
            asleep = asyncio.create_task(process.call("sleep"))
            calls = [asyncio.create_task(process.call("echo", x="a" * 100_000)) for _ in range(10)]
            for call in (asleep, *calls):
                with pytest.raises(ProcessDied, match=r"does not read: .* in 'sleep'"):
                    await call
            assert await process.call("echo") == {}

    run(main)


def test_an_answer_sent_before_death_still_counts(run):
    async def main():
        async with house() as made:
            process = await made.process()
            answers = [asyncio.create_task(process.call("echo", i=i)) for i in range(50)]
            last = asyncio.create_task(process.call("end", how="SIGKILL"))
            assert [await answer for answer in answers] == [{"i": i} for i in range(50)]
            with pytest.raises(ProcessDied):
                await last

    run(main)


def test_processes_killed_together_all_come_back(run):
    async def main():
        async with house() as made:
            processes = [await made.process(name=f"mlxe-exe-{i}") for i in range(6)]
            for process in processes:
                os.kill(process.pid, signal.SIGKILL)
            for process in processes:
                await process.heard.saw("started", 2)
                assert await process.call("echo") == {}
            assert made.nursery.generation == 1

    run(main)


def test_without_a_watcher_calls_fail_at_once_instead_of_waiting_for_a_restart(run):
    async def main():
        async with house() as made:
            process = await made.process(watched=False)
            with pytest.raises(ProcessDied, match="died in 'end'"):
                await process.call("end", how="SIGKILL")
            with pytest.raises(ProcessDied, match="no task watches it"):
                await process.call("echo")
            watched = await made.process(name="mlxe-exe-1")
            busy = asyncio.create_task(watched.call("sleep"))
            await watched.page.looked(1)
            watched.watcher.cancel()
            await asyncio.wait([watched.watcher])
            os.kill(watched.pid, signal.SIGKILL)
            with pytest.raises(ProcessDied, match="died in 'sleep'"):
                await busy

    run(main)


def test_what_the_kernel_kills_for_memory_is_told_so_and_at_last_the_host_lacks_it(run, monkeypatch):
    async def main():
        async with house() as made:
            monkeypatch.setattr(made.nursery._oom_kills, "one_just_now", lambda: True)
            process = await made.process(policy=RestartPolicy(limit=1, **QUICK))
            os.kill(process.pid, signal.SIGKILL)
            sentence, status, _expected = await process.heard.saw("exited")
            assert status.for_memory
            assert sentence.endswith("killed by signal 9 (SIGKILL), by the kernel for lack of memory")
            await process.heard.saw("started", 2)
            os.kill(process.pid, signal.SIGKILL)
            with pytest.raises(ResourceError, match=r"for lack of memory \(tried 2 times in 60 s\)"):
                await process.watcher

    run(main)
