"""A run that goes on after it has solved its task, still tested; and the best version, kept besides the last."""

import subprocess
import sys

import pytest

from mlxe_async import load_policy
from mlxe_async.storage import checkpoints

SOLVING = {
    "stop": {"solved": True, "steps_after_solved": 800, "env_steps": 100_000},
    "task": {"env": "CartPole-v1", "max_episode_steps": 500, "mirror": True},
    "algorithm": {"min_updates": 64, "batch": 256, "entropy": 0.3, "activation": "tanh"},
    "evaluation": {
        "enabled": True,
        "rule": "cap",
        "max_episode_steps": 300,
        "screen_steps": 50,
        "episodes": 4,
        "passes": 2,
    },
}

TASK = """
import gymnasium
import numpy as np


class Bandit(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action), True, False, {}
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["is", "oa"])
def test_the_run_goes_on_for_so_many_steps_and_its_versions_are_tested_all_the_while(live, kind):
    result, run = live(**SOLVING, schedule={"kind": kind, "executors": 2})
    assert (result.reason, result.solved, result.exit_code) == ("solved", True, 0)
    (told,) = run.all("solved")
    solved_at = max(line["env_steps"] for line in run.lines if "env_steps" in line and line["seq"] < told["seq"])
    # Executors that are under way when it is time to stop may finish their episode.
    assert 800 <= result.steps - solved_at <= 800 + 2 * 500
    later = [line for line in run.all("evaluation") if line["seq"] > told["seq"]]
    assert later
    assert any(line["version"] > told["version"] + 1 for line in later)

    tests = run.all("evaluation")
    best = max(line["return_mean"] for line in tests)
    policy = load_policy(result.run_dir, checkpoint="best")
    assert policy.version == max(line["version"] for line in tests if line["return_mean"] == best)
    assert checkpoints.load(result.run_dir / "checkpoints", "best")[1]["score"] == best
    assert load_policy(result.run_dir, checkpoint="solved").version == told["version"]
    assert load_policy(result.run_dir, checkpoint="last").version == run.all("weights")[-1]["version"]
    assert policy.test().return_mean == best


@pytest.mark.long
def test_the_policy_of_a_run_with_own_modules_is_played_and_tested_in_another_process(live, tmp_path):
    (tmp_path / "own_bandit.py").write_text(TASK)
    result, _ = live(
        task={"env": "own_bandit:Bandit", "max_episode_steps": 5},
        run={"python_path": [str(tmp_path)]},
        stop={"episodes": 4},
    )
    done = subprocess.run(
        [sys.executable, "-m", "mlxe_async", "play", str(result.run_dir), "--checkpoint", "last", "--sampled"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "in 1 steps, terminated" in done.stdout
