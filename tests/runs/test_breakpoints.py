"""`breakpoint()` in a user's file: a debugger on the terminal under `serial`, elsewhere one sentence."""

import os
import pty
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cold  # as users start it: from a terminal, with the working folder to import from
STOPS = """\
from mlxe_async.algorithms.a2c import A2C


class Stops(A2C):
    def update(self, rows, budget):
        answer = 6 * 7
        if not hasattr(self, "seen"):
            self.seen = True
            breakpoint()
        return super().update(rows, budget)
"""
SETTINGS = """\
[run]
python_path = ["."]
[task]
env = "CartPole-v1"
[algorithm]
name = "stops:Stops"
[schedule]
kind = "serial"
executors = 1
[stop]
env_steps = 2000
"""
PAGES = "[one for one in __import__('gc').get_objects() if type(one).__name__ == 'ProgressPage']"
LATE = f"p 'late', [one.overdue(10**20) for one in {PAGES}]\n"
"""Asks each progress page what the supervisor asks it, ages later: by how much its call has outstayed its limit."""


@pytest.fixture
def begun(tmp_path):
    """Starts the command with a file of settings on a terminal; gives the process and the terminal's other end."""
    (tmp_path / "stops.py").write_text(STOPS)
    (tmp_path / "own.toml").write_text(SETTINGS)
    started, ours = [], []

    def begin(*words):
        mine, theirs = pty.openpty()
        command = [sys.executable, "-m", "mlxe_async", "own.toml", "--no-progress", *words]
        process = subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        started.append(process)
        ours.append(mine)
        return process, mine

    yield begin
    for process, mine in zip(started, ours, strict=True):
        process.kill()
        process.wait()
        os.close(mine)


def read_until(terminal, text):
    """What comes from the terminal, up to a text or the end."""
    said = ""
    while text not in said:
        try:
            more = os.read(terminal, 4096)
        except OSError:  # its other end is closed
            break
        if not more:
            break
        said += more.decode(errors="replace")
    return said


@pytest.mark.long
def test_under_serial_a_debugger_has_the_terminal_for_as_long_as_it_is_used(begun):
    process, terminal = begun()
    read_until(terminal, "(Pdb)")
    os.write(terminal, b"p 'the answer is', answer\n")
    assert "('the answer is', 42)" in read_until(terminal, "(Pdb)")
    os.write(terminal, LATE.encode())
    assert "('late', [None])" in read_until(terminal, "(Pdb)")
    os.write(terminal, b"c\n")
    said = read_until(terminal, "\0")
    assert "finished (env_steps)" in said
    assert "started again" not in said
    assert process.wait(60) == 0


@pytest.mark.long
def test_elsewhere_it_is_told_how_to_have_one(begun):
    process, terminal = begun("--set", "schedule.kind=is")
    said = " ".join(read_until(terminal, "\0").split())
    assert "breakpoint(): no process of this run has a terminal, expected" in said
    assert 'schedule.kind = "serial" and --no-progress in a terminal' in said
    assert process.wait(60) != 0
