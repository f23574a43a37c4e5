"""What runs come to at tasks that are never solved, against values computed by hand."""

import json
import math

import pytest
from study_runs import Log, story, write_run

from mlxe_async.analysis import breakout_study
from mlxe_async.analysis.outcomes import MOST_TESTS, Outcome, outcome
from mlxe_async.analysis.pictures import all_pictures
from mlxe_async.analysis.scores import Score, score
from mlxe_async.analysis.study import Arm, Plan, StudyFolder, read_plan
from mlxe_async.analysis.tables import all_tables, score_table
from mlxe_async.cli.compare import run as compare
from mlxe_async.errors import SettingsError

CURVE = [(100, 2.0), (200, 4.0), (400, 9.0), (950, 8.0), (1000, 16.0)]


def made(seed, tests, name="dqn", env="ALE/Breakout-v5", **about):
    facts = {"env": env, "schedule": "oa", "algorithm": "dqn", **about.pop("facts", {})}
    ended = {"episodes": 5, "env_steps": 1000, "updates": 9, "seconds": 3.0}
    about = {"tested": False, "solved": False, "completed": True, "reason": "env_steps", "end": ended, **about}
    return Outcome(name, seed, test_curve=[list(point) for point in tests], facts=facts, **about)


def cells(table, row):
    return dict(zip(table.head, table.rows[row], strict=True))


def test_a_curve_is_told_by_its_last_tenth_its_highest_test_and_its_area():
    found = score(CURVE, [4.0, 7.0, 11.0, 11.1])
    # After step 900: 8 and 16. Area: 100 x 2 + 100 x 4 + 200 x 9 + 550 x 8 + 50 x 16, over 1000.
    assert found.final == 12.0
    assert found.highest == 16.0
    assert found.area == pytest.approx((200 + 400 + 1800 + 4400 + 800) / 1000)
    # Means of three: 5 at 400, 7 at 950, 11 at 1000.
    assert found.reached == (400, 950, 1000, math.inf)
    assert score(CURVE[::-1], [4.0]) == score(CURVE, [4.0])


def test_short_curves_are_told_as_far_as_they_go():
    assert score([(0, 3.0), (0, 5.0)], [1.0]) == Score(4.0, 5.0, 4.0, (math.inf,))
    assert score([(70, 3.0)]) == Score(3.0, 3.0, 3.0, ())
    with pytest.raises(ValueError, match="got none"):
        score([])


def test_settings_are_told_by_the_mean_of_their_runs_with_intervals_and_published_figures_below():
    runs = [made(0, CURVE), made(1, [(steps, value + 2) for steps, value in CURVE], completed=False)]
    table = score_table({"dqn": runs})
    one = cells(table, 0)
    assert one["completed"] == "1 of 2"
    assert one["last tenth"] == "13.0 [12.0, 14.0]"
    assert one["highest test"] == "17.0 [16.0, 18.0]"
    assert one["mean on the way"] == "8.6 [7.6, 9.6]"
    assert one["steps to 50"] == one["steps to 100"] == "failed [failed, failed]"
    names = [row[0] for row in table.rows]
    assert names == ["dqn", *(f"published: {name}" for name in breakout_study.CURVES)]
    published = cells(table, 1)
    assert published["last tenth"] == "128.0"
    assert published["steps to 50"] == "1,970,000"
    assert "tested with exploration" in table.note


def test_thresholds_that_are_asked_for_take_the_place_of_the_published_ones():
    table = score_table({"dqn": [made(0, CURVE)]}, (7.0, 11.0))
    assert len(table.rows) == 1
    assert (cells(table, 0)["steps to 7"], cells(table, 0)["steps to 11"]) == ("950", "1,000")
    elsewhere = score_table({"dqn": [made(0, CURVE, env="ALE/Pong-v5")]})
    assert elsewhere.head[-1] == "mean on the way"
    assert len(elsewhere.rows) == 1


