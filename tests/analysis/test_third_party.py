"""The program that tries environments of other packages judges what came, and goes on where it was."""

import importlib.util
import json
import sys
import tomllib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def program():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("third_party", BENCHMARKS / "third_party.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules["third_party"] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(BENCHMARKS))
        sys.modules.pop("third_party", None)


def log(returns):
    ends = [{"event": "episode_end", "episode_return": one} for one in returns]
    return [*ends, {"event": "run_end", "env_steps": 50, "updates": 3}]


def test_there_are_forty_environments_of_twelve_packages(program):
    assert len({(case.env, case.task) for case in program.CASES}) >= 40
    assert len({case.package for case in program.CASES}) >= 12
    assert {case.package for case in program.CASES} == set(program.PACKAGES)
    assert len({case.name for case in program.CASES}) == len(program.CASES)


def test_each_case_is_a_settings_file_of_two_tables_and_a_budget(program):
    for case in program.CASES:
        found = tomllib.loads(case.settings("/runs", 60.0))
        assert found["task"]["env"] == case.env
        assert found["algorithm"] == {"name": case.algorithm}
        assert found["stop"] == {"env_steps": 100_000, "seconds": 60.0}


@pytest.mark.parametrize(
    ("returns", "rose"),
    [
        ([0.0] * 50 + [1.0] * 50, True),
        ([0.0, 1.0] * 50, False),
        ([1.0] * 50 + [0.0] * 50, False),
        ([0.0, 0.0, 1.0, 1.0], False),
    ],
)
def test_returns_that_rose_by_more_than_chance_were_learned(program, returns, rose):
    about = program._learning(log(returns))
    assert about["rose"] is rose
    assert (about["episodes"], about["steps"], about["updates"]) == (len(returns), 50, 3)


@pytest.mark.parametrize(
    ("text", "code", "said", "rose", "outcome"),
    [
        ("", 0, "finished", True, "learned"),
        ("", 0, "finished", False, "runs"),
        ("", 2, "task.env: no", False, "refused"),
        ("", 2, "something else", False, "failed"),
        ("", 3, "task.env: no", False, "failed"),
        ("Traceback (most recent call last):", 0, "finished", True, "traceback"),
    ],
)
def test_what_came_is_judged_by_exit_code_and_last_line(program, text, code, said, rose, outcome):
    assert program._outcome(text, {"code": code, "said": said, "rose": rose}) == outcome


def test_a_recorded_case_is_not_run_again_and_the_newest_record_counts(program, tmp_path, monkeypatch, capsys):
    name, file = program.CASES[0].name, tmp_path / "kept.jsonl"
    old, new = ({"case": name, "outcome": one, "said": "", "package": "minigrid"} for one in ("hang", "refused"))
    file.write_text(f"{json.dumps(old)}\n{json.dumps(new)}\n")
    monkeypatch.setattr(program, "done", lambda *_: pytest.fail("it was run again"))
    monkeypatch.setattr(program.os, "nice", lambda _: None)
    assert program.main([name, "--venvs", str(tmp_path), "--results", str(file), "--show"]) == 0
    assert "1 refused; 0 had no time for an update." in capsys.readouterr().out
    assert "| refused |" in file.with_suffix(".md").read_text()
