"""Each event has a level as loggers know them, by what it tells."""

import pytest
from log_lines import episode, folder_of, line, publish, run_end, run_start

from mlxe_async.cli import main
from mlxe_async.logs import levels
from mlxe_async.logs.events import EVENTS
from mlxe_async.logs.levels import LEVELS, is_at_least, level_of


@pytest.mark.parametrize(
    ("event", "told", "level"),
    [
        ("phase", {}, "debug"),
        ("episode_end", {}, "info"),
        ("warning", {}, "warning"),
        ("hang", {}, "error"),
        ("proc_exit", {"expected": True}, "debug"),
        ("proc_exit", {"expected": False}, "error"),
        ("proc_restart", {"planned": True}, "info"),
        ("proc_restart", {"planned": False}, "warning"),
        ("run_end", {"exit_code": 0}, "info"),
        ("run_end", {"exit_code": 143}, "info"),
        ("run_end", {"exit_code": 3}, "error"),
        ("run_end", {}, "error"),
        ("ledger", {"lost": 0, "torn": 0}, "debug"),
        ("ledger", {"lost": 1}, "error"),
        ("not_known", {}, "info"),
        (None, {}, "info"),
    ],
)
def test_a_line_has_the_level_of_what_it_tells(event, told, level):
    assert level_of({"event": event, **told}) == level


def test_every_event_that_has_a_level_of_its_own_is_one_that_there_is():
    named = levels._DEBUG | levels._WARNING | levels._ERROR
    assert named <= set(EVENTS)
    assert {level_of({"event": name}) for name in EVENTS} == set(LEVELS)


def test_levels_are_ordered():
    assert [is_at_least({"event": "warning"}, level) for level in LEVELS] == [True, True, True, False]


@pytest.mark.parametrize(
    ("level", "events"),
    [
        ([], ["run_start", "phase", "episode_end", "warning", "run_end"]),
        (["--level", "info"], ["run_start", "episode_end", "warning", "run_end"]),
        (["--level", "warning"], ["warning"]),
        (["--level", "error"], []),
    ],
)
def test_follow_tells_lines_from_a_level_on(tmp_path, monkeypatch, capsys, level, events):
    monkeypatch.chdir(tmp_path)
    folder_of("runs", [run_start(), publish(1, 2, 1), episode(3, 1.0), line("warning", 4, message="m"), run_end(5)])
    assert main(["follow", "latest", "--lines", *level]) == 0
    assert [
        next(word for word in one.split() if word in EVENTS) for one in capsys.readouterr().out.splitlines()
    ] == events


def test_another_level_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["follow", "latest", "--level", "loud"]) == 2
    assert "invalid choice: 'loud'" in capsys.readouterr().err
