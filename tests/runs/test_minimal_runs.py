"""The program that does whole runs of minimal files does each once, and again when the package changes."""

import json

import minimal_runs
import pytest


@pytest.fixture
def done(monkeypatch):
    """The cases that were really done; `ppo-vector-is` goes wrong."""
    found = []

    def outcome(case, _folder):
        found.append(str(case))
        return "no update" if str(case) == "ppo-vector-is" else ""

    monkeypatch.setattr(minimal_runs, "outcome", outcome)
    return found


def test_what_was_fine_is_not_done_again_and_what_went_wrong_is(done, tmp_path, monkeypatch):
    arguments = ["--kept", str(tmp_path / "kept"), "--only", "ppo-vector"]
    assert minimal_runs.main(arguments) == 1
    assert done == [f"ppo-vector-{kind}" for kind in minimal_runs.SCHEDULES]
    with (tmp_path / "kept").open("a") as file:
        file.write('{"version": "torn')
    done.clear()
    assert minimal_runs.main(arguments) == 1
    assert done == ["ppo-vector-is"]
    monkeypatch.setattr(minimal_runs, "digest", lambda: "another version")
    done.clear()
    minimal_runs.main(arguments)
    assert len(done) == len(minimal_runs.SCHEDULES)


def test_every_algorithm_meets_every_schedule_and_kind_and_what_is_refused_is_known():
    every = list(minimal_runs.cases())
    assert len(set(every)) == len(every) == 14 * 4 * 5
    assert sum(case.is_refused for case in every) == 2 * 3 * 5 + 2 * 4 + 1 + 3 * 5


def test_a_run_without_an_update_is_told(tmp_path, monkeypatch):
    case = minimal_runs.Case("ppo", "vector", "is")
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "status.json").write_text(json.dumps({"updates": 0}))
    monkeypatch.setattr(minimal_runs, "called", lambda *_: (0, ""))
    assert minimal_runs.outcome(case, tmp_path) == "the run ended without an update"
    (run / "status.json").write_text(json.dumps({"updates": 3}))
    assert minimal_runs.outcome(case, tmp_path) == "going on ended without another update"
    monkeypatch.setattr(minimal_runs, "called", lambda *_: (3, "why"))
    assert minimal_runs.outcome(case, tmp_path) == "the run ended with exit code 3: why"
