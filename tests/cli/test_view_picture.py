"""A picture knows what the events say, and survives events that say nonsense."""

import pytest
from cli_tools import SECOND, episode, phase, run_start, story
from hypothesis import given
from hypothesis import strategies as st

from mlxe_async.cli.view.activity import BUCKETS, LONGEST_CURVE, Activity, Curve
from mlxe_async.cli.view.drawing import Glyphs, draw
from mlxe_async.cli.view.picture import Picture
from mlxe_async.logs.events import EVENTS, event_schema

NOW = 20 * SECOND


def picture(*events):
    made = Picture()
    for event in events:
        made.feed(event)
    return made


def test_the_plain_line_tells_steps_rate_episodes_return_lag_and_version():
    made = picture(
        run_start(settings={}),
        phase("generate", "executor", 3.0, 2.0, 0, rows=3000),
        episode(3, 10, 3000, 100.0),
        episode(3, 11, 3000, None),
        episode(3, 12, 3000, 300.0),
        phase("learn", "learner", 3.0, 1.0, updates=64, lag_mean=1.25),
        {"event": "weights", "version": 7, "updates": 64, "env_steps": 3000, "episodes": 12},
    )
    assert made.line(3 * SECOND) == "3,000 steps  1,500/s  12 episodes  return 200  lag 1.2  weights 7"


def test_the_plain_line_tells_the_last_test():
    about = {"event": "evaluation", "version": 4, "streak": 0, "return_mean": 212.34}
    made = picture(run_start(settings={}), {**about, "passed": None})
    assert made.line(3 * SECOND).endswith("weights 0  test of version 4: 212.3")
    made.feed({**about, "passed": False, "failed_at": 13})
    assert made.line(3 * SECOND).endswith("test of version 4: 212.3 failed at step 13")


def test_a_run_that_goes_on_has_the_version_that_it_goes_on_from():
    resumed = {"event": "run_resume", "version": 7, "updates": 6, "env_steps": 64, "episodes": 3}
    assert "weights 7" in picture(run_start(settings={}), resumed).line(3 * SECOND)


def test_the_stage_of_a_curriculum_is_told_from_the_start():
    made = picture(run_start(settings={"task": {"stages": [{}, {}, {}]}}))
    assert made.stage == "stage 1 of 3"
    made.feed({"event": "stage", "stage": 2, "of": 3, "reason": "it has lasted long enough"})
    assert made.line(3 * SECOND).endswith("weights 0  stage 2 of 3")
    assert any("stage 2 of 3" in line.plain for line in draw(made, 3 * SECOND, 100, 30, Glyphs()))
    assert picture(run_start(settings={})).stage == ""


def test_every_stop_condition_has_its_progress():
    made = picture(*story(13))
    assert made.line(14 * SECOND).partition("  | ")[2] == (
        "env_steps 2,400/10,000  episodes 24/500  seconds 13/60  passed 2/3"
    )


def test_the_seconds_that_count_are_those_of_work_and_never_more_than_asked_for():
    made = picture(run_start(at=1.0), {"event": "proc_start", "process": "mlxe-exe-0", "mono_ns": 5 * SECOND})
    assert made.towards_stop(15 * SECOND)["seconds"] == (10.0, 60.0)
    assert made.towards_stop(99 * SECOND)["seconds"] == (60.0, 60.0)


def test_counts_never_go_back_and_are_never_counted_twice():
    made = picture(phase("generate", "executor", 1, 1, 0, rows=500), episode(1, 1, 500, 1.0), episode(1, 1, 400, 1.0))
    assert made.counts["env_steps"] == 500


def test_a_lane_tells_its_phase_its_busy_share_and_its_rate():
    made = picture(*story())
    lane = made.lanes["executor", 1]
    assert lane.doing(NOW) == "generate"
    share, rate = lane.activity.lately(NOW)
    assert share == pytest.approx(0.5, abs=0.05)
    assert rate == pytest.approx(100, rel=0.1)
    assert made.lanes["learner", None].doing(NOW) == "learn"
    assert not made.lanes["memorizer", None].own_process


def test_time_spent_waiting_for_room_is_not_work():
    made = picture(run_start(), phase("generate", "executor", 3, 2.0, 0, rows=1, waits={"lane": 1.5}))
    assert made.lanes["executor", 0].activity.lately(3 * SECOND)[0] == pytest.approx(0.25)


