"""A study's folder: finished runs are kept whole, changed settings are noticed, strangers' folders left alone."""

import dataclasses
import json

import pytest
from study_runs import story, write_run

from mlxe_async.analysis.outcomes import failure, outcome
from mlxe_async.analysis.study import (
    Arm,
    Plan,
    StudyFolder,
    group,
    has_outcomes,
    is_study,
    key_of,
    read_plan,
    stored_baselines,
    stored_outcomes,
)
from mlxe_async.errors import NotFound, ResourceError, RunFailed, RunFolderBusy, SettingsError

ARMS = tuple(Arm(name, f"/x/{name}.toml", ("a.b=1",), f"key-{name}") for name in ("is", "oa"))
PLAN = Plan(ARMS, (1, 2), ("/x/run",), timeout_s=7.5, keep_runs=False, d2=True, rerun=True)


@pytest.fixture
def kept(tmp_path):
    with StudyFolder(tmp_path / "study") as folder:
        folder.write_plan(PLAN)
        yield folder


def test_settings_take_turns_within_each_seed():
    assert [(arm.name, seed) for arm, seed in PLAN.rounds()] == [("is", 1), ("oa", 1), ("is", 2), ("oa", 2)]


def test_what_was_asked_for_is_read_back(kept, tmp_path):
    assert read_plan(kept.path) == PLAN
    (tmp_path / "other").mkdir()
    with pytest.raises(NotFound, match="expected the folder of a study"):
        read_plan(tmp_path / "other")


def test_a_finished_run_is_kept_and_known_again(kept, tmp_path):
    one = outcome(write_run(tmp_path, story(seed=1)))
    assert kept.finished(ARMS[0], 1) is None
    kept.store(ARMS[0], one, "program")
    found, key, program = kept.finished(ARMS[0], 1)
    assert json.dumps({**found.to_json(), "program": ""}) == json.dumps(one.to_json())
    assert (key, program) == ("key-is", "program")
    assert kept.finished(ARMS[1], 1) is None
    assert [(o.name, o.seed) for o in stored_outcomes(kept.path)] == [("is", 1)]


def test_a_file_that_was_cut_short_is_told_not_skipped(kept):
    (kept.path / "outcomes" / "is-1.json").write_text('{"name"')
    with pytest.raises(RunFailed, match=r"is-1\.json cannot be read, and may be removed"):
        kept.finished(ARMS[0], 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("outcomes/is-1.json", '{"format": 2, "name": "is"}'),
        ("outcomes/is-1.json", "[]"),
        ("outcomes/is-1.json", json.dumps({**failure("is", 1, "x", 1.0).to_json(), "seed": "3"})),
        ("baselines.json", '{"baselines": [{}]}'),
        ("baselines.json", "{"),
        ("study.json", '{"arms": 5, "seeds": []}'),
        ("study.json", '{"arms": [], "seeds": ["x"]}'),
        ("study.json", '{"arms": [], "seeds": [], "d2": 1}'),
    ],
)
def test_damaged_files_are_told_by_name(kept, name, text):
    (kept.path / name).write_text(text)
    read = {"study.json": read_plan, "baselines.json": stored_baselines}.get(name, stored_outcomes)
    with pytest.raises(RunFailed, match=name.rpartition("/")[2].replace(".", r"\.")):
        read(kept.path)


def test_an_outcome_without_its_key_is_told(kept):
    (kept.path / "outcomes" / "is-1.json").write_text(json.dumps(failure("is", 1, "x", 1.0).to_json()))
    with pytest.raises(RunFailed, match="expected a key"):
        kept.finished(ARMS[0], 1)


def test_what_was_only_staged_does_not_count(kept):
    (kept.path / "outcomes" / ".staged-is-1.json").write_text('{"name"')
    assert kept.finished(ARMS[0], 1) is None
    assert stored_outcomes(kept.path) == []


def test_where_only_the_report_is_left_its_outcomes_are_read(tmp_path):
    known = [failure("is", 1, "x", 1.0), failure("oa", 2, "y", 2.0)]
    report = tmp_path / "outcomes.jsonl"
    assert not has_outcomes(tmp_path)
    report.write_text("".join(f"{json.dumps(one.to_json())}\n" for one in known))
    assert has_outcomes(tmp_path)
    assert not is_study(tmp_path)
    assert [one.to_json() for one in stored_outcomes(tmp_path)] == [
        json.loads(json.dumps(one.to_json())) for one in known
    ]
    for bad in ("[]", "{", '{"name": 3}', "3"):
        report.write_text(bad)
        with pytest.raises(RunFailed, match=r"outcomes\.jsonl cannot be read"):
            stored_outcomes(tmp_path)


def test_changed_settings_are_refused_by_name(kept):
    kept.store(ARMS[0], failure("is", 1, "x", 1.0), "p")
    kept.store(ARMS[1], failure("oa", 1, "x", 1.0), "p")
    kept.check_unchanged(PLAN)
    changed = dataclasses.replace(PLAN, arms=(ARMS[0], dataclasses.replace(ARMS[1], key="new")))
    with pytest.raises(SettingsError, match=r"/x/oa\.toml: .* has changed since 1 of its runs .* --rerun") as info:
        kept.check_unchanged(changed)
    assert len(info.value.problems) == 1


def test_the_key_follows_the_file_its_modules_and_the_overrides(tmp_path):
    file, module = tmp_path / "a.toml", tmp_path / "m.py"
    file.write_text("x")
    module.write_text("y")
    first = key_of(file, ["a.b=1"], [module])
    assert key_of(file, ["a.b=1"], [module]) == first
    assert key_of(file, ["a.b=2"], [module]) != first
    module.write_text("z")
    assert key_of(file, ["a.b=1"], [module]) != first
    with pytest.raises(ResourceError, match="cannot be read"):
        key_of(tmp_path / "none", [], [])


def test_two_at_once_and_folders_of_others_are_refused(kept, tmp_path):
    with pytest.raises(RunFolderBusy, match="another one"):
        StudyFolder(kept.path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(SettingsError, match="holds something else"):
        StudyFolder(tmp_path / "mine")


def test_runs_of_one_settings_name_are_grouped_unless_their_settings_differ(tmp_path):
    runs = [
        outcome(write_run(tmp_path, story("oa", 2))),
        outcome(write_run(tmp_path, story("is", 3))),
        outcome(write_run(tmp_path, story("oa", 1))),
        failure("oa", 5, "killed", 1.0),
    ]
    assert {name: [one.seed for one in members] for name, members in group(runs).items()} == {
        "oa": [1, 2, 5],
        "is": [3],
    }
    other = outcome(write_run(tmp_path, story("oa", 9, batch=65)))
    groups = group([*runs, other])
    assert [[one.seed for one in members] for members in groups.values()] == [[1, 2, 5], [9], [3]]
    assert all(name.startswith("oa-") for name in list(groups)[:2])
