"""What a run saved: loaded in Python, played and tested by a new process, compared over seeds."""

import re
import subprocess
import sys

import numpy as np
import pytest

from mlxe_async import load_policy
from mlxe_async.cli.compare import parse_seeds
from mlxe_async.errors import ResourceError, SettingsError

SOLVING = {
    "stop": {"solved": True, "env_steps": 100_000},
    "task": {"env": "CartPole-v1", "max_episode_steps": 500, "mirror": True, "squared_position": True},
    "algorithm": {"min_updates": 64, "batch": 256, "entropy": 0.3, "activation": "tanh"},
    "evaluation": {"enabled": True, "max_episode_steps": 300, "screen_steps": 50, "episodes": 4, "passes": 2},
}


@pytest.fixture
def solved(live):
    result, run = live(**SOLVING)
    assert result.solved
    assert result.reason == "solved"
    return result, run


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "mlxe_async", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_version_that_solved_the_task_is_saved_loaded_played_and_tested(solved):
    result, run = solved
    (told,) = run.all("solved")
    passed = [line["version"] for line in run.all("evaluation", passed=True)]
    assert told["version"] in passed
    assert passed.index(told["version"]) + 1 < len(passed)

    policy = load_policy(result.run_dir)
    assert policy.version == told["version"]
    one = policy.act(np.array([0.0, 0.0, 0.1, 0.0]))
    several = policy.act(np.array([[0.0, 0.0, 0.1, 0.0], [0.0, 0.0, -0.1, 0.0]]))
    assert one == 1
    assert several.tolist() == [1, 0]
    assert policy.test().passed
    with pytest.raises(ValueError, match=r"expected observations of shape \(5,\), got \(3,\)"):
        policy.act(np.zeros(3))

    out = command("play", str(result.run_dir), "--episodes", "2", "--max-steps", "200")
    assert out.count("return 200.0 in 200 steps, truncated") == 2
    assert f"version {policy.version} passed: 4 episodes, 1,200 steps" in command("eval", str(result.run_dir))


def test_a_policy_that_does_not_exist_is_refused_by_name(tmp_path):
    with pytest.raises(ResourceError, match="there is no run"):
        load_policy(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [3]), ("1,5", [1, 5]), ("1000..1003", [1000, 1001, 1002, 1003]), ("7..7", [7])]
)
def test_seeds_are_given_as_a_list_or_a_range(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "5..1", "1..", "1-3", "-1", "1..99999999"])
def test_other_seeds_are_refused(text):
    with pytest.raises(SettingsError, match="--seeds"):
        parse_seeds(text)


def test_compare_runs_each_file_with_each_seed_and_tells_failures_as_failures(tmp_path):
    file = tmp_path / "quick.toml"
    file.write_text(
        f"""
[run]
dir = "{tmp_path}"
[stop]
solved = true
episodes = 4
[task]
env = "CartPole-v1"
[schedule]
kind = "is"
[evaluation]
enabled = true
"""
    )
    short = ("--set", "evaluation.max_episode_steps=400", "--set", "evaluation.screen_steps=100")
    out = command("compare", str(file), "--seeds", "1,2", "--baselines", "2", *short)
    rows = [line for line in out.splitlines() if line.startswith("| quick |")]
    assert [row.split("|")[2].strip() for row in rows] == ["1", "2"]
    assert all("| episodes |" in row for row in rows)
    assert "| **quick** | median | 0 of 2 | - | - | - |" in out
    assert re.search(r"fixed linear \(0\.1, 0\.3, 1, 0\.4\): 1 of 1 pass one test", out)
    assert "untrained ReLU 64,64: " in out
