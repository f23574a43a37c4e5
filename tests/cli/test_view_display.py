"""A terminal sees a picture that changes, others a plain line now and then, and nobody a control character too many."""

import asyncio
import json
import re
import subprocess
import sys
import time

import pytest
from cli_tools import GOOD, Screen, run_start, story, terminal

from mlxe_async.cli.console import Console
from mlxe_async.cli.telling import told
from mlxe_async.cli.view import display as display_module
from mlxe_async.cli.view.display import Display
from mlxe_async.logs.events import EpisodeEnd, RunEnd
from mlxe_async.logs.journal import Journal
from mlxe_async.storage.run_folder import RunFolder

LIMIT_S = 30
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def _is_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def shown(events=(), columns=80):
    """What a display writes to a terminal for a story and then these events."""
    with terminal(columns) as (stream, written):
        display = Display(Console(stream))
        for event in (*story(), *events):
            display.feed(event)
        display.show()
        return written()


def test_a_terminal_shows_the_picture():
    screen = Screen()
    screen.write(shown())
    lines = screen.shown()
    assert lines[0].startswith("20260101T000000Z-x")
    assert any(line.startswith("learner     learn ") for line in lines)
    assert len(lines) <= 23


def colours(text):
    codes = {int(code) for match in COLOUR.findall(text) for code in match[2:-1].split(";") if code}
    return {code for code in codes if 30 <= code <= 37 or 90 <= code <= 97 or code in (38, 48)}


def test_without_colour_there_is_none(monkeypatch):
    assert colours(shown())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colours(shown())


def test_notable_events_are_told_above_the_picture():
    event = {"event": "hang", "process": "mlxe-exe-0", "stuck_s": 7.0, "stack": "s\n" * 99}
    screen = Screen(1000)
    screen.write(shown([event] * 50))
    assert [("hang" in line and "stuck_s=7" in line) for line in screen.shown()[:2]] == [True, False]


def test_elsewhere_there_are_plain_lines(tmp_path):
    path = tmp_path / "err"
    with path.open("w") as stream:
        display = Display(Console(stream))
        for event in (
            run_start(run="20250101T000000Z-x"),
            {"event": "proc_exit", "expected": True, "sentence": "left"},
            {"event": "proc_exit", "expected": False, "sentence": "killed by signal 9", "stack": "s\n" * 99},
            *[{"event": "hang", "process": "mlxe-exe-0"}] * 50,
        ):
            display.feed(event)
        display.show()
    text = path.read_text()
    lines = text.splitlines()
    assert lines[0] == "run 20250101T000000Z-x"
    assert [("killed by signal 9" in line, "hang" in line) for line in lines[1:3]] == [(True, False), (False, True)]
    assert lines[3].startswith("starts  weights 0  | env_steps 0/10,000  episodes 0/500")
    assert text.replace("\n", "").isprintable()


def test_a_picture_is_drawn_again_and_again_until_it_is_stopped(monkeypatch):
    monkeypatch.setattr(display_module, "TERMINAL_INTERVAL_S", 0.001)

    async def watch(stream):
        display = Display(Console(stream))
        drawn = asyncio.Event()
        paint = display.show

        def count():
            paint()
            counted.append(1)
            if len(counted) == 3:
                drawn.set()

        counted = []
        display.show = count
        display.feed(run_start())
        display.start()
        async with asyncio.timeout(LIMIT_S):
            await drawn.wait()
        display.stop()
        display.stop()
        return len(counted)

    with terminal() as (stream, _):
        assert asyncio.run(watch(stream)) == 4  # and once more at the end


def test_of_a_run_that_never_began_nothing_stays():
    async def watch(stream):
        display = Display(Console(stream))
        display.start()
        display.show()
        display.stop()

    with terminal() as (stream, written):
        asyncio.run(watch(stream))
        screen = Screen()
        screen.write(written())
    assert screen.shown() == []


def test_the_more_a_picture_costs_the_rarer_it_is(monkeypatch):
    delays = []
    times = iter([0.0, 0.005, 0.0, 9.0, 0.0, 0.0001])
    with terminal() as (stream, _):
        display = Display(Console(stream))
        monkeypatch.setattr(display, "_again", delays.append)
        monkeypatch.setattr(time, "thread_time", lambda: next(times))
        for _ in range(3):
            display._tick()
    assert delays == [pytest.approx(2.0), 5.0, 0.5]


def test_rich_is_imported_only_to_draw(tmp_path):
    (tmp_path / "bad.toml").write_text("[run]\nsed = 1\n")
    (tmp_path / "good.toml").write_text(GOOD)
    code = """
import sys
from mlxe_async.cli import main
main(sys.argv[1:])
sys.exit("rich" in sys.modules)
"""
    for arguments in (["bad.toml"], ["follow", "nothing"], ["--version"], ["runs", "list"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, arguments


@pytest.fixture
def run(tmp_path):
    with RunFolder.create(tmp_path / "runs", "x") as folder, Journal(folder.log_path, folder.name) as journal:
        for event in story():
            line = {"ts": "", "seq": 0, "run": folder.name, **event}
            with folder.log_path.open("a") as file:
                file.write(json.dumps(line | {"run": folder.name}) + "\n")
        yield folder, journal


def follow(folder, stream, *arguments):
    command = [sys.executable, "-m", "mlxe_async", "follow", "latest", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=stream, stderr=stream)


def test_following_a_run_on_a_terminal_shows_its_picture(tmp_path, run):
    folder, journal = run
    journal.emit(RunEnd("asked", False, 38, 3800, 152, 19.0, 0.0, None, 0))
    with terminal() as (stream, written):
        with follow(tmp_path, stream) as process:
            assert process.wait(LIMIT_S) == 0
        screen = Screen()
        screen.write(written())
    lines = screen.shown()
    assert lines[0].split() == [folder.name, "ended", "(asked)", "after", "19", "s"]
    assert any(line.startswith("└ memorizer") for line in lines)


def test_a_run_that_died_without_a_word_is_shown_as_such(tmp_path, run):
    folder, _ = run
    folder.close()
    with terminal() as (stream, written):
        with follow(tmp_path, stream) as process:
            assert process.wait(LIMIT_S) == 0
        assert "gone without a word after 19 s" in written()


def test_on_a_terminal_lines_can_be_asked_for(tmp_path, run):
    _, journal = run
    journal.emit(EpisodeEnd(0, 0, 1.5, 10, True, 1, 1, 10), "executor", 3)
    journal.emit(RunEnd("asked", False, 0, 0, 0, 0.0, 0.0, None, 0))
    for option, says in (("--lines", "episode_return=1.5"), ("--json", '"episode_return": 1.5')):
        with terminal() as (stream, written):
            with follow(tmp_path, stream, option) as process:
                read = written(until="weights_hash" if option == "--json" else "reason=asked")
                assert process.wait(LIMIT_S) == 0
            assert says in read


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
