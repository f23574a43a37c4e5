"""A finished run is judged by its log: what it needed, where it was given up, who had nothing to do."""

import json

import pytest
from study_runs import SECOND, ZERO_NS, Log, story, write_run

from mlxe_async.analysis.outcomes import CURVE_POINTS, Outcome, digest_of, of_format_1, outcome
from mlxe_async.analysis.tables import outcome_table
from mlxe_async.errors import RunFailed
from mlxe_async.logs.reader import read_log


def test_a_solved_run_is_told_by_the_moment_of_the_publication(tmp_path):
    one = outcome(write_run(tmp_path, story(seed=7, solved_at=8, episodes=12)))
    assert (one.name, one.seed, one.solved, one.failed, one.reason) == ("is", 7, True, False, "solved")
    assert (one.episodes, one.env_steps, one.updates, one.tests) == (8, 80, 256, 6)
    assert one.seconds_to_publication == pytest.approx(4.901)
    assert one.seconds_to_exit == 7
    assert one.cpu_seconds == pytest.approx(2.4505)
    assert one.clock == "run"
    assert one.end == {"episodes": 12, "env_steps": 120, "updates": 384, "seconds": 7}
    assert one.needed("episodes") == 8


def test_both_clocks_start_with_the_command_where_that_is_known(tmp_path):
    one = outcome(write_run(tmp_path, story()), ZERO_NS - 2 * SECOND, 9.5)
    assert one.seconds_to_publication == pytest.approx(6.901)
    assert (one.seconds_to_exit, one.clock) == (9.5, "command")
    assert one.end["seconds"] == 9


def test_a_run_that_did_not_solve_its_task_is_a_failure_censored_where_it_ended(tmp_path):
    one = outcome(write_run(tmp_path, story(solved_at=None, episodes=20)))
    assert (one.failed, one.completed, one.reason) == (True, True, "episodes")
    assert one.needed("episodes") == float("inf")
    assert one.needed("seconds_to_exit") == float("inf")
    assert (one.end["episodes"], one.end["seconds"]) == (20, 11)


def test_a_run_without_tests_fails_only_by_not_ending_well(tmp_path):
    one = outcome(write_run(tmp_path, story(solved_at=None, tested=False)))
    assert (one.tested, one.failed, one.episodes, one.env_steps) == (False, False, 12, 120)
    assert one.needed("cpu_seconds") == 3.5
    assert one.needed("seconds_to_publication") == float("inf")
    assert one.final_return == pytest.approx(35)


def test_a_killed_run_is_a_failure_as_far_as_its_log_goes(tmp_path):
    path = write_run(tmp_path, story(solved_at=None, ended=False))
    with pytest.raises(RunFailed, match="no run_end"):
        outcome(path)
    one = outcome(path, ZERO_NS, 8.0, killed="killed by SIGKILL")
    assert (one.failed, one.completed, one.reason) == (True, False, "killed by SIGKILL")
    assert (one.end["episodes"], one.end["env_steps"], one.end["updates"]) == (12, 120, 384)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "log.jsonl").touch()
    with pytest.raises(RunFailed, match="no run_start"):
        outcome(tmp_path / "empty", killed="x")


def test_policy_lag_is_the_mean_of_rows_not_of_phases(tmp_path):
    one = outcome(write_run(tmp_path, story(episodes=6, solved_at=None)))
    assert one.lag_mean == pytest.approx((100 * 0 + 200 * 1 + 300 * 2) / 600)


def test_idle_is_what_a_process_did_not_compute_of_its_life(tmp_path):
    cpu = {"mlxe-sup": 0.7, "mlxe-exe-0": 0.6, "mlxe-exe-1": 1.2, "mlxe-lrn": 4.5}
    one = outcome(write_run(tmp_path, story(), cpu=cpu))
    # Executors and learner live from 1 s to 7 s, the supervisor for 7 s.
    assert one.idle == pytest.approx({"supervisor": 0.9, "executors": 1 - 1.8 / 12, "learner": 0.25}, abs=1e-4)
    assert outcome(write_run(tmp_path, story(seed=2))).idle == {}


def test_at_work_is_the_share_of_time_in_phases_without_waiting(tmp_path):
    one = outcome(write_run(tmp_path, story(episodes=12)))
    # From 1 s to the end of the last publication, 5.901 s. Each executor generates for 0.2 s in each of six rounds.
    assert one.at_work["executors"] == pytest.approx(6 * 0.2 / 5.901, abs=1e-4)
    assert one.at_work["learner"] == pytest.approx(6 * 0.501 / 5.901, abs=1e-4)


def test_retention_counts_versions_tested_after_the_task_was_solved(tmp_path):
    after = (True, False, True)
    goes_on = {"solved": True, "steps_after_solved": 500}
    assert outcome(write_run(tmp_path, story(after=after, stop=goes_on))).retention == (3, 2)
    assert outcome(write_run(tmp_path, story(seed=2, after=after, stop={"solved": False}))).retention == (3, 2)
    assert outcome(write_run(tmp_path, story(seed=3, stop=goes_on))).retention is None
    # Where the run stops as soon as it is solved, only tests that were under way are still told.
    assert outcome(write_run(tmp_path, story(seed=4, after=(False,)))).retention is None


