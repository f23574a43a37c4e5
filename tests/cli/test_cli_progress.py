"""One line says how a run is doing; a terminal sees it change, others get a line now and then."""

import contextlib
import os
import pty
import tty
from pathlib import Path

import pytest

from mlxe_async.cli.console import Console
from mlxe_async.cli.progress import Progress, ProgressDisplay
from mlxe_async.cli.telling import told
from mlxe_async.settings import load_settings


def settings(**tables):
    return load_settings({"task": {"env": "CartPole-v1"}, **tables})


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def phase(name, **fields):
    return {"event": "phase", "phase": name, "rows": 0, "updates": 0, "lag_mean": None, **fields}


def episode(episodes, env_steps, value):
    return {"event": "episode_end", "episodes": episodes, "env_steps": env_steps, "episode_return": value}


def weights(version, updates=0, env_steps=0, episodes=0):
    return {"event": "weights", "version": version, "updates": updates, "env_steps": env_steps, "episodes": episodes}


@pytest.fixture
def clock():
    return Clock()


def test_the_line_tells_steps_rate_episodes_return_lag_and_version(clock):
    progress = Progress(settings(), clock)
    progress.feed({"event": "run_start"})
    progress.line()
    clock.now += 2
    progress.feed(phase("generate", rows=3000))
    progress.feed(episode(10, 3000, 100.0))
    progress.feed(episode(11, 3000, None))
    progress.feed(episode(12, 3000, 300.0))
    progress.feed(phase("learn", updates=64, lag_mean=1.25))
    progress.feed(weights(7, 64, 3000, 12))
    assert progress.line() == "3,000 steps  1,500/s  12 episodes  return 200  lag 1.2  weights 7"


def test_the_rate_is_that_of_the_last_seconds(clock):
    progress = Progress(settings(), clock)
    progress.feed(phase("generate", rows=1_000_000))
    for _ in range(40):
        progress.line()
        clock.now += 0.5
        progress.feed(phase("generate", rows=100))
    assert "  200/s" in progress.line()


def test_counts_never_go_back_and_are_never_counted_twice(clock):
    progress = Progress(settings(), clock)
    progress.feed(phase("generate", rows=500))
    progress.feed(episode(1, 500, 1.0))
    progress.feed(weights(1, 0, 400, 1))
    assert progress.counts["env_steps"] == 500


def test_every_stop_condition_has_its_progress(clock):
    stop = {"env_steps": 10_000, "episodes": 500, "updates": 99, "seconds": 60.0, "solved": True}
    progress = Progress(settings(stop=stop, evaluation={"enabled": True}), clock)
    progress.feed({"event": "run_start"})
    clock.now += 12
    progress.feed({"event": "evaluation", "streak": 2})
    progress.feed(episode(34, 2000, 1.0))
    assert progress.line().partition("  | ")[2] == (
        "env_steps 2,000/10,000  episodes 34/500  updates 0/99  seconds 12/60  passed 2/3"
    )


def test_events_that_are_unknown_or_lack_what_progress_needs_not_are_ignored(clock):
    progress = Progress(settings(), clock)
    for event in ({}, {"event": "x"}, {"event": "ledger"}, phase("evaluate", rows=5)):
        progress.feed(event)
    assert progress.counts == {"env_steps": 0, "episodes": 0, "updates": 0}


@pytest.fixture
def terminal(monkeypatch):
    """A console on a terminal, and a function that returns what it shows."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    ours, theirs = pty.openpty()
    tty.setraw(theirs)

    def shown() -> str:
        os.write(theirs, b"<end>")  # a terminal hands on what it gets in pieces
        text = ""
        while not text.endswith("<end>"):
            text += os.read(ours, 65536).decode()
        return text.removesuffix("<end>")

    with os.fdopen(theirs, "w") as stream:
        yield lambda: Console(stream), shown
    os.close(ours)


def test_on_a_terminal_one_line_changes_and_others_stay(terminal):
    make, shown = terminal
    console = make()
    console.update("one")
    console.update("two")
    console.line("stays")
    console.update("three")
    console.finish("end")
    dim = "\x1b[2m{}\x1b[22m"
    updates = [f"\r{dim.format(text)}\x1b[K" for text in ("one", "two")]
    assert shown() == f"{updates[0]}{updates[1]}\r\x1b[Kstays\n\r{dim.format('three')}\x1b[K\r\x1b[Kend\n"


def test_without_colour_there_is_none(terminal, monkeypatch):
    make, shown = terminal
    monkeypatch.setenv("NO_COLOR", "1")
    make().update("one")
    assert shown() == "\rone\x1b[K"


def test_a_dumb_terminal_gets_plain_lines(terminal, monkeypatch):
    make, shown = terminal
    monkeypatch.setenv("TERM", "dumb")
    make().update("one")
    assert shown() == "one\n"


def test_the_changing_line_is_no_wider_than_the_terminal_and_harmless(terminal):
    make, shown = terminal
    make().update("x" * 500 + "\x1b[2J")
    text = shown()
    assert text.count("x") <= 80
    assert "\x1b[2J" not in text


def test_elsewhere_lines_are_plain(tmp_path):
    path = tmp_path / "err"
    with path.open("w") as stream:
        console = Console(stream)
        console.update("one")
        console.line("t\x1bwo")
        console.finish("three", "four")
    assert path.read_text() == "one\nt\\x1bwo\nthree\nfour\n"


def test_a_pipe_that_is_full_costs_lines_and_no_time():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writing, b"x" * 4096):
            continue
    os.set_blocking(writing, True)
    with os.fdopen(writing, "w") as stream:
        console = Console(stream)
        console.line("lost")
        assert console.dropped == 1
        os.read(reading, 2**20)
        console.line("kept")
        assert os.read(reading, 100) == b"kept\n"
    os.close(reading)


def test_a_display_tells_the_run_its_faults_and_not_what_was_expected(tmp_path):
    path = tmp_path / "err"
    with path.open("w") as stream:
        display = ProgressDisplay(Progress(settings()), Console(stream))
        display.feed({"event": "run_start", "run": "20250101T000000Z-x"})
        display.feed({"event": "proc_exit", "expected": True, "sentence": "left"})
        display.feed({"event": "proc_exit", "expected": False, "sentence": "killed by signal 9", "stack": "s\n" * 99})
        for _ in range(50):
            display.feed({"event": "hang", "process": "mlxe-exe-0"})
    lines = Path(path).read_text().splitlines()
    assert lines[0] == "run 20250101T000000Z-x"
    assert [("killed by signal 9" in line, "hang" in line) for line in lines[1:]] == [(True, False), (False, True)]


def test_an_event_is_told_in_one_line_without_what_it_does_not_say():
    event = {
        "ts": "2025-01-01T10:20:30.123Z",
        "mono_ns": 1,
        "seq": 2,
        "run": "r",
        "event": "phase",
        "role": "learner",
        "idx": None,
        "phase": "learn",
        "start_ns": 5,
        "seconds": 0.123456,
        "losses": {"policy": -1.0},
        "lag_max": None,
        "waits": {},
        "trace": "",
        "flag": True,
        "list": [1, 2.5],
        "text": "a\nb",
    }
    assert told(event) == (
        "10:20:30.123 learner      phase          "
        "phase=learn seconds=0.1235 losses={policy=-1} flag=yes list=[1 2.5] text=a\\nb"
    )
    assert told({}).isprintable()
