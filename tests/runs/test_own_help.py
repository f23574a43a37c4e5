"""A user's own environment with help of its own, run from the command line as a user would."""

import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TOML = f"""
[run]
python_path = ["{HERE}"]
[stop]
env_steps = 400
[task]
env = "windy_task:Windy"
max_episode_steps = 100
mirror = true
features = true
shaped_reward = true
adverse_starts = true
[schedule]
kind = "is"
[algorithm]
name = "mlxe"
min_updates = 4
batch = 64
"""


@pytest.mark.long
def test_all_switches_work_on_an_environment_that_declares_what_they_need(command):
    run = command(TOML)
    code, _, error = run.wait()
    assert code == 0, error
    facts = json.loads((run.runs / "latest" / "run.json").read_text())["facts"]
    assert facts["spaces"]["observation_shape"] == [3]
    assert facts["spaces"]["symmetry"] == {"observation_sign": [-1.0, -1.0, 1.0], "action_order": [2, 1, 0]}
    assert facts["spaces"]["limits"] == [1.0, None, None]
    lines = run.lines()
    assert lines[-1]["event"] == "run_end"
    assert lines[-1]["env_steps"] >= 400
    assert not [line for line in lines if line["event"] == "env_error"]
    # The reported returns are the environment's own: one for each step.
    assert all(line["episode_return"] == line["length"] for line in lines if line["event"] == "episode_end")


def test_a_switch_without_its_part_is_a_sentence_with_the_way_out_and_exit_code_2(command):
    code, _, error = command(TOML.replace("windy_task:Windy", "slow_tasks:Bare")).wait()
    assert code == 2
    assert "Bare declares no adverse_start: give the environment, or a wrapper in task.wrappers, an attribute" in error