def test_the_curve_is_thinned_to_means_of_groups(tmp_path):
    log = Log()
    log.lines = story(episodes=0, solved_at=None, ended=False)
    for number in range(1, 1001):
        log.episode(1 + number / 100, number, 5 * number, float(number))
    one = outcome(write_run(tmp_path, log.lines), ZERO_NS, 20.0, killed="x")
    assert len(one.curve) == CURVE_POINTS
    assert one.curve[0] == [5, 25, 1.05, 3.0]
    assert one.curve[-1] == [1000, 5000, 11.0, 998.0]
    assert one.final_return == pytest.approx(950.5)
    few = outcome(write_run(tmp_path, story(seed=3, episodes=4)))
    assert [point[3] for point in few.curve] == [10, 10, 20, 20]


def test_the_first_episode_of_fifty_thousand_steps_is_noted(tmp_path):
    log = Log()
    log.lines = story(episodes=4, solved_at=None, ended=False)
    log.episode(5.0, 5, 60_000, 1.0, length=50_000)
    log.episode(6.0, 6, 160_000, 1.0, length=90_000)
    one = outcome(write_run(tmp_path, log.lines), ZERO_NS, 20.0, killed="x")
    assert one.d0 == {"episodes": 5, "env_steps": 60_000, "updates": 128, "seconds": 5.0}


def test_spans_begin_with_the_first_rollout(tmp_path):
    spans = outcome(write_run(tmp_path, story())).spans
    assert spans[0][:4] == ["executor 0", "generate", 0.0, 0.2]
    assert ["executor 1", "generate", 0.0, 0.3, 0.1] in spans
    assert ["learner", "learn", 0.4, 0.5, 0.0] in spans
    assert all(start < 3 for _, _, start, _, _ in spans)


def test_an_outcome_survives_being_stored(tmp_path):
    one = outcome(write_run(tmp_path, story(after=(True,), stop={"solved": False})))
    stored = json.loads(json.dumps({**one.to_json(), "of a later version": 1}))
    again = Outcome.from_json(stored)
    assert json.dumps(again.to_json()) == json.dumps(one.to_json())
    with pytest.raises(ValueError, match="expected an outcome"):
        Outcome.from_json({"name": "x"})


def test_the_digest_tells_settings_apart_but_not_seeds():
    a, b = story(seed=1)[0]["settings"], story(seed=2)[0]["settings"]
    assert digest_of(a) == digest_of(b)
    assert digest_of(a) != digest_of(story(batch=65)[0]["settings"])


def judged_by_episode(folder, seed, longest, reason):
    """An episode of `longest` steps ends at 2.95 s; another, longer one, and a round of learning, follow."""
    lines = story(seed=seed, episodes=4, solved_at=None, tested=False, stop={"solved": False, "episode_steps": 50_000})
    lines[-1] |= {"reason": reason, "env_steps": 200_000, "updates": 192, "episodes": 6}
    log = Log()
    log.lines = lines[:-1]
    log.episode(2.95, 5, 50_040, 1.0, length=longest)
    log.episode(2.97, 6, 200_000, 1.0, length=longest + 10)
    log.add(2.98, "weights", "learner", version=4, updates=192)
    return outcome(write_run(folder, [*log.lines, lines[-1]]))


def test_a_long_training_episode_may_be_the_goal_and_all_is_counted_when_it_was_through(tmp_path):
    reached = judged_by_episode(tmp_path, 1, 50_000, "episode_steps")
    assert (reached.tested, reached.solved) == (True, True)
    assert (reached.episodes, reached.env_steps, reached.updates) == (5, 50_040, 128)
    assert reached.seconds_to_publication == pytest.approx(2.95)
    assert reached.end["updates"] == 192
    assert reached.cpu_seconds == 1.5  # of the whole run
    assert reached.facts["episode_steps"] == 50_000
    given_up = judged_by_episode(tmp_path, 2, 40_000, "episodes")
    assert (given_up.tested, given_up.failed, given_up.episodes) == (True, True, None)


