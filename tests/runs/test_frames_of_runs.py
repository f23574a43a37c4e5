"""A run that stores each frame once learns what a run that stores whole stacks learns, to the last bit."""

import pytest

from mlxe_async.supervisor.plan import blueprint

TABLES = {
    "schedule": {"kind": "is", "executors": 2, "envs_per_executor": 2, "sync": "rollout", "rollout_steps": 16},
    "stop": {"env_steps": 1280},
    "memory": {"capacity_rows": 400, "keep_rows": 32, "block_rows": 16},
    "algorithm": {"name": "dqn", "start_rows": 128, "batch": 16, "layers": [32]},
}


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["Repeating", "Zeros"])
def test_frames_stored_once_give_the_same_weights_as_whole_stacks(live, monkeypatch, padding):
    task = {"env": "frame_tasks:Dot", "wrappers": [f"frame_tasks:{padding}"], "max_episode_steps": 21}
    once, run = live(task=task, **TABLES)
    shape = run.supervisor._startup.blueprint.memory_shape
    assert (shape.frames, shape.stacked) == (4, ("obs", "next_obs", "cut_obs"))
    monkeypatch.setattr(blueprint, "stored_frames", lambda facts: 0)
    whole, other = live(task=task, **TABLES)
    assert other.supervisor._startup.blueprint.memory_shape.frames == 0
    assert once.updates == whole.updates > 300
    assert once.weights_hash == whole.weights_hash
    overwritten = [each.all("ledger")[-1]["overwritten"] for each in (run, other)]
    assert overwritten[0] == overwritten[1] > 400
