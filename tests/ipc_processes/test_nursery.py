"""The nursery: what a forked child looks like, and what the nursery keeps and gives back."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys

import leaks
import pytest
from conftest import HERE, house

from mlxe_async.errors import ForkRefused, ProcessDied, ResourceError, RunFailed
from mlxe_async.ipc.messages.channel import MAX_FDS
from mlxe_async.ipc.messages.loop_channel import UNSENT_LIMIT
from mlxe_async.ipc.processes import nursery_main
from mlxe_async.ipc.processes.nursery import ExitStatus, Nursery
from mlxe_async.ipc.processes.restarts import RestartPolicy


async def died(forked):
    """Wait for a forked child's death."""
    loop, dead = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(forked.pidfd, dead.set)
    await dead.wait()
    loop.remove_reader(forked.pidfd)


async def fork(nursery, entry="silent", **more):
    """A child that is given descriptors it needs but whose channel nobody reads."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fds = {"channel": theirs.fileno(), "stack": theirs.fileno()}
        return await nursery.fork("mlxe-x", f"entries:{entry}", {}, fds, **more)


def test_a_child_is_a_process_of_its_own_with_nothing_it_was_not_given(run):
    async def main():
        async with house() as made:
            facts = await (await made.process(oom_score_adj=500)).call("facts")
            assert facts["group"] == facts["pid"]
            assert facts["parent"] == made.nursery.pid
            assert facts["name"] == "mlxe-exe-0"
            assert facts["omp"] == "1"
            assert facts["oom"] == 500
            assert facts["threads"] == 1
            assert facts["spec"] == {"epoch": 1}
            # 0 to 2, the file for stacks, the page as given and as mapped, and the channel
            null, stack, page = "/dev/null", "/memfd", "/memfd"
            assert facts["fds"] == sorted([null, null, null, stack, page, page, "socket"])
            assert "asyncio" not in facts["modules"]
            assert "torch" not in facts["modules"]

    run(main)


def test_a_fork_that_the_kernel_refuses_names_the_limit_and_is_tried_again(run):
    async def main():
        async with house(["refuses_forks"], env={"REFUSED_FORKS": "3"}) as made:
            with pytest.raises(ForkRefused, match=r"^mlxe-x cannot be forked: Resource temporarily .*raise the limit"):
                await fork(made.nursery)
            process = await made.process()
            assert len(process.heard.all("restarting")) == 2
            assert (await process.call("facts"))["spec"] == {"epoch": 3}

    run(main)


def test_a_host_that_keeps_refusing_forks_is_no_failure_of_the_run(run):
    async def main():
        async with house(["refuses_forks"], env={"REFUSED_FORKS": "9"}) as made:
            process = await made.process(started=False, watched=False, policy=RestartPolicy(limit=2, backoff_s=0.01))
            with pytest.raises(ResourceError, match=r"mlxe-exe-0 cannot be forked: .* \(tried 3 times in 60 s\)"):
                await process.start()
            assert process.heard.all("exited") == []

    run(main)


@contextlib.contextmanager
def room_for(count):
    """This process can open no more than `count` further files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filler = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (filler[0] + 64 + count, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                filler.append(os.dup(0))
        for _ in range(count):
            os.close(filler.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in filler:
            os.close(fd)


def test_without_room_for_descriptors_nothing_is_half_started_and_the_limit_is_named(run):
    refused = r"{} cannot be started: Too many open files; this process may have \d+ descriptors \(ulimit -n\)"

    async def main():
        async with house() as made:
            first = await made.process(name="mlxe-exe-1")
            for count in range(4):
                process = await made.process(started=False, watched=False, policy=RestartPolicy(limit=0))
                with room_for(count), pytest.raises(ResourceError, match=refused.format("mlxe-exe-0")):
                    await process.start()
            process = await made.process(started=False, watched=False, policy=RestartPolicy(limit=0))
            with room_for(4):
                await process.start()
            assert first.alive
            assert made.nursery.generation == 1
        for count in range(6):
            nursery = Nursery()
            with room_for(count), pytest.raises(ResourceError, match=refused.format("the nursery")):
                await nursery.start()
            await nursery.stop()

    run(main)


def test_more_children_than_the_channel_has_room_for_are_forked_in_turn(run):
    async def main():
        async with house(["slow_to_import"]) as made:
            letter = {"letter": "x" * 30_000}
            names = [f"mlxe-exe-{number}" for number in range(20)]
            children = [await made.process(name=name, spec=letter, started=False, watched=False) for name in names]
            assert len(children) * len(letter["letter"]) > UNSENT_LIMIT + 212_992  # which the kernel keeps by default
            await asyncio.gather(*(child.start() for child in children))
            assert [child.epoch for child in children] == [1] * len(children)
            assert made.nursery.generation == 1

    run(main)


def test_a_child_gets_more_descriptors_than_one_message_takes(run):
    async def main():
        async with house() as made:
            ours, theirs = socket.socketpair()
            with ours, theirs:
                many = {f"page-{number}": theirs.fileno() for number in range(2 * MAX_FDS)}
                stack = {"channel": theirs.fileno(), "stack": theirs.fileno()}
                for _ in range(2):
                    forked = await made.nursery.fork("mlxe-x", "entries:held", {}, {**stack, **many})
                    await died(forked)
                    assert ours.recv(1000).endswith(b'{"descriptors":506}')
                    forked.close()

    run(main)


def test_descriptors_that_were_handed_over_in_vain_are_not_mistaken_for_others(run):
    async def main():
        async with house() as made:
            await made.nursery.preload([])
            os.kill(made.nursery.pid, signal.SIGSTOP)
            try:
                await fork_without_room(made.nursery)
            finally:
                os.kill(made.nursery.pid, signal.SIGCONT)
            assert (await (await made.process()).call("facts"))["spec"] == {"epoch": 1}
            assert made.nursery.generation == 1

    async def fork_without_room(nursery):
        """Fill the channel but for one message of descriptors; the copies that the next ones need cannot be made."""
        nothing = {"id": 0, "do": "drop", "count": 0, "why": "x" * 100_000}
        ours, theirs = socket.socketpair()
        with ours, theirs:
            many = {f"page-{number}": theirs.fileno() for number in range(MAX_FDS + 10)}
            with room_for(MAX_FDS + 5):
                for _ in range(3):
                    nursery._life.channel.send(nothing)
                with pytest.raises(ForkRefused, match="mlxe-x cannot be started: Too many open files"):
                    await nursery.fork("mlxe-x", "entries:silent", {}, many)

    run(main)


def test_what_a_child_executes_gets_no_descriptor_of_ours(run):
    async def main():
        async with house() as made:
            assert await (await made.process()).call("inherited") == "{0: '/dev/null', 1: 'pipe', 2: 'pipe'}"

    run(main)


def test_the_users_folders_come_behind_pythons_own_library_and_the_working_directory_not_at_all(run, monkeypatch):
    async def main():
        async with house() as made:
            path = (await (await made.process()).call("facts"))["path"]
            library = next(i for i, entry in enumerate(path) if entry.endswith("lib-dynload"))
            installed = next(i for i, entry in enumerate(path) if entry.endswith("site-packages"))
            assert library < path.index(HERE) < installed
            assert "" not in path

    run(main)


def test_modules_are_imported_before_the_fork_and_failures_are_told(run):
    async def main():
        async with house(["colorsys", "no_such_module"]) as made:
            facts = await (await made.process()).call("facts")
            assert "colorsys" in facts["modules"]
            assert made.nursery.failures["no_such_module"]["kind"] == "ModuleNotFoundError"
            assert await made.nursery.preload(["exits_at_import"]) == {
                "exits_at_import": made.nursery.failures["exits_at_import"]
            }
            assert made.nursery.failures["exits_at_import"]["kind"] == "SystemExit"
            ((pid, seconds, generation),) = made.nursery_starts
            assert (pid, generation) == (made.nursery.pid, 1)
            assert seconds > 0

    run(main)


def test_the_nursery_and_its_children_ignore_the_signals_of_a_terminal(run):
    async def main():
        async with house() as made:
            process = await made.process()
            await process.call("disarm")
            await process.page.looked(3)
            await process.call("echo")
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(made.nursery.pid, number)
                os.kill(process.pid, number)
            assert await process.call("echo", a=1) == {"a": 1}
            assert process.epoch == 1
            assert made.nursery.generation == 1

    run(main)


def test_what_a_child_starts_can_be_terminated_although_the_child_cannot(run):
    async def main():
        async with house() as made:
            process = await made.process()
            assert await process.call("terminated", how="exec") == -signal.SIGTERM
            assert await process.call("terminated", how="fork") == signal.SIGTERM

    run(main)


def test_output_goes_to_the_file_even_when_it_is_not_text(run, tmp_path):
    async def main():
        path = tmp_path / "out"
        async with house() as made:
            process = await made.process(stdout_path=str(path))
            await process.call("printing", text="hello \udcff")
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.read_bytes() == b"hello \\udcff\n\xff raw\n"

    run(main)


@pytest.mark.parametrize("piece", [nursery_main.OUTPUT_LIMIT, 4_849_663])
def test_output_beyond_its_limit_is_moved_aside_once(tmp_path, monkeypatch, piece):
    # The kernel may copy fewer bytes than it was asked for.
    whole = os.sendfile
    monkeypatch.setattr(os, "sendfile", lambda out, source, at, count: whole(out, source, at, min(count, piece)))
    path = tmp_path / "out"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"a" * nursery_main.OUTPUT_LIMIT + b"b")
        nursery_main._rotate(path)
        writer.write(b"c")
        nursery_main._rotate(path)
    assert path.read_bytes() == b"c"
    old = (tmp_path / "out.1").read_bytes()
    assert len(old) == nursery_main.OUTPUT_LIMIT
    assert old.endswith(b"b")


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGKILL, ExitStatus(None, 9)), (signal.SIGSEGV, ExitStatus(None, 11)), (34, ExitStatus(None, 34))],
)
def test_a_dead_child_stays_until_it_is_reaped_and_its_status_is_told(run, number, status):
    async def main():
        async with house() as made:
            child = await fork(made.nursery)
            child.signal(number)
            await died(child)
            assert child.pid in leaks.all_pids()
            assert await made.nursery.reap(child) == status
            assert child.pid not in leaks.all_pids()
            assert await made.nursery.reap(child) == status
            child.close()
            child.close()

    run(main)


