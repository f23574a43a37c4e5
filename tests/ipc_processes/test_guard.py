"""The guard: what it looks like, what it holds, what becomes of a nursery whose guard dies or lacks something."""

import os
import signal
from pathlib import Path

import leaks
import pytest
import weak_guard
from conftest import house

from mlxe_async.ipc.processes import nursery as nursery_module

SWEPT_WORDS = ("mlxe", "python", "nursery", "settings")


def shown(pid, what):
    return Path(f"/proc/{pid}/{what}").read_text().replace("\0", " ").strip()


def holds(pid):
    """What the descriptors of a process lead to."""
    return sorted(entry.readlink().name for entry in Path(f"/proc/{pid}/fd").iterdir())


def test_the_guard_is_found_by_no_word_of_the_command_and_the_nursery_is(run):
    async def main():
        async with house() as made:
            process = await made.process()
            guard, own = made.nursery.guard_pid, os.getpid()
            assert shown(guard, "comm") == f"guard-{own}"
            assert shown(guard, "cmdline") == f"guard-{own}: ends what process {own} leaves"
            assert not any(word in shown(guard, what) for word in SWEPT_WORDS for what in ("comm", "cmdline"))
            for pid in (made.nursery.pid, process.pid):
                assert "mlxe_async.ipc.processes.nursery_main" in shown(pid, "cmdline")
            assert made.nursery.weakness == ""

    run(main)


def test_the_guard_holds_no_channel_and_imports_nothing_large(run):
    async def main():
        async with house(["numpy"]) as made:
            await made.process()
            guard = made.nursery.guard_pid
            assert [name for name in holds(guard) if "socket" in name or "pipe" in name] == []
            assert len(holds(guard)) == 5  # 0, 1, 2, and those by which it watches two processes
            assert "numpy" not in shown(guard, "maps")

    run(main)


def test_the_guard_and_the_nursery_are_in_groups_of_their_own(run):
    async def main():
        async with house() as made:
            process = await made.process()
            os.killpg(made.nursery.pid, signal.SIGKILL)
            await process.heard.saw("started", 2)
            assert made.nursery.generation == 2

    run(main)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
def test_a_nursery_whose_guard_is_killed_ends_with_all_below_and_both_are_started_anew(run, is_stopped):
    async def main():
        async with house() as made:
            process = await made.process()
            started = [await process.call("grandchildren", session=session) for session in (False, True)]
            old = [made.nursery.pid, made.nursery.guard_pid, process.pid, *(facts["pid"] for facts in started)]
            died = made.nursery.died
            if is_stopped:
                os.kill(made.nursery.pid, signal.SIGSTOP)
            os.kill(made.nursery.guard_pid, signal.SIGKILL)
            await process.heard.saw("started", 2)
            assert (await died) == f"the guard (pid {old[1]}) of the nursery killed by signal 9 (SIGKILL)"
            assert all(leaks.gone(pid, 5) for pid in old)
            assert made.nursery.guard_pid != old[1]
            assert made.nursery.generation == 2
            assert await process.call("echo", a=1) == {"a": 1}

    run(main)


def test_a_nursery_that_dies_while_its_guard_is_stopped_is_replaced(run):
    async def main():
        async with house() as made:
            process = await made.process()
            pid = (await process.call("grandchildren", session=True))["pid"]
            guard = made.nursery.guard_pid
            os.kill(guard, signal.SIGSTOP)
            os.kill(made.nursery.pid, signal.SIGKILL)
            await process.heard.saw("started", 2)
            assert leaks.gone(guard, 0)
            assert leaks.gone(pid, 0)

    run(main)


def test_a_guard_that_never_ends_is_ended(run, monkeypatch):
    monkeypatch.setattr(nursery_module, "GUARD_LIMIT_S", 0.05)
    monkeypatch.setattr(nursery_module, "PROGRAM", weak_guard.ENDLESS)

    async def main():
        async with house() as made:
            process = await made.process()
            guard = made.nursery.guard_pid
            os.kill(made.nursery.pid, signal.SIGKILL)
            await process.heard.saw("started", 2)
            assert leaks.gone(guard, 0)

    run(main)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("NO_ADOPTION", "the guard cannot adopt orphans ([Errno 1] prctl(36): Operation not permitted); it finds them"),
        ("NO_FORK", "no process can be made for the guard: Resource temporarily unavailable"),
        ("NO_ADDRESS", "the guard cannot hide its command line from pkill -f"),
    ],
)
def test_what_a_guard_lacks_is_told_and_the_nursery_works(run, monkeypatch, program, words):
    monkeypatch.setattr(nursery_module, "PROGRAM", getattr(weak_guard, program))

    async def main():
        async with house() as made:
            process = await made.process()
            assert await process.call("echo", a=1) == {"a": 1}
            assert made.nursery.weakness.startswith(words)
            assert (made.nursery.pid == made.nursery.guard_pid) == (program == "NO_FORK")
            pid = (await process.call("grandchildren", session=True))["pid"]
            os.kill(made.nursery.pid, signal.SIGKILL)
            await process.heard.saw("started", 2)
            assert leaks.gone(pid, 5)

    run(main)


def test_a_guard_with_a_defect_leaves_nobody_behind_and_says_what_it_was(run, monkeypatch):
    monkeypatch.setattr(nursery_module, "PROGRAM", weak_guard.BROKEN)

    async def main():
        async with house() as made:
            died = made.nursery.died
            assert (await died).endswith("exited with code 70: ValueError: a defect of the guard")
            assert leaks.processes_after(5) == {}

    run(main)
