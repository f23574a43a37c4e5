"""A log as a timeline: spans on their tracks, arrows between them, counters and marks, whatever the log is like."""

import json

import pytest
from log_lines import (
    BOOT,
    MS,
    episode,
    evaluate,
    generate,
    learn,
    line,
    memorize,
    numbered,
    phase,
    publish,
    run_end,
    run_start,
    short_run,
    text_of,
)
from trace_format import of_kind, problems, spans_of, stops_of

from mlxe_async.analysis.trace.chrome import trace_of
from mlxe_async.analysis.trace.timeline import timeline_of
from mlxe_async.errors import NotFound, RunFailed


def trace(lines, is_held=False):
    """The trace of some lines, in which nothing breaks the rules."""
    made = json.loads(trace_of(timeline_of(numbered(lines), is_held)))
    assert problems(made) == []
    return made


def stops(made, name):
    """Arrows of a name as texts: the phases that each goes through, with the milliseconds at which these begin."""
    start = began(made)
    return [
        " > ".join(f"{span['name']} {round((span['ts'] + start) / 1000)}" for span in spans)
        for spans in stops_of(made, name)
    ]


def began(made):
    """Microseconds of the first run_start, after which moments are counted here, before those of the trace."""
    return -next(event["ts"] for event in of_kind(made, "i") if event["name"].startswith("run start"))


def marks(made):
    return {event["name"]: event for event in of_kind(made, "i")}


def counts(made, name):
    return [(event["ts"] + began(made), event["args"]) for event in of_kind(made, "C") if event["name"] == name]


def test_each_phase_of_the_log_is_a_span_of_the_same_time_on_the_track_of_its_process():
    made = trace(short_run())
    start = round(began(made) * 1000)
    found = {(process, name, begin + start, end + start) for process, thread, name, begin, end in spans_of(made)}
    assert {one for one in found if one[1] not in ("start", "alive", "probe")} == {
        ("learner", "publish", 23 * MS, 24 * MS),
        ("executor 0", "generate", 30 * MS, 40 * MS),
        ("memorizer", "memorize", 42 * MS, 45 * MS),
        ("learner", "learn", 46 * MS, 60 * MS),
        ("learner", "publish", 60 * MS, 61 * MS),
        ("evaluator", "evaluate", 62 * MS, 80 * MS),
    }
    assert {one for one in found if one[1] in ("start", "alive", "probe")} == {
        ("probe", "probe", -499 * MS, 1 * MS),
        ("executor 0", "start", 10 * MS, 20 * MS),
        ("executor 0", "alive", 20 * MS, 85 * MS),
        ("learner", "start", 12 * MS, 22 * MS),
        ("learner", "alive", 22 * MS, 90 * MS),
    }


def test_a_span_has_what_the_log_tells_of_it_and_a_test_its_result():
    about = {event["name"]: event["args"] for event in of_kind(trace(short_run()), "X")}
    assert about["learn"] == {
        "version": 2,
        "env_steps": 90,
        "rows": 360,
        "updates": 1,
        "losses": {"loss": 0.25},
        "lag_mean": 0.5,
        "lag_max": 1,
    }
    assert about["evaluate"]["return_mean"] == 9.0
    assert about["evaluate"]["passed"] is True


def test_phases_that_overlap_go_to_further_threads_and_rounding_is_none():
    learned = learn(10, 20, 4, 2)
    learned["seconds"] += 3e-9
    tests = [evaluate(10, 30, 1), evaluate(15, 40, 2), evaluate(31, 35, 3), evaluate(41, 42, 4)]
    made = trace([run_start(), learned, publish(20, 21, 2), *tests])
    threads = [(thread, round(begin / MS)) for process, thread, name, begin, end in spans_of(made, "evaluate")]
    assert threads == [("evaluator", 10), ("evaluator (2)", 15), ("evaluator", 31), ("evaluator", 41)]
    assert {thread for process, thread, *_ in spans_of(made) if process == "learner"} == {"learner"}
    assert [begin for *_, begin, end in spans_of(made, "publish")] == [20 * MS + 3]


def test_an_arrow_leads_from_a_rollout_to_the_next_batch_after_it_is_in_memory_and_to_the_version():
    lines = [
        run_start(),
        generate(0, 10, 0, 50, 50),
        generate(0, 12, 1, 30, 80),
        memorize(13, 14, 60),  # all of the first, and a part of the second
        learn(15, 20, 256, 2),
        publish(20, 21, 2),
        generate(11, 22, 0, 20, 100),
        memorize(23, 24, 20),
        learn(25, 30, 256, 3),
        publish(30, 31, 3),
        memorize(31, 32, 20),
    ]
    assert stops(trace(lines), "rollout") == [
        "generate 0 > memorize 13 > learn 15 > publish 20",
        "generate 0 > memorize 23 > learn 25 > publish 30",
        "generate 11 > memorize 31",
    ]


