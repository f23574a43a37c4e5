"""One pass over a log keeps what a report draws: numbers at their times, time by cause, and faults."""

import math

import numpy as np
import pytest
from report_runs import HOSTILE, SECOND, Log, second, start, story

from mlxe_async.analysis.report.happenings import MOST_TOLD
from mlxe_async.analysis.report.story import MOST_LANES, MOST_LOSSES, TAKING_IN, WAITING, Story
from mlxe_async.logs import events


def told(log):
    return Story.of(log.lines)


def test_returns_tests_and_losses_stand_at_their_steps_and_seconds():
    found = told(story(seconds=3))
    assert found.episodes["env_steps"].tolist() == [100, 200, 300]
    assert found.episodes["seconds"].tolist() == [1.5, 2.5, 3.5]
    assert found.episodes["value"].tolist() == [10, 20, 30]
    assert found.tests["env_steps"].tolist() == [100, 200, 300]
    assert found.tests["mean"].tolist() == [10, 20, 30]
    assert found.losses["loss"]["value"].tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    assert set(found.losses) == {"loss"}  # a NaN is null in the log, and no value
    assert found.learning["lag_mean"].tolist() == [1, 2, 0]


def test_time_is_told_by_process_and_cause_with_waits_apart():
    found = told(story(seconds=4))
    assert found.lanes[("executor", 0)] == pytest.approx({f"{WAITING}lane": 0.5, "generate": 1.5})
    assert found.lanes[("memorizer", None)] == pytest.approx({"memorize": 0.4, TAKING_IN: 0.2})
    assert found.lanes[("learner", None)] == pytest.approx({"learn": 1.0})
    assert found.lives[("learner", None)] == [(0.25, 5.5)]


def test_causes_and_phases_that_are_not_known_yet_are_taken_as_they_come():
    log = Log()
    start(log)
    log.phase("dream", "dreamer", 1.0, 0.5, waits={"sheep": 0.2, "night": 0.1})
    assert told(log).lanes[("dreamer", None)] == pytest.approx(
        {"dream": 0.2, "waiting: sheep": 0.2, "waiting: night": 0.1}
    )


def resumed(gap_s, at):
    """A run of two seconds that died, and goes on for two more after a gap, told only after its first lines."""
    log = story(seconds=2, ended="")
    later = Log(log.name)
    start(later)
    later.lines[0]["resumed"] = True
    later.add(0.9, events.RunResume(1, 3, 200, 2, 16, 2.95, True, gap_ns=0))
    second(later, 1.0, 3, 30.0)
    for line in later.lines:
        line["mono_ns"] += round((at + gap_s) * SECOND)
        if "start_ns" in line:
            line["start_ns"] += round((at + gap_s) * SECOND)
        if line["event"] == "run_resume":
            line["gap_ns"] = round(gap_s * SECOND)
    return [*log.lines, *later.lines]


@pytest.mark.parametrize("gap_s", [3600.0, -4000.0], ids=["an hour later", "a host that was started since"])
def test_a_resumed_run_goes_on_without_the_time_between(gap_s):
    found = Story.of(resumed(gap_s, 3.0))
    assert found.episodes["seconds"].tolist() == pytest.approx([1.5, 2.5, 4.5])
    assert found.sittings == pytest.approx([3.9])
    assert found.lives[("executor", 0)] == [pytest.approx((0.2, 3.0)), (pytest.approx(3.2), None)]
    assert found.happenings.times["resumed"].tolist() == pytest.approx([3.9])


def test_a_sitting_that_died_before_it_told_its_gap_has_the_time_of_the_last_line():
    lines = [line for line in resumed(3600.0, 3.0) if line["event"] != "run_resume"]
    found = Story.of(lines)
    assert found.seconds == pytest.approx(2.95)
    assert found.episodes["seconds"].tolist() == pytest.approx([1.5, 2.5, 2.95])


def test_faults_are_counted_and_the_first_and_last_are_told():
    log = Log()
    start(log)
    for number in range(1000):
        log.add(1.0 + number / 100, events.EnvError(0, "step", f"bad {number}", 3, 4), "executor", 0)
    log.add(
        12.0, events.ProcExit("mlxe-exe-0", 11, 1, False, "it was killed by SIGSEGV", None, "SIGSEGV"), "executor", 0
    )
    log.add(12.1, events.ProcRestart("mlxe-exe-0", 2, 1, 0.1, "it died"), "executor", 0)
    log.add(13.0, events.ProcRestart("mlxe-exe-0", 3, 1, 0.1, "a new one is due", True), "executor", 0)
    log.add(14.0, events.ProcExit("mlxe-exe-0", 11, 2, True, "it left", 0), "executor", 0)
    found = told(log).happenings
    assert {kind: len(times) for kind, times in found.times.items()} == {
        "environment error": 1000,
        "death": 1,
        "restart": 1,
        "planned restart": 1,
    }
    assert found.faults == 1002
    assert len(found.told) == 2 * MOST_TOLD
    assert found.told[0].said.startswith("bad 0 (in step, episode 3, step 4")
    assert found.told[-3].said == "it was killed by SIGSEGV"
    assert found.told[-1].kind == "planned restart"