def test_where_runs_are_judged_there_is_no_such_table_and_without_tests_training_counts():
    judged = {"x": [made(0, CURVE, tested=True)]}
    assert score_table(judged).rows == ()
    assert score_table({"x": [made(0, [])]}).rows == ()
    trained = made(0, [], curve=[[1, 100, 0.1, 4.0], [2, 200, 0.2, 6.0]])
    table = score_table({"x": [trained]})
    assert cells(table, 0)["last tenth"] == "6.0"
    assert cells(table, 0)["mean on the way"] == "5.0"
    assert table.title in [one.title for one in all_tables({"x": [trained]})]


def test_tests_are_placed_where_their_version_was_published(tmp_path):
    first, *_, last = story("x", 1, solved_at=None, env="ALE/Breakout-v5")
    log = Log()
    for version, env_steps in ((1, 0), (2, 640), (3, 1280)):
        log.add(1.0 + version, "weights", "learner", version=version, updates=9, env_steps=env_steps)
    for version, value in ((1, 2.0), (3, 7.5), (2, None)):  # a test that was no number is none
        log.add(6.0, "evaluation", "evaluator", version=version, passed=None, return_mean=value)
    one = outcome(write_run(tmp_path, [first, *log.lines, last]))
    assert one.test_curve == [[0, 2.0], [1280, 7.5]]
    assert Outcome.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_of_very_many_tests_means_are_kept(tmp_path):
    folder = write_run(tmp_path, story("x", 1, solved_at=None))
    lines = (folder / "log.jsonl").read_text().splitlines()
    log = Log()
    for version in range(2 * MOST_TESTS):
        log.add(1.0, "evaluation", "evaluator", version=10**6 + version, passed=None, return_mean=float(version % 2))
    (folder / "log.jsonl").write_text("\n".join([lines[0], *map(json.dumps, log.lines), lines[-1]]) + "\n")
    curve = outcome(folder).test_curve
    assert len(curve) == MOST_TESTS
    assert {value for _, value in curve} == {0.5}


@pytest.fixture(scope="module")
def pictures():
    """Drawn once; matplotlib keeps the files of its fonts open for good."""
    environments = ("ALE/Breakout-v5", "A-v0")
    return [{one.name: one for one in all_pictures({"dqn": [made(0, CURVE, env=env)]})} for env in environments]


def test_pictures_of_breakout_show_the_published_curves_beside_ours(pictures):
    breakout, other = (one["tests"] for one in pictures)
    assert "Published:" in breakout.caption
    assert "Published:" not in other.caption
    assert len(breakout.svg) > len(other.svg)


def test_the_published_figures_are_whole():
    for curve in breakout_study.CURVES.values():
        assert len(curve.means) == 10
        assert max(curve.means) < curve.highest
        assert 0 < curve.reached[0] < curve.reached[1] < 10 * breakout_study.MILLION


def test_a_study_keeps_its_thresholds_and_tells_by_others_when_resumed(tmp_path, capsys):
    folder = tmp_path / "study"
    file = tmp_path / "dqn.toml"
    file.write_text('[task]\nenv = "CartPole-v1"\n[algorithm]\nname = "dqn"\n')
    from mlxe_async.analysis.study import key_of

    arm = Arm("dqn", str(file), (), key_of(file, (), set()))
    with StudyFolder(folder) as kept:
        kept.write_plan(Plan((arm,), (0, 1), thresholds=(7.0,)))
        for seed in (0, 1):
            kept.store(arm, made(seed, CURVE, env="A-v0"), "program")
    assert read_plan(folder).thresholds == (7.0,)
    assert compare(["--resume", str(folder), "--no-pictures"]) == 0
    assert "steps to 7 |" in capsys.readouterr().out
    assert compare(["--resume", str(folder), "--no-pictures", "--thresholds", "4,11"]) == 0
    assert "steps to 4 | steps to 11 |" in capsys.readouterr().out
    assert read_plan(folder).thresholds == (4.0, 11.0)


@pytest.mark.parametrize("said", ["", "a", "5,5", "9,1", "nan", "1,2,3,4,5,6,7,8,9"])
def test_thresholds_that_are_none_are_refused(said):
    with pytest.raises((SettingsError, SystemExit)):
        compare(["x", "--thresholds", said])