def test_a_plan_of_no_updates_is_passed_and_a_rollout_waits_for_the_batch_after():
    rollout, first, second = generate(0, 10, 0, 50, 50), memorize(11, 12, 50), memorize(13, 14, 0)
    lines = [run_start(), rollout, first, second, learn(15, 20, 256, 2), publish(20, 21, 2)]
    assert stops(trace(lines), "rollout") == ["generate 0 > memorize 11 > learn 15 > publish 20"]


def test_where_rollouts_are_learned_from_once_each_goes_to_the_batch_of_as_many_rows():
    lines = [
        run_start(),
        line("probe_ok", 1, "probe", seconds=0.5, spaces={}, parameters=9, memory="rollouts"),
        generate(2, 10, 0, 100, 100),
        generate(2, 12, 1, 101, 201),
        generate(11, 13, 0, 102, 303),
        memorize(14, 15, 303),
        learn(16, 20, 101, 2),  # executor 1 was ready first
        publish(20, 21, 2),
        learn(22, 30, 102, 3),  # the one before was too old
        publish(30, 31, 3),
        generate(15, 32, 1, 100, 403),
        generate(15, 33, 0, 100, 503),
        memorize(34, 35, 200),
        learn(36, 40, 200, 4),  # two in one batch
        publish(40, 41, 4),
    ]
    assert stops(trace(lines), "rollout") == [
        "generate 2 > memorize 14",
        "generate 2 > memorize 14 > learn 16 > publish 20",
        "generate 11 > memorize 14 > learn 22 > publish 30",
        "generate 15 > memorize 34 > learn 36 > publish 40",
        "generate 15 > memorize 34 > learn 36 > publish 40",
    ]


def test_a_rollout_that_ended_after_rows_were_taken_in_waits_for_the_next_time():
    lines = [run_start(), generate(0, 20, 0, 50, 50), memorize(5, 8, 50), memorize(21, 22, 0), learn(23, 30, 9, 2)]
    assert stops(trace(lines), "rollout") == ["generate 0 > memorize 21 > learn 23"]


def test_rows_that_were_lost_do_not_hold_up_arrows_for_ever():
    account = line("ledger", 23, committed=50, ingested=50, backlog=0)
    lines = [run_start(), generate(0, 10, 0, 50, 50), memorize(11, 12, 40), account, memorize(24, 25, 0)]
    assert stops(trace(lines), "rollout") == ["generate 0 > memorize 24"]


def test_an_arrow_leads_from_a_version_to_the_first_work_of_each_process_with_it():
    lines = [
        run_start(),
        publish(0, 1, 1),
        generate(2, 10, 0, 5, 5, version=1),
        generate(11, 13, 0, 5, 10, version=1),
        generate(2, 12, 1, 5, 15, version=1),
        evaluate(3, 9, 1),
        publish(20, 21, 2),
        generate(14, 20.5, 0, 5, 20, version=2),  # cannot be: it ended before the version was out
        generate(15, 30, 1, 5, 25, version=2),  # took it up on its way
        generate(15, 31, 1, 5, 30, version=77),
    ]
    assert stops(trace(lines), "weights") == [
        "publish 0 > generate 2",
        "publish 0 > generate 2",
        "publish 0 > evaluate 3",
        "publish 20 > generate 15",
    ]


def test_counters_tell_lag_rows_memory_returns_and_rates():
    made = trace(
        [*short_run()[:-1], generate(100, 2600, 0, 250, 340), episode(2600, 1.0), episode(2600, 4.0), run_end(2700)]
    )
    assert counts(made, "policy lag") == [(60_000, {"mean": 0.5, "max": 1})]
    assert [args["on their way to memory"] for _, args in counts(made, "rows")] == [90, 0, 250]
    assert [args for _, args in counts(made, "memory")] == [{"rows": 90}]
    assert [args for _, args in counts(made, "lane 0")] == [{"blocks": 1}]
    assert [args["mean"] for _, args in counts(made, "return of rollouts")] == [5.0, 2.5]
    assert [args["mean"] for _, args in counts(made, "return of tests")] == [9.0]
    rates = counts(made, "environment steps")
    assert [at for at, _ in rates] == [30_000, 1_030_000, 2_030_000, 2_600_000]
    assert [args["per second"] for _, args in rates] == pytest.approx([90 + 93, 100, 100, 0])