@pytest.mark.parametrize(
    "line",
    [
        {"event": "phase", "role": "learner", "phase": "learn", "seconds": "long", "start_ns": 1, "mono_ns": 1},
        {"event": "phase", "role": ["learner"], "phase": "learn", "seconds": 1.0, "start_ns": 1, "mono_ns": 1},
        {
            "event": "phase",
            "role": "executor",
            "idx": -1,
            "phase": "learn",
            "seconds": 1.0,
            "start_ns": 1,
            "mono_ns": 1,
        },
        {
            "event": "phase",
            "role": "learner",
            "phase": "learn",
            "seconds": 1.0,
            "start_ns": 1,
            "mono_ns": 1,
            "losses": 7,
        },
        {"event": "episode_end", "length": None, "mono_ns": 1},
        {"event": "episode_end", "length": 10**400, "mono_ns": 1},
        {"event": "weights", "version": math.inf, "mono_ns": 1},
        {"event": "evaluation", "version": {}, "mono_ns": 1},
        {"event": "proc_start", "mono_ns": 1},
        {"event": []},
    ],
)
def test_a_line_that_cannot_be_used_is_counted_and_harms_nothing(line):
    log = story(seconds=2)
    found = Story.of([*log.lines[:-1], line, log.lines[-1]])
    assert found.unusable == 1
    assert len(found.episodes) == 2
    assert found.end["reason"] == "seconds"


@pytest.mark.parametrize(
    "line", [{}, {"event": None}, {"event": "of next year", "mono_ns": "now"}, {"event": HOSTILE, "ts": 3}]
)
def test_events_that_are_not_known_are_passed_over(line):
    log = story(seconds=2)
    found = Story.of([line, *log.lines, line])
    assert found.unusable == 0
    assert found.lines == len(log.lines) + 2
    assert found.episodes["seconds"].tolist() == [1.5, 2.5]


def test_names_of_losses_and_processes_are_bounded():
    log = Log()
    start(log)
    for number in range(2 * MOST_LOSSES):
        log.phase("learn", "learner", 1.0, 0.1, losses={f"loss {number}": 1.0})
    for number in range(MOST_LANES + 50):
        log.phase("learn", f"role {number}", 1.0, 0.1)
    found = told(log)
    assert len(found.losses) == MOST_LOSSES
    assert len(found.lanes) <= MOST_LANES + 1
    assert found.unusable >= MOST_LOSSES


def test_times_far_away_are_not_taken_for_times():
    log = story(seconds=2)
    log.lines.insert(3, {**log.lines[2], "mono_ns": 10**30})
    assert told(log).seconds < 10


def test_a_log_whose_beginning_was_dropped_begins_with_its_first_line():
    found = Story.of(story(seconds=3).lines[3:])
    assert found.start == {}
    assert found.episodes["seconds"].tolist() == [0.0, 1.0, 2.0]
    assert np.isfinite(found.tests["mean"]).all()


def test_spells_are_added_up_by_process_and_mode_and_what_is_none_is_passed_over():
    told = {"event": "times", "process": "mlxe-lrn", "seconds": {"updating": 1.0}, "mono_ns": 1}
    lines = [{**told, "histograms": {"updating": one}} for one in ({"1280": 2, "1536": 1}, {"1280": 3}, {"x": 1}, [1])]
    story = Story.of(lines)
    assert story.spells == {("mlxe-lrn", "updating"): {1280: 5, 1536: 1}}
    assert story.unusable == 1


def test_quantiles_of_all_numbers_stand_at_the_steps_of_their_updates():
    log = story(seconds=3)
    values = {"weights": {"p5": -1.0, "p50": 0.5, "p95": None}, "weights/a": {"p50": 9.0}}
    log.add(2.0, events.Quantiles(2, 8, 150, values, {"weights": 9, "weights/a": 4}), "learner")
    found = told(log).quantiles
    assert set(found) == {"weights"}
    assert found["weights"]["env_steps"].tolist() == [150]
    assert (found["weights"]["low"][0], found["weights"]["value"][0]) == (-1.0, 0.5)
    assert math.isnan(found["weights"]["high"][0])