def test_statuses_read_as_sentences():
    assert ExitStatus(3, None).sentence == "exited with code 3"
    assert ExitStatus(None, 9).sentence == "killed by signal 9 (SIGKILL)"
    assert ExitStatus(None, 40).sentence == "killed by signal 40 (signal 40)"
    assert ExitStatus(None, None).sentence == "ended in an unknown way"
    assert ExitStatus(None, 9, with_nursery=True).sentence == "killed with the nursery it was forked from"


def test_a_child_forked_for_a_caller_who_was_cancelled_is_ended(run):
    async def main():
        async with house() as made:
            asking = asyncio.create_task(fork(made.nursery))
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            # Answers come in order: once this is answered, the other was, too; and it was killed and reaped.
            await made.nursery.preload([])
            await made.nursery.preload([])
            assert leaks.processes_after(5, but=[made.nursery.pid, made.nursery.guard_pid]) == {}

    run(main)


def test_a_request_the_nursery_cannot_fulfil_is_refused_and_harms_nobody(run):
    async def main():
        async with house() as made:
            process = await made.process()
            with pytest.raises(ProcessDied, match="is not a child"):
                await made.nursery._ask({"do": "reap", "pid": 1})
            with pytest.raises(ProcessDied, match="unknown request 'dance'"):
                await made.nursery._ask({"do": "dance"})
            assert await process.call("echo", a=1) == {"a": 1}

    run(main)


def test_an_interpreter_that_cannot_be_started_fails_the_run(run, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")

    async def main():
        nursery = Nursery()
        with pytest.raises(RunFailed, match="nonexistent"):
            await nursery.start()
        await nursery.stop()

    run(main)


def test_a_nursery_that_was_never_started_or_is_stopped_forks_nobody(run):
    async def main():
        nursery = Nursery()
        await nursery.stop()
        with pytest.raises(ProcessDied, match="stopped"):
            await fork(nursery)
        await nursery.start()
        pid = nursery.pid
        await nursery.stop()
        await nursery.stop()
        assert leaks.gone(pid, 0)
        with pytest.raises(ProcessDied, match="stopped"):
            await fork(nursery)

    run(main)
