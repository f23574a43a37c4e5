"""A recorded `oa` run is done again bit for bit, whoever was faster the first time."""

import asyncio
import os
import signal

import pytest
from live_runs import on_loop, settings

from mlxe_async.errors import RunFailed, SettingsError
from mlxe_async.settings import load_settings
from mlxe_async.storage.run_folder import RECORDING
from mlxe_async.supervisor import Supervisor
from mlxe_async.supervisor.recording.file import Recorded

OA = {"kind": "oa", "executors": 2, "updates_per_publish": 4}
PUSHING = {"kind": "oa", "executors": 3, "gradients": "executors", "envs_per_executor": 2, "rollout_steps": 8}
RECORDED = {"run": {"name": "test", "seed": 3, "record": True}}
KINDS = {
    "uniform replay": {"schedule": OA},
    "priorities": {
        "schedule": OA,
        "algorithm": {"name": "mlxe", "min_updates": 4, "batch": 64, "priorities": ["age", "td"], "noisy": True},
    },
    "rollouts": {
        "schedule": {"kind": "oa", "executors": 2, "envs_per_executor": 4, "rollout_steps": 16},
        "algorithm": {"name": "ppo"},
    },
    "remembering": {
        "schedule": {"kind": "oa", "executors": 2, "envs_per_executor": 4, "rollout_steps": 16},
        "algorithm": {"name": "ppo", "cell": "lstm", "cell_size": 8},
    },
    "recalling": {
        "schedule": {"kind": "oa", "executors": 2, "envs_per_executor": 2, "rollout_steps": 33},
        "algorithm": {
            "name": "dqn",
            "cell": "gru",
            "cell_size": 8,
            "layers": [16],
            "start_rows": 64,
            "prioritised": True,
            "sequence_steps": 8,
            "burn_in": 4,
            "batch": 36,
            "value_rescaling": True,
        },
    },
    "small lanes": {"schedule": OA, "memory": {"block_rows": 8, "lane_slots": 2}},
    "dqn": {"schedule": OA, "algorithm": {"name": "dqn"}},
    "prioritised": {
        "schedule": OA,
        "algorithm": {"name": "dqn", "prioritised": True, "start_rows": 64},
        "memory": {"block_rows": 8},
    },
    "pushes": {"schedule": {**PUSHING, "rollout_steps": 16}, "algorithm": {"name": "a2c"}, "memory": {"block_rows": 8}},
    "pushes of minibatches": {
        "schedule": {**PUSHING, "max_policy_lag": 1},
        "algorithm": {"name": "ppo", "epochs": 2, "minibatch": 16},
    },
    "pushes of several episodes": {
        "schedule": {"kind": "oa", "executors": 3, "gradients": "executors"},
        "algorithm": {"name": "reinforce", "baseline": "mean", "rows_per_update": 60},
        "memory": {"block_rows": 8},
    },
    "mean of pushes": {"schedule": {**PUSHING, "combine": "mean", "mean_of": 3}, "algorithm": {"name": "impala"}},
    "pushes beside one that exploits": {
        "schedule": {**PUSHING, "executors": 3, "exploit_only": 1},
        "algorithm": {"name": "a2c"},
    },
    "late pushes": {"schedule": {**PUSHING, "simulated_lag": 3, "max_policy_lag": 100}, "algorithm": {"name": "a2c"}},
    "compensated pushes": {"schedule": {**PUSHING, "combine": "delay_compensated"}, "algorithm": {"name": "a2c"}},
}

LONG = [
    pytest.param(name, marks=pytest.mark.long)
    for name in ("pushes", "pushes of several episodes", "pushes beside one that exploits")
]


def recorded(live, **tables):
    """Run and record; the result."""
    return live(**{**RECORDED, **tables})[0]


def replayed(folder):
    """Do it again; the result."""

    async def main():
        chosen = load_settings(folder / "settings.toml")
        return await Supervisor(chosen, run_dir=folder.parent, replay=folder).run()

    return on_loop(main)


@pytest.mark.parametrize("kind", [pytest.param("priorities", marks=pytest.mark.slow), "rollouts", *LONG])
def test_the_same_weights_come_out_again(live, kind):
    first = recorded(live, **KINDS[kind])
    again = replayed(first.run_dir)
    assert again.weights_hash == first.weights_hash
    assert again.steps == first.steps
    assert again.updates == first.updates
    assert "to the same weights" in again.replayed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", KINDS)
def test_ten_of_ten_come_out_again(live, kind, seed):
    first = recorded(live, **KINDS[kind], run={"name": "test", "seed": seed, "record": True})
    again = replayed(first.run_dir)
    assert again.weights_hash == first.weights_hash
    assert again.replayed.startswith("all ")


@pytest.mark.long
def test_another_environment_is_told_apart_at_the_first_rollout(live):
    first = recorded(live, schedule=OA, stop={"env_steps": 300})
    file = first.run_dir / "settings.toml"
    file.write_text(file.read_text().replace("max_episode_steps = 200", "max_episode_steps = 9"))
    with pytest.raises(RunFailed, match=r"rollout\): expected \(\d+, 1\), got \(9, 1\); the environment is not"):
        replayed(first.run_dir)


@pytest.mark.long
def test_what_followed_a_death_is_not_replayed_and_said_so(live):
    async def kill(run):
        await run.saw("weights", times=4)
        os.kill(run.pid("mlxe-exe-1"), signal.SIGKILL)
        death = await run.saw("proc_exit", process="mlxe-exe-1")
        await run.saw("phase", times=2, after=death["seq"], phase="generate", idx=1)
        run.supervisor.request_stop("enough")

    first = live(kill, **{**RECORDED, "schedule": OA, "stop": {"env_steps": 100_000}})[0]
    assert Recorded.read(first.run_dir).end.why == "executor 1 died"
    again = replayed(first.run_dir)
    assert again.replayed.endswith("executor 1 died")
    assert 0 < again.steps < first.steps


def test_only_online_asynchronous_runs_are_recorded():
    with pytest.raises(SettingsError, match=r'run\.record: got true, expected false with schedule\.kind = "is"'):
        settings({"run.record": True})
    with pytest.raises(SettingsError, match=r'schedule\.memorizer = "own"'):
        settings({"run.record": True, "schedule.kind": "oa", "schedule.memorizer": "own"})


def test_a_run_that_was_not_recorded_cannot_be_replayed(undisturbed):
    first = undisturbed[0]
    assert not (first.run_dir / RECORDING).exists()
    with pytest.raises(SettingsError, match=r"only runs with run\.record = true"):
        asyncio.run(Supervisor(load_settings(first.run_dir / "settings.toml"), replay=first.run_dir).run())


def test_replayed_minibatches_of_executors_are_not_recorded(live):
    tables = {"schedule": PUSHING | {"envs_per_executor": 1}, "algorithm": {"name": "dqn"}}
    with pytest.raises(SettingsError, match=r"run\.record: got true, expected false: replayed rows may be overwritten"):
        recorded(live, **tables)