def test_the_counts_at_both_ends_of_the_long_episode_are_those_that_the_run_told(tmp_path):
    lines = story(episodes=4, solved_at=None, tested=False, stop={"solved": False, "episode_steps": 900})
    lines[-1] |= {"reason": "episode_steps"}
    log = Log()
    log.lines = lines[:-1]
    log.episode(2.95, 5, 5_000, 1.0, length=900)
    began = {"episodes": 2, "episodes_started": 4, "env_steps": 1_200, "updates": 64, "version": 2, "seconds": 1.0}
    ended = {"episodes": 5, "episodes_started": 6, "env_steps": 5_070, "updates": 129, "version": 3, "seconds": 2.9}
    moments = {
        "began": {**began, "mono_ns": ZERO_NS + 2 * SECOND},
        "ended": {**ended, "mono_ns": ZERO_NS + round(2.95 * SECOND)},
    }
    log.add(2.95, "long_episode", "executor", length=900, version=2, **moments)
    one = outcome(write_run(tmp_path, [*log.lines, lines[-1]]))
    assert (one.episodes, one.env_steps, one.updates) == (5, 5_070, 129)
    assert one.d0["start_seconds"] == pytest.approx(2.0)
    assert one.d0["seconds"] == pytest.approx(2.95)
    assert {key: one.d0[f"start_{key}"] for key in ("episodes", "env_steps", "updates")} == {
        key: began[key] for key in ("episodes", "env_steps", "updates")
    }
    (head, _, row) = outcome_table({"oa": [one]}).markdown.splitlines()[2:5]
    cells = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert [cells[f"D0 {name} at its start"] for name in ("episodes", "updates")] == ["2", "64"]


def test_outcomes_of_the_first_format_are_mended():
    facts = {"schedule": "is"}
    d0 = {"episodes": 122, "env_steps": 112_888, "updates": 960, "seconds": 119.5}
    ends = {"episodes": 128, "env_steps": 412_888, "updates": 1025}
    old = {"reason": "episode_steps", "d0": d0, "facts": facts, "retention": [2, 0], **ends}
    mended = of_format_1(old)
    assert {key: mended[key] for key in ends} == {key: d0[key] for key in ends}
    assert mended["facts"] == {"schedule": "is", "episode_steps": 50_000}
    assert mended["retention"] == [2, 0]
    assert of_format_1({**old, "reason": "solved"}) == {**old, "reason": "solved", "retention": None}


def resumed_story():
    """A run that died after its third round and went on, on a host that was booted anew, from the end of the first."""
    lines = story(episodes=6, solved_at=None, ended=False)
    until = next(line["seq"] for line in lines if line["event"] == "evaluation") + 1
    moment = lines[until - 1]["mono_ns"]
    again = story(episodes=6, solved_at=6)
    gap = 10_000 * SECOND
    log = Log()
    log.lines = lines[:-2] + [{**line, "mono_ns": moment + 9 * SECOND} for line in lines[-2:]]
    last = len(log.lines) - 1
    start = {**again[0], "mono_ns": moment + gap, "resumed": True}
    told = {**start, "event": "run_resume", "void_from": until, "void_to": last, "gap_ns": gap}
    log.lines += [start, told]
    births = [line for line in again if line["event"] == "proc_start"]
    log.lines += [{**line, "mono_ns": moment + gap} for line in births]
    keys = ("mono_ns", "start_ns", "published_ns")
    log.lines += [{**line, **{key: line[key] + gap for key in keys if key in line}} for line in again[until:]]
    return [{**line, "seq": seq} for seq, line in enumerate(log.lines)]


def test_a_resumed_run_is_one_story_by_one_clock(tmp_path):
    cpu = {"mlxe-sup": 0.4, "mlxe-lrn": 1.5}
    plain = outcome(write_run(tmp_path, story(episodes=6, solved_at=6), cpu=cpu, folder="plain"))
    path = write_run(tmp_path, resumed_story(), cpu=cpu, folder="resumed")
    again = outcome(path)
    for name in ("solved", "episodes", "env_steps", "updates", "tests", "end", "curve", "at_work", "idle", "lag_mean"):
        assert getattr(again, name) == getattr(plain, name), name
    assert again.seconds_to_publication == plain.seconds_to_publication == pytest.approx(3.901)
    assert again.spans == plain.spans
    # All that was written is there for who asks.
    kept, everything = list(read_log(path)), list(read_log(path, void=True))
    assert len(everything) == len(resumed_story()) > len(kept)


def test_a_resumption_that_failed_before_it_took_up_the_run_changes_nothing(tmp_path):
    lines = story(episodes=6, solved_at=6)
    late = {"mono_ns": lines[-1]["mono_ns"] + 99 * SECOND}
    failed = [{**lines[0], **late, "resumed": True}, {**lines[-1], **late, "exit_code": 3, "episodes": 0}]
    plain = outcome(write_run(tmp_path, lines, folder="plain"))
    again = outcome(write_run(tmp_path, lines + failed, folder="failed"))
    assert (again.end, again.completed, again.solved) == (plain.end, True, True)


@pytest.mark.parametrize("damage", [{"name": 3}, {"end": {"seconds": "x"}}, {"retention": [1]}, {"curve": [[1, None]]}])
def test_an_outcome_with_values_of_other_kinds_is_none(tmp_path, damage):
    stored = outcome(write_run(tmp_path, story())).to_json()
    with pytest.raises(ValueError, match=f"expected an outcome, got {next(iter(damage))} that is not"):
        Outcome.from_json({**stored, **damage})


def test_a_damaged_log_is_told_not_fallen_over(tmp_path):
    lines = story()
    del lines[-1]["episodes"]
    with pytest.raises(RunFailed, match="a line of it cannot be used"):
        outcome(write_run(tmp_path, lines))
