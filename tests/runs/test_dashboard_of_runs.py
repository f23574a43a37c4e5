"""A run with a page beside it: the page tells its story to the end, and the run does not depend on it in any way."""

import asyncio
import contextlib
import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import leaks
import pytest
from command import LIMIT_S, Command

sys.path.insert(0, str(Path(__file__).parents[1] / "cli/dashboard"))

from dashboard_tools import TOKEN, ask, deaf, streamed, within

from mlxe_async.cli.dashboard import companion
from mlxe_async.cli.dashboard.serving import PROCESS

pytestmark = pytest.mark.long

SETTINGS = """
[run]
seed = 3
python_path = ["{here}"]
[stop]
env_steps = {steps}
[task]
env = "gated_tasks:Gated"
kwargs = {{ gate = "{gate}" }}
max_episode_steps = 200
[schedule]
kind = "oa"
executors = 2
step_timeout_s = 120.0
[algorithm]
name = "mlxe"
min_updates = 4
batch = 64
[evaluation]
enabled = false
[logs]
ledger_interval_s = 1.0
"""
ENDLESS = 10**9
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _token(monkeypatch):
    monkeypatch.setenv("MLXE_DASHBOARD_TOKEN", TOKEN)


class Beside(Command):
    """A run with a page, which cannot end before `go_on` was called; `told` is its stderr so far."""

    def __init__(self, folder, steps, *arguments):
        self._gate = (Path(folder) / "gate").open("w")
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        toml = SETTINGS.format(here=HERE, gate=self._gate.name, steps=steps)
        super().__init__(folder, toml, "--no-progress", "--dashboard", *arguments)
        self.told = ""

    def go_on(self):
        """Let the run step beyond its first thousand steps."""
        self._gate.close()

    def until(self, pattern):
        """Read stderr until it tells something."""
        deadline = time.monotonic() + LIMIT_S
        while not (match := re.search(pattern, self.told)):
            left = deadline - time.monotonic()
            assert left > 0, f"not told: {pattern}; but {self.told}"
            assert select.select([self.process.stderr], [], [], left)[0], self.told
            more = os.read(self.process.stderr.fileno(), 65536).decode()
            assert more, f"ended without {pattern}: {self.told}"
            self.told += more
        return match

    def port(self):
        """The port of the page, whose address is told once the run has its folder."""
        return int(self.until(rf"the page is at http://127\.0\.0\.1:(\d+)/run/[\w-]+\?token={TOKEN}\n")[1])

    def companion(self):
        """Process id of the page."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            for pid, name in leaks.processes().items():
                if name == PROCESS[:15]:
                    return pid
            select.select([], [], [], 0.02)
        raise AssertionError("the page has no process")

    def finish(self):
        """(exit code, all that was told on stderr)."""
        out, error = self.process.communicate(timeout=LIMIT_S)
        assert out == ""
        return self.process.returncode, self.told + error


@pytest.fixture
def beside(tmp_path):
    made = []

    def start(steps, *arguments):
        made.append(Beside(tmp_path, steps, *arguments))
        return made[-1]

    yield start
    for one in made:
        one.go_on()
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate(timeout=LIMIT_S)


def number(parts, name):
    """A number of the cards."""
    match = re.search(rf"<dt>{name}</dt><dd>([\d,]+)</dd>", parts.get("numbers", ""))
    return int(match[1].replace(",", "")) if match else 0


def test_the_page_tells_the_whole_story_of_a_run_and_ends_with_it(beside):
    run = beside(6000)
    port = run.port()

    async def look():
        async with streamed(port, "/run/latest/stream?more=losses,settings") as stream:
            await stream.until(lambda parts: ">running<" in parts.get("top", "") and number(parts, "environment steps"))
            run.go_on()
            while not stream.is_over:
                await stream.next()
            return stream.parts

    parts = within(look, 3 * LIMIT_S)
    code, told = run.finish()
    assert code == 0, told
    (end,) = [line for line in run.lines() if line["event"] == "run_end"]
    assert ">finished<" in parts["top"]
    assert "its environment steps were used up" in parts["top"]
    assert number(parts, "environment steps") == end["env_steps"]
    assert number(parts, "episodes") == end["episodes"]
    assert number(parts, "updates") == end["updates"]
    assert "Verdict" in parts["top"]
    assert "mlxe-lrn" in parts["times"]
    assert "<svg" in parts["returns"]
    assert "critic" in parts["losses"] or "<svg" in parts["losses"]
    assert "the run goes on without it" not in told


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda one: one.name)
def test_a_page_that_dies_is_told_and_the_run_goes_on(beside, how):
    run = beside(6000)
    run.port()
    os.kill(run.companion(), how)
    run.until(r"the page's process .*; the run goes on without it\n")
    run.go_on()
    code, told = run.finish()
    assert code == 0
    assert "finished (env_steps)" in told


def test_a_page_that_hangs_neither_holds_up_the_run_nor_outlives_it(beside):
    run = beside(6000)
    run.port()
    os.kill(run.companion(), signal.SIGSTOP)
    run.go_on()
    code, told = run.finish()
    assert code == 0
    assert "finished (env_steps)" in told


def test_the_page_tells_a_live_run_and_that_ctrl_c_in_a_terminal_stopped_it(tmp_path, monkeypatch):
    # In a group of its own, as a shell starts it: the signal reaches all its processes, and the page before all end.
    monkeypatch.setattr(subprocess, "Popen", _in_a_group(subprocess.Popen))
    run = Beside(tmp_path, ENDLESS)
    run.go_on()
    port = run.port()

    async def look():
        async with streamed(port, "/run/latest/stream") as stream:
            await stream.until(lambda parts: number(parts, "environment steps"))
            first = number(stream.parts, "environment steps")
            await stream.until(lambda parts: number(parts, "environment steps") > first)
            state = (await ask(port, "/run/latest/state.json")).json()
            os.killpg(run.pid, signal.SIGINT)
            while not stream.is_over:
                await stream.next()
            return state, stream.parts

    state, parts = within(look, 3 * LIMIT_S)
    code, told = run.finish()
    assert code == 130, told
    assert (state["state"], state["algorithm"], state["env"]) == ("running", "mlxe", "gated_tasks:Gated")
    assert {one["name"] for one in state["workers"]} >= {"executor 0", "executor 1", "learner"}
    assert {one["executor"] for one in state["last_episodes"]} <= {"executor 0", "executor 1"}
    assert "It was stopped by SIGINT" in parts["top"]


def _in_a_group(popen):
    def start(words, **options):
        return popen(words, **options, process_group=0)

    return start


def test_a_supervisor_that_is_killed_takes_its_page_along(beside):
    run = beside(ENDLESS)
    run.go_on()
    run.port()
    page = run.companion()
    run.process.kill()
    run.process.communicate(timeout=LIMIT_S)
    assert leaks.gone(page, LIMIT_S)
    assert leaks.processes_after(LIMIT_S) == {}


def test_a_page_may_stay_until_a_signal_and_the_exit_code_is_the_runs(beside):
    run = beside(2000, "--dashboard-stays")
    run.go_on()
    port = run.port()
    run.until(r"the page stays at http://127\.0\.0\.1")

    async def look():
        return (await ask(port, "/run/latest/state.json")).json()

    assert within(look)["state"] == "finished"
    run.process.send_signal(signal.SIGINT)
    assert run.finish()[0] == 0


def test_a_page_that_was_to_stay_ends_with_a_run_that_was_stopped(beside):
    run = beside(ENDLESS, "--dashboard-stays")
    run.go_on()
    run.port()
    run.saw("episode_end")
    run.process.send_signal(signal.SIGTERM)
    code, told = run.finish()
    assert code == 143
    assert "the page stays" not in told


def test_where_the_process_cannot_be_made_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(companion.sys, "executable", "/no/such/python")
    page = companion.opened(0, tmp_path, stays=False)
    page.attend(_Console(told := []))

    async def begin():
        page.begin({"run": "x"})
        await page.stay()
        await page.close()

    asyncio.run(begin())
    (line,) = told
    assert line.startswith("the page cannot be served: No such file or directory; ")
    assert line.endswith("the run goes on without it")


class _Console:
    def __init__(self, told):
        self.line = told.append


@pytest.mark.slow
def test_a_hundred_readers_that_never_read_do_not_disturb_the_run(beside):
    run = beside(12_000)
    port = run.port()
    page = run.companion()

    async def wait():
        async with streamed(port, "/run/latest/stream") as stream:
            await stream.until(lambda parts: number(parts, "environment steps"))

    within(wait)
    with contextlib.ExitStack() as silent:
        for _ in range(100):
            silent.enter_context(contextlib.closing(deaf(port, "/run/latest/stream?more=losses,settings")))
        run.go_on()
        most = 0
        while run.process.poll() is None:
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{page}/status").read_text().splitlines()
                most = max(most, int(next(line for line in lines if line.startswith("VmRSS")).split()[1]))
            select.select([], [], [], 0.1)
        code, told = run.finish()
    assert code == 0, told
    assert "finished (env_steps)" in told
    assert most < 250 * 1024  # KiB, of which some hundred are numpy's and the library's
    kinds = {line["event"] for line in run.lines()}
    assert not {"hang", "proc_restart", "log_gap"} & kinds