def test_who_is_not_heard_of_for_long_waits():
    made = picture(*story())
    assert made.lanes["executor", 0].doing(60 * SECOND) == "waits"
    assert made.lanes["executor", 0].activity.lately(60 * SECOND) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("events", "doing", "faulty"),
    [
        ([{"event": "hang", "process": "mlxe-exe-1"}], "hangs", True),
        ([{"event": "proc_exit", "process": "mlxe-exe-1", "expected": False}], "died", True),
        ([{"event": "proc_restart", "process": "mlxe-exe-1"}], "restarts", True),
        ([{"event": "proc_exit", "process": "mlxe-exe-1", "expected": True}], "left", False),
        ([{"event": "proc_restart", "process": "mlxe-exe-1"}, {"event": "proc_start", "process": "mlxe-exe-1"}], "", 0),
        ([{"event": "straggler", "role": "executor", "idx": 1}], "straggles", False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_lane_tells_what_happened_to_its_process(events, doing, faulty):
    made = picture(*story(), *events)
    assert made.lanes["executor", 1].state == doing
    assert made.lanes["executor", 1].is_faulty == faulty
    assert made.lanes["executor", 0].state == ""


def test_roles_that_share_a_process_share_its_fate():
    made = picture(*story(), {"event": "proc_exit", "process": "mlxe-lrn", "expected": False})
    assert [made.lanes[role, None].state for role in ("learner", "memorizer", "evaluator")] == ["died", "died", ""]
    made = picture(run_start(), {"event": "proc_exit", "process": "mlxe-serial", "expected": False})
    assert {lane.state for lane in made.lanes.values()} == {"died"}
    made = picture(*story(), {"event": "proc_exit", "process": "mlxe-istb", "expected": False})
    assert {lane.role for lane in made.lanes.values() if lane.state != "died"} == {"evaluator"}


def test_faults_are_counted_and_the_last_one_is_told():
    made = picture(
        *story(),
        {"event": "proc_exit", "expected": True, "sentence": "left"},
        {"event": "proc_exit", "expected": False, "process": "mlxe-exe-0", "sentence": "killed\x1b", "mono_ns": NOW},
        {"event": "proc_restart", "process": "mlxe-exe-0", "reason": "so"},
    )
    assert dict(made.faults) == {"proc_exit": 1, "proc_restart": 1}
    assert made.last_fault == "mlxe-exe-0: killed\\x1b"
    made.feed({"event": "env_error", "role": "executor", "idx": 3, "message": "nan"})
    assert made.last_fault == "executor 3: nan"


def test_a_run_that_was_resumed_begins_anew():
    made = picture(*story(), run_start(at=100.0))
    assert made.counts["env_steps"] == 0
    assert made.began_ns == 100 * SECOND


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(["executor", "learner", "mlxe-exe-3", "mlxe-serial", "learn", "generate", "x\x1b[2J\n"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["stop", "schedule", "executors", "lane"]), st.integers() | st.text(), max_size=2),
)
NAMES = sorted({name for event in event_schema()["$defs"].values() for name in event["properties"]} - {"event"})


@pytest.mark.long
@given(
    st.lists(st.tuples(st.sampled_from([*EVENTS, "?"]), st.dictionaries(st.sampled_from(NAMES), VALUES)), max_size=8)
)
def test_whatever_a_log_says_there_is_a_picture_of_it_and_it_is_harmless(events):
    made = picture(run_start(), *({"event": name, **values} for name, values in events))
    for columns in (80, 140):
        lines = draw(made, NOW, columns, 20, Glyphs())
        assert len(lines) <= 20
        assert all(line.cell_len <= columns and line.plain.isprintable() for line in lines)
    assert made.line(NOW).isprintable()


def test_activity_is_known_second_by_second():
    activity = Activity()
    activity.add(round(1.5 * SECOND), 3 * SECOND, 30.0)
    assert activity.shares(4 * SECOND, 4) == [0.0, 0.5, 1.0, None]
    assert activity.shares(60 * SECOND, 2) == [0.0, 0.0]
    assert activity.lately(3 * SECOND) == (1.0, pytest.approx(20.0))


def test_activity_of_long_ago_gives_way():
    activity = Activity()
    activity.add(0, SECOND, 1.0)
    activity.add(10**6 * SECOND, 10**6 * SECOND + 2 * SECOND, 5.0)
    assert activity.lately(10**6 * SECOND + 2 * SECOND)[1] <= 2.5
    assert activity.shares((10**6 + 3) * SECOND, BUCKETS)[0] == 0.0


@given(st.lists(st.floats(-1e6, 1e6), max_size=1000), st.integers(0, 100))
def test_a_curve_stays_short_and_within_its_values(values, count):
    curve = Curve()
    for value in values:
        curve.add(value)
    points = curve.points(count)
    assert len(points) <= min(count, LONGEST_CURVE)
    assert bool(points) == bool(values and count)
    assert all(min(values) - 1e-6 <= point <= max(values) + 1e-6 for point in points)


def test_many_episodes_at_once_are_as_each_by_itself():
    returns = [float(value % 37) for value in range(1000)]
    one, many = Picture(), Picture()
    same = {"event": "episode_end", "mono_ns": 5, "env_steps": 7000, "role": "executor", "idx": 0}
    for begin in range(0, 1000, 100):
        columns = {"episodes": range(begin + 1, begin + 101), "episode_return": returns[begin : begin + 100]}
        many.feed_episodes(same, columns)
        for number, value in zip(*columns.values(), strict=True):
            one.feed({**same, "episodes": number, "episode_return": value})
    assert (many.counts, many.best, many.recent, many.last_ns) == (one.counts, one.best, one.recent, one.last_ns)
    assert many.returns.points(64) == pytest.approx(one.returns.points(64))
