"""What a task's module patches in an algorithm is in the processes that import it: they are told from the learner's."""

import pytest

from mlxe_async.errors import SettingsError

PATCHED = {"env": "attacked:Attacked-v0", "max_episode_steps": 100}
PPO = {"name": "ppo", "epochs": 2, "minibatch": 64}
SCHEDULE = {"envs_per_executor": 2, "executors": 1, "sync": "rollout", "rollout_steps": 32}


@pytest.fixture
def attacked(monkeypatch):
    monkeypatch.setenv("ATTACK", "a_loss_is_wrapped")


@pytest.mark.parametrize("kind", ["is", "oa"])
def test_a_patch_that_the_learner_does_not_import_is_refused_with_its_place(kind, live, attacked):
    told = r"algorithms\.ppo:PPO\.loss \(from .*attacks\.py\).* is not the same in mlxe-\S+ as in the learner"
    with pytest.raises(SettingsError, match=told):
        live(task=PATCHED, algorithm=PPO, schedule=SCHEDULE | {"kind": kind}, stop={"env_steps": 10_000})


@pytest.mark.long
def test_in_one_process_it_is_learned(live, attacked):
    chosen = {"task": PATCHED, "algorithm": PPO, "schedule": SCHEDULE | {"kind": "serial"}, "stop": {"env_steps": 500}}
    fast, run = live(**chosen)
    (how,) = run.all("updates")
    assert (how["fast"], "PPO.loss" in how["reason"]) == (False, True)
    written, _ = live(**chosen, learner={"fast": False})
    assert fast.weights_hash == written.weights_hash


def test_without_a_patch_all_processes_have_the_same_code(live):
    result, _ = live(task=PATCHED, algorithm=PPO, schedule=SCHEDULE, stop={"env_steps": 300})
    assert result.exit_code == 0