def test_the_time_of_each_process_by_what_it_did_is_a_counter_over_the_time_that_is_told_of():
    told = [{"waiting": 0.02, "stepping": 0.06}, {"waiting": 0.03, "stepping": 0.06, "acting": 0.03}]
    lines = [line("times", 80 + 40 * n, "executor", 0, process="mlxe-exe-0", seconds=one) for n, one in enumerate(told)]
    made = trace([run_start(), *lines])
    assert counts(made, "time of executor 0") == [
        (0, {"waiting": 25.0, "stepping": 75.0}),
        (80_000, {"waiting": 25.0, "stepping": 0.0, "acting": 75.0}),
    ]
    assert "times" not in " ".join(marks(made))


def test_faults_restarts_and_checkpoints_are_marks_on_their_process_and_the_runs_own_on_all():
    lines = [
        *short_run()[:-2],
        line("hang", 81, "executor", 0, process="mlxe-exe-0", pid=7, stuck_s=1.0, limit_s=5.0, call="step"),
        line("proc_exit", 82, "executor", 0, process="mlxe-exe-0", pid=7, epoch=1, expected=False, signal="SIGKILL")
        | {"sentence": "mlxe-exe-0 (pid 7) was killed by SIGKILL"},
        line(
            "proc_restart", 83, "executor", 0, process="mlxe-exe-0", epoch=2, attempt=1, delay_s=0.1, reason="it died"
        ),
        line("env_error", 84, "executor", 0, env=0, phase="step", message="a\x1b[31m", seed=2**63),
        line("checkpoint", 86, number=4, version=2, bytes=10, seconds=0.1, whole=True),
        line("warning", 87, message="odd " + "x" * 500),
        run_end(90),
    ]
    made = trace(lines)
    at = {name: round((mark["ts"] + began(made)) / 1000) for name, mark in marks(made).items()}
    assert {name: at[name] for name in at if at[name] > 80} == {
        "hang: step": 81,
        "proc exit: mlxe-exe-0 (pid 7) was killed by SIGKILL": 82,
        "proc restart: it died": 83,
        "env error: a\\x1b[31m": 84,
        "checkpoint: 4": 86,
        "warning: odd " + "x" * 96 + "…": 87,
        "run end: episodes": 90,
    }
    scopes = {name.partition(":")[0]: mark["s"] for name, mark in marks(made).items()}
    assert {name for name, scope in scopes.items() if scope == "g"} == {"run start", "run end"}
    died = marks(made)["hang: step"]
    assert (died["pid"], died["tid"]) == next((e["pid"], e["tid"]) for e in of_kind(made, "X") if e["name"] == "alive")
    assert marks(made)["env error: a\\x1b[31m"]["args"]["seed"] == str(2**63)


def test_a_run_that_was_taken_up_again_has_one_clock_and_lives_end_with_their_sitting():
    gap = 100_000  # milliseconds between the end of the one sitting and the begin of the other
    again = [
        run_start(gap + 200, resumed=True),
        line("proc_start", gap + 220, "executor", 0, process="mlxe-exe-0", pid=9, epoch=2, seconds=0.015),
        line("run_resume", gap + 225, checkpoint=1, version=2, env_steps=90, episodes=1, updates=1, seconds=0.1)
        | {"gap_ns": gap * MS},
        generate(gap + 230, gap + 240, 0, 10, 100),
        memorize(gap + 241, gap + 242, 10),
        run_end(gap + 250),
    ]
    made = trace([*short_run()[:-2], *again])
    start = round(began(made) * 1000)
    found = [
        (name, begin + start, end + start) for process, _, name, begin, end in spans_of(made) if process == "executor 0"
    ]
    assert found == [
        ("start", 10 * MS, 20 * MS),
        ("alive", 20 * MS, 81 * MS),
        ("generate", 30 * MS, 40 * MS),
        ("start", 205 * MS, 220 * MS),
        ("alive", 220 * MS, 250 * MS),
        ("generate", 230 * MS, 240 * MS),
    ]
    assert stops(made, "rollout")[-1] == "generate 230 > memorize 241"


def test_a_sitting_that_never_took_the_run_up_follows_the_last_moment():
    made = trace([*short_run()[:-1], run_start(900_000, resumed=True), line("warning", 900_010, message="no")])
    assert round((marks(made)["warning: no"]["ts"] + began(made)) / 1000) == 85 + 10


@pytest.mark.parametrize(
    ("is_held", "said"),
    [
        (False, "the run died without a last word"),
        (True, "the run goes on"),
        (None, "the log ends without a last word: the run died, or goes on elsewhere"),
    ],
)
def test_a_log_without_a_last_word_says_so_at_its_last_moment(is_held, said):
    made = trace(short_run()[:-1], is_held)
    mark = marks(made)[said]
    assert round((mark["ts"] + began(made)) / 1000) == 85
    assert (mark["s"], mark["args"]) == ("g", {"last line": "2026-01-01T00:00:00.085Z"})
    assert made["otherData"]["ending"] == said


