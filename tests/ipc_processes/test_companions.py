"""A companion looks on: it lives beside a run, ends with it, and changes nothing for it."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import leaks
import pytest

from mlxe_async.errors import ResourceError
from mlxe_async.ipc.processes import companion, companion_main
from mlxe_async.ipc.processes.companion import Companion

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))


class Told:
    """Hears a companion, and lets a test wait for it."""

    def __init__(self, entry, spec=None):
        self.lines, self.ends = asyncio.Queue(), asyncio.Queue()
        self.companion = Companion(
            "t-companion",
            f"companions:{entry}",
            spec or {},
            on_told=self.lines.put_nowait,
            on_ended=self.ends.put_nowait,
        )
        self.companion.start()
        self.pid = self.companion.pid


def test_it_gets_what_it_is_handed_tells_what_it_likes_and_ends(run_both):
    async def main():
        told = Told("ends", {"word": "x" * 3000})
        assert await told.companion.finish(60.0) == ""
        line = told.lines.get_nowait()
        assert line.startswith("got xxx")
        assert len(line) == companion_main.LONGEST
        assert told.ends.empty()
        assert told.companion.pid is None
        await told.companion.stop()

    run_both(main)


def test_the_cores_are_for_the_run(run):
    async def main():
        told = Told("ends", {"word": "a"})
        assert await told.lines.get() == f"got a in {min(19, os.nice(0) + companion_main.NICENESS)}"
        await told.companion.stop()

    run(main)


def test_its_death_is_told_once_in_a_sentence(run_both):
    async def main():
        told = Told("waits")
        await told.lines.get()
        os.kill(told.pid, signal.SIGKILL)
        assert await told.ends.get() == f"t-companion (pid {told.pid}) killed by signal 9 (SIGKILL)"
        assert (await told.companion.finish(60.0)).endswith("killed by signal 9 (SIGKILL)")
        assert told.ends.empty()

    run_both(main)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("raises", r"exited with code 70: OSError(28, 'No space left on device') "),
        ("leaves", "exited with code 70: SystemExit(3)"),
        ("not_there", "exited with code 70: ImportError("),
    ],
)
def test_what_it_raised_is_told(run, entry, says):
    async def main():
        return await Told(entry).ends.get()

    assert says in run(main)


def test_it_ends_when_it_is_asked_to_and_is_ended_if_it_does_not(run_both):
    async def main():
        both = [Told("waits"), Told("never_ends")]
        for told in both:
            await told.lines.get()
            await told.companion.stop(60.0)  # what does not end by itself is ended by its own watch
            assert leaks.gone(told.pid, 0)
            assert told.ends.empty()

    run_both(main)


def test_one_that_is_stopped_by_a_signal_is_ended_too(run):
    async def main():
        told = Told("never_ends")
        await told.lines.get()
        os.kill(told.pid, signal.SIGSTOP)
        await told.companion.stop(0.01)
        assert leaks.gone(told.pid, 0)

    run(main)


def test_one_that_is_late_is_not_waited_for_longer_and_that_is_said(run):
    async def main():
        told = Told("never_ends")
        await told.lines.get()
        assert await told.companion.finish(0.01) == f"t-companion (pid {told.pid}) was not done after 0.01 s"
        assert leaks.gone(told.pid, 0)

    run(main)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_signals_that_ask_the_program_to_stop_do_not_reach_it(run, number):
    async def main():
        told = Told("waits")
        await told.lines.get()
        os.kill(told.pid, number)
        os.kill(told.pid, signal.SIGCONT)
        assert await told.companion.finish(0.05) == f"t-companion (pid {told.pid}) was not done after 0.05 s"

    run(main)


def test_what_it_has_forked_ends_with_it(run):
    async def main():
        told = Told("forks")
        assert await told.companion.finish(60.0) == ""

    with leaks.nothing_left():
        run(main)


@pytest.mark.parametrize(
    ("stopped", "number"),
    [
        (False, signal.SIGKILL),
        pytest.param(False, signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(True, signal.SIGKILL, marks=pytest.mark.long),
        pytest.param(True, signal.SIGTERM, marks=pytest.mark.long),
    ],
    ids=["running-SIGKILL", "running-SIGTERM", "stopped-SIGKILL", "stopped-SIGTERM"],
)
def test_none_outlives_its_supervisor(number, stopped):
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parents[1]}"}
    arguments = [sys.executable, HERE / "companions.py", "waits", "never_ends"]
    supervisor = subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment)
    pids = [int(word) for word in supervisor.stdout.readline().split()]
    assert len(pids) == 2
    for pid in pids:
        assert not leaks.gone(pid, 0)
        if stopped:
            os.kill(pid, signal.SIGSTOP)
    supervisor.send_signal(number)
    supervisor.wait()
    supervisor.stdout.close()
    assert [pid for pid in pids if not leaks.gone(pid, 10)] == []


def test_one_that_cannot_be_started_is_told(run, monkeypatch):
    def refuse(*_):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(companion, "_popen", refuse)

    async def main():
        with pytest.raises(ResourceError, match="t-companion cannot be started: Resource temporarily unavailable"):
            Told("waits")
        never = Companion("t-companion", "companions:waits", {})
        await never.stop()
        assert await never.finish(1.0) == ""
        assert never.pid is None

    run(main)
