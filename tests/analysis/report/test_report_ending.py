"""The first sentence of a report says how the run ended, that it goes on, or when it died."""

import fcntl
import os

import pytest
from report_runs import Log, end, start, story, write

from mlxe_async.analysis.report.ending import amount, busy, moment, state_of, summary, top, verdict
from mlxe_async.analysis.report.folder import read_run
from mlxe_async.logs import events

WHO = "20261127T135002Z-oa-0 (mlxe on CartPole-v1, schedule oa, seed 0)"


def of(tmp_path, log, **how):
    return read_run(write(tmp_path, log, **how))


@pytest.mark.parametrize(
    ("reason", "code", "state", "said"),
    [
        (
            "seconds",
            0,
            "finished",
            "ended after 1,000 steps, 10 episodes, 80 updates and 11.5 s, because the time that it was given was used "
            "up (stop.seconds).",
        ),
        ("of age", 0, "finished", "because of of age."),
        ("SIGINT", 130, "stopped", "was stopped by SIGINT after 1,000 steps"),
        ("failed: the learner died", 3, "failed", "failed with exit code 3 after 1,000 steps"),
    ],
)
def test_a_run_that_has_ended_says_why(tmp_path, reason, code, state, said):
    run = of(tmp_path, story(ended=reason, code=code))
    assert state_of(run) == state
    assert summary(run).startswith(f"{WHO} ")
    assert said in summary(run)
    assert "It did not solve its task; version 11 had the highest mean return of those tested, 100." in summary(run)


def test_a_solved_run_tells_the_version_and_the_moment(tmp_path):
    log = story(ended="")
    log.add(10.99, events.Solved(9, 8, 12_345, 640, 7.25))
    end(log, 11.5, "solved", 10, solved=True)
    run = of(tmp_path, log)
    assert state_of(run) == "solved"
    assert "It solved its task with version 9, published after 12,345 steps, 640 updates and 7.2 s;" in summary(run)


def test_a_dead_run_says_when_it_died(tmp_path):
    run = of(tmp_path, story(ended=""))
    assert state_of(run) == "died"
    assert (
        "died without a last word at 2026-11-27 13:50:12 UTC, 10.9 s after its start, after 1,000 steps, 10 episodes, "
        "80 updates. Version 11 had" in summary(run)
    )


def test_a_living_run_says_how_far_it_is(tmp_path):
    path = write(tmp_path, story(ended=""))
    held = os.open(path / "lock", os.O_RDWR)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        run = read_run(path)
        assert state_of(run) == "running"
        assert "is still running: 1,000 steps, 10 episodes, 80 updates in 10.9 s so far." in summary(run)
    finally:
        os.close(held)


def test_where_it_cannot_be_told_whether_a_run_lives_that_is_said(tmp_path):
    run = of(tmp_path, story(ended=""), lock=False)
    assert state_of(run) == "unknown"
    assert "whether it still runs cannot be told here; the last line is of 2026-11-27 13:50:12 UTC" in summary(run)


def test_a_run_that_was_resumed_after_its_end_has_not_ended(tmp_path):
    log = story(seconds=2)
    log.add(20.0, events.RunResume(1, 3, 200, 2, 16, 3.0))
    assert state_of(of(tmp_path, log)) == "died"


def test_a_dead_run_that_could_not_be_taken_up_again_is_still_a_dead_one(tmp_path):
    log = story(ended="")
    log.add(60.0, events.ProcExit("mlxe-nursery", 9, 0, True, "it left", 0), "nursery")
    log.add(60.0, events.RunEnd("failed: no checkpoint", False, 0, 0, 0, 7.0, 1.0, None, 3))
    run = of(tmp_path, log)
    assert state_of(run) == "died"
    assert "at 2026-11-27 13:50:12 UTC, 10.8 s after its start" in summary(run)
    assert "It could not be taken up again: failed: no checkpoint." in summary(run)


def test_an_empty_log_is_told(tmp_path):
    log = Log("20261127T135002Z-none")
    assert summary(of(tmp_path, log)).startswith(
        "20261127T135002Z-none left an empty log: it died before its first line"
    )


def test_a_folder_without_a_log_is_told_too(tmp_path):
    path = write(tmp_path, story())
    (path / "log.jsonl").unlink()
    assert summary(read_run(path)).startswith("20261127T135002Z-oa-0 left an empty log")


def test_without_tests_the_last_returns_are_told(tmp_path):
    log = Log("a")
    start(log)
    log.add(1.0, events.EpisodeEnd(0, 0, 12.5, 10, True, 1, 1, 10), "executor", 0)
    assert summary(of(tmp_path, log)).endswith("Its last 1 training episodes had a mean return of 12.5.")


def test_a_run_without_settings_and_start_is_known_by_its_name(tmp_path):
    log = story()
    log.lines = log.lines[4:]
    assert summary(of(tmp_path, log)).startswith("20261127T135002Z-oa-0 ended after")
    (tmp_path / log.name / "settings.toml").write_text('[algorithm]\nname = "sac"\n[task]\nenv = "Pendulum-v1"\n')
    (tmp_path / log.name / "run.json").write_text('{"seed": 7}')
    assert "(sac on Pendulum-v1, seed 7)" in summary(read_run(tmp_path / log.name))


def test_damaged_files_beside_the_log_are_told(tmp_path):
    run = of(tmp_path, story(), run="{", status="[1]")
    (note,) = run.notes
    assert note.startswith("run.json cannot be used: ")


def test_what_limits_the_pace_is_told_in_the_runs_own_words(tmp_path):
    log = story(ended="")
    log.add(11.0, events.Bottleneck({"learner": 0.91, "executor-0": 0.5}, "learner", "fewer updates would help"))
    run = of(tmp_path, log)
    assert verdict(run) == "Its pace is limited by: learner. Fewer updates would help."
    assert busy(run) == "At work: executor-0 50 %, learner 91 %."
    assert top(run) == f"{summary(run)} {verdict(run)}"


def test_where_nothing_limits_the_pace_nothing_is_told(tmp_path):
    run = of(tmp_path, story())
    assert verdict(run) == busy(run) == ""
    assert top(run) == summary(run)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0.0 s"), (99.94, "99.9 s"), (245.9, "4 min 5 s"), (7380, "2 h 3 min"), (1e7, "2,777 h 46 min")],
)
def test_times_are_told_in_units_that_suit_them(seconds, said):
    assert amount(seconds) == said


@pytest.mark.parametrize("ts", [None, "", "yesterday", 3, "2026-13-01T00:00:00Z"])
def test_a_time_that_is_none_is_told_as_unknown(ts):
    assert moment(ts) == "an unknown time"
