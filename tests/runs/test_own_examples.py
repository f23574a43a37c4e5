"""Each example of own code, settings and what they name, runs as it is."""

from pathlib import Path

import pytest

from mlxe_async import Supervisor, load_settings, read_log
from mlxe_async.cli import main

OWN = Path(__file__).parents[2] / "settings" / "own"
FILES = sorted(path.stem for path in OWN.glob("*.toml"))
BETTER = {"best-score": 25, "dictionary": 0.3, "masked": 0.1, "network": 100, "recurrent": 30, "vector": 50}
"""Gain in mean return from the first tenth of the episodes to the last, by far above chance."""


def run(name, folder, overrides):
    return Supervisor(load_settings(OWN / f"{name}.toml", overrides), run_dir=folder).run_sync()


def test_there_is_one_for_each_thing_of_ones_own():
    assert sorted(BETTER) == FILES


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_an_example_runs_to_its_second_update_and_its_policy_plays(name, tmp_path):
    from mlxe_async import load_policy

    result = run(name, tmp_path, {"stop.updates": 2})
    assert result.updates >= 2
    assert next(load_policy(result.run_dir).play()).steps >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_an_example_learns(name, tmp_path):
    result = run(name, tmp_path, {"run.seed": 7})
    returns = [line["episode_return"] for line in read_log(result.run_dir) if line["event"] == "episode_end"]
    count = max(1, len(returns) // 10)
    assert sum(returns[-count:]) / count - sum(returns[:count]) / count > BETTER[name]


def test_new_copies_the_examples_with_the_code_that_they_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "lamp", "--examples"]) == 0
    copied = tmp_path / "lamp" / "examples" / "own"
    assert {path.name for path in copied.iterdir()} == {
        path.name for path in OWN.iterdir() if path.suffix in (".py", ".toml")
    }
    assert load_settings(copied / "vector.toml").run.python_path == (str(copied),)