def test_a_trace_tells_what_the_run_was():
    about = trace(short_run())["otherData"]
    assert (about["env"], about["algorithm"], about["schedule"], about["seed"]) == ("CartPole-v1", "ppo", "oa", 3)
    assert (about["began"], about["ending"]) == ("2026-01-01T00:00:00.000Z", "ended: episodes")


def test_a_trace_takes_less_room_than_the_log_that_it_was_made_from():
    lines, losses = [run_start()], dict.fromkeys(("loss", "value_loss", "entropy", "gradient_norm"), 0.123456789)
    for number in range(1, 300):
        at = 10 * number
        lines += [
            generate(at, at + 4, number % 2, 128, 128 * number, number),
            memorize(at + 4, at + 5, 128),
            learn(at + 5, at + 8, 1024, number + 1, losses=losses, lag_mean=0.3 * number, env_steps=128 * number),
            publish(at + 8, at + 9, number + 1),
        ]
    made = trace(lines)
    assert len(stops(made, "rollout")) == 299
    assert len(trace_of(timeline_of(numbered(lines), is_held=False))) < len(text_of(lines))


def test_what_a_later_version_may_tell_is_shown_too():
    odd = {**line("warning", 50, message=""), "event": "some_news", "role": "critic", "idx": 4, "what": "new"}
    unknown = phase("dream", 51, 60, "critic", 4, waits={"a turn": 0.001}, colour="blue")
    made = trace([*short_run(), odd, unknown])
    assert "some news: new" in marks(made)
    (span,) = [event for event in of_kind(made, "X") if event["name"] == "dream"]
    assert span["args"] == {"waits": {"a turn": 0.001}, "colour": "blue"}
    assert ("critic 4", "critic 4") in {(process, thread) for process, thread, *_ in spans_of(made, "dream")}


ODD = [None, "x", -1, 10**30, 1e308, float("inf"), [], {}, True, [[[[[1]]]]], "\ud800"]


@pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_lines_of_any_content_are_a_trace_or_a_mistake_that_is_told(every):
    lines, refused = short_run(), 0
    cases = [(number, name, value) for number, one in enumerate(lines) for name in one for value in ODD]
    for number, name, value in cases[::every]:
        try:
            trace([*lines[:number], {**lines[number], name: value}, *lines[number + 1 :]])
        except RunFailed:
            refused += 1
    assert len(cases) / 10 / every < refused < len(cases) / 2 / every


def test_a_log_without_lines_is_no_run():
    with pytest.raises(NotFound, match="the log is no run: expected a run folder, or a log with events"):
        timeline_of([], None)


def test_a_phase_that_took_a_little_less_than_no_time_can_be_seen():
    made = trace([run_start(), {**generate(5, 6, 0, 1, 1), "seconds": -0.002}])
    assert [(begin, end) for *_, begin, end in spans_of(made)] == [(5 * MS, 5 * MS + 1)]


def test_a_moment_and_seconds_that_cannot_be_are_told():
    with pytest.raises(RunFailed, match="got '5 s' as seconds"):
        timeline_of([{**generate(0, 1, 0, 1, 1), "seconds": "5 s"}], None)
    with pytest.raises(RunFailed, match="as a moment in nanoseconds"):
        timeline_of([{**generate(0, 1, 0, 1, 1), "start_ns": BOOT + 0.5}], None)


BROKEN = {
    "fields": lambda made: made["traceEvents"][-1].pop("args"),
    "no time": lambda made: of_kind(made, "X")[0].update(dur=0),
    "values": lambda made: of_kind(made, "X")[0].update(ts=-1),
    "scope": lambda made: of_kind(made, "i")[0].update(s="x"),
    "counter": lambda made: of_kind(made, "C")[0].update(args={"a": None}),
    "process without a name": lambda made: of_kind(made, "X")[0].update(pid=99),
    "thread without a name": lambda made: of_kind(made, "X")[0].update(tid=99),
    "goes back in time": lambda made: next(one for one in of_kind(made, "X")[::-1] if one["name"] == "publish").update(
        ts=0
    ),
    "overlap": lambda made: next(one for one in of_kind(made, "X") if one["name"] == "learn").update(dur=14_001),
    "is not joined": lambda made: made["traceEvents"].remove(of_kind(made, "f")[0]),
    "several names": lambda made: of_kind(made, "f")[0].update(name="other"),
    "touches no span": lambda made: of_kind(made, "f")[-1].update(ts=of_kind(made, "f")[-1]["ts"] + 900_000),
}


@pytest.mark.parametrize("said", BROKEN)
def test_the_rules_of_the_format_are_those_that_are_asked_for(said):
    made = trace(short_run())
    BROKEN[said](made)
    assert any(said in one for one in problems(made))
