"""A real run whose fast updates are not those of its file goes on by the file, or is ended if that is noticed later."""

import pytest

from mlxe_async.errors import AuditFailed

WRONG = {"name": "wrong_twin:PPO", "epochs": 2, "minibatch": 64}
WRONG_LATER = WRONG | {"name": "wrong_later:PPO"}
LONG = {"stop": {"env_steps": 5000}}
SCHEDULE = {"envs_per_executor": 2, "sync": "rollout", "rollout_steps": 32}


@pytest.mark.long
def test_a_difference_ends_the_run_with_exit_code_3_and_what_differs_by_how_much(live):
    runs = []

    async def watch(run):
        runs.append(run)
        await run.saw("run_end")

    told = r"audit of update \d+: the gradient of its step 1 differs by \S+ of its norm .*; please report it"
    with pytest.raises(AuditFailed, match=told):
        live(
            watch, algorithm=WRONG | {"name": "wrong_later:PPO"}, schedule=SCHEDULE, learner={"audit_every": 16}, **LONG
        )
    (run,) = runs
    (how,) = run.all("updates")
    assert how["fast"]
    assert run.all("run_end")[0]["exit_code"] == 3
    assert len(run.all("proc_start", process="mlxe-lrn")) == 1


@pytest.mark.long
def test_a_difference_before_anything_learned_is_published_falls_back_to_the_file(live):
    result, run = live(algorithm=WRONG, schedule=SCHEDULE, stop={"env_steps": 500})
    assert result.exit_code == 0
    (how,) = run.all("updates")
    assert not how["fast"]
    assert how["reason"].startswith("audit of update 1: the gradient of its step 1 differs by ")
    written, _ = live(algorithm=WRONG, schedule=SCHEDULE, stop={"env_steps": 500}, learner={"fast": False})
    assert result.weights_hash == written.weights_hash


@pytest.mark.long
def test_the_same_run_is_right_where_it_is_done_as_it_is_written(live):
    result, run = live(algorithm=WRONG, schedule=SCHEDULE, stop={"env_steps": 500}, learner={"fast": False})
    assert result.exit_code == 0
    (how,) = run.all("updates")
    assert (how["fast"], how["reason"]) == (False, "learner.fast = false")


@pytest.mark.long
def test_weights_are_the_same_with_and_without_an_audit(live):
    algorithm = {"name": "ppo", "epochs": 2, "minibatch": 64}
    found = [
        live(algorithm=algorithm, schedule=SCHEDULE, stop={"env_steps": 1000}, learner={"audit_every": every})[0]
        for every in (0, 1)
    ]
    assert found[0].weights_hash == found[1].weights_hash


@pytest.mark.long
def test_a_gradient_of_a_cell_that_is_another_is_not_learned_by(live):
    wrong = {"name": "wrong_recurrence:PPO", "cell": "gru", "cell_size": 8, "epochs": 2, "minibatch": 64}
    schedule = SCHEDULE | {"rollout_steps": 64}
    result, run = live(algorithm=wrong, schedule=schedule, stop={"env_steps": 500})
    (how,) = run.all("updates")
    assert not how["fast"]
    assert how["reason"].startswith("audit of a recurrent layer: a gradient differs by ")
    right, run = live(algorithm=wrong | {"name": "ppo"}, schedule=schedule, stop={"env_steps": 500})
    (how,) = run.all("updates")
    assert how["fast"]
    written, _ = live(algorithm=wrong, schedule=schedule, stop={"env_steps": 500}, learner={"fast": False})
    assert result.weights_hash == written.weights_hash != right.weights_hash
