"""Lag on purpose: exact, told as policy lag, the same story every time, whoever is killed and gone on with."""

import shutil

import live_runs
import pytest
from resume_tools import SAVING, run_here, settings, whole_numbers
from test_determinism import EVALUATED, story

from mlxe_async.errors import SettingsError

PPO = {"name": "ppo", "epochs": 2, "minibatch": 32}
LAGGING = {"kind": "is", "simulated_lag": 3, "envs_per_executor": 2, "sync": "rollout", "rollout_steps": 32}
STOP = {"env_steps": 1400}


@pytest.fixture
def live_ppo(live, monkeypatch):
    monkeypatch.setitem(live_runs.QUICK, "algorithm", PPO)

    def run(meanwhile=None, **tables):
        return live(meanwhile, algorithm=PPO, stop=STOP, **{"schedule": LAGGING, **tables})

    return run


def learned(run):
    return [line for line in run.all("phase", phase="learn") if line["updates"]]


@pytest.mark.long
def test_rollouts_are_exactly_so_many_versions_old_and_the_same_twice(live_ppo):
    first, run = live_ppo(evaluation=EVALUATED)
    lags = [(line["lag_min"], line["lag_max"]) for line in learned(run)]
    assert lags[:5] == [(0, 0), (1, 1), (2, 2), (3, 3), (3, 3)]
    assert set(lags[3:]) == {(3, 3)}
    assert len(lags) > 8
    # What is tested is the newest version, whatever the executors act with.
    assert run.all("evaluation")[-1]["version"] > run.all("episode_end")[-1]["version"]
    second, again = live_ppo(evaluation=EVALUATED)
    assert second.weights_hash == first.weights_hash
    assert story(again) == story(run)
    unlagged, _ = live_ppo(schedule={**LAGGING, "simulated_lag": 0})
    assert unlagged.weights_hash != first.weights_hash


@pytest.mark.slow
def test_the_serial_schedule_lags_alike(live_ppo):
    parallel, run = live_ppo()
    serial, other = live_ppo(schedule={**LAGGING, "kind": "serial"})
    assert parallel.weights_hash == serial.weights_hash
    assert story(run) == story(other)


@pytest.mark.long
def test_no_lag_is_the_schedule_as_it_was(live_ppo):
    plain = {name: value for name, value in LAGGING.items() if name != "simulated_lag"}
    named, _ = live_ppo(schedule={**plain, "simulated_lag": 0})
    assert named.weights_hash == live_ppo(schedule=plain)[0].weights_hash


@pytest.mark.slow
def test_replayed_rows_are_older_by_the_lag(live):
    def lags(lag):
        _, run = live(stop={"env_steps": 600}, schedule={"kind": "is", "simulated_lag": lag})
        return [line["lag_min"] for line in learned(run)]

    assert max(lags(0)) == 0 or min(lags(0)) == 0
    assert min(lags(4)[6:]) >= 4


@pytest.mark.slow
def test_executors_and_learners_that_are_killed_change_nothing(live_ppo):
    # Of an executor that dies, whole episodes are begun again alike.
    whole = {"kind": "is", "simulated_lag": 3, "sync": "episode", "envs_per_executor": 1}
    undisturbed, run = live_ppo(schedule=whole)
    kill = live_runs.killing((3, "mlxe-exe-1"), (5, "mlxe-lrn"), (6, "mlxe-exe-0"), (8, "mlxe-lrn"))
    disturbed, killed = live_ppo(kill, schedule=whole)
    assert len(killed.all("proc_exit", expected=False)) == 4
    assert disturbed.weights_hash == undisturbed.weights_hash
    assert [(line["lag_min"], line["lag_max"]) for line in learned(killed)] == [
        (line["lag_min"], line["lag_max"]) for line in learned(run)
    ]


@pytest.mark.slow
def test_a_run_that_goes_on_has_all_the_older_versions(tmp_path, monkeypatch):
    monkeypatch.setitem(live_runs.QUICK, "algorithm", PPO)
    saving = settings(stop=STOP, schedule=LAGGING, **SAVING)
    whole, run = run_here(saving, tmp_path)
    first = min(set(whole_numbers(run)) & {int(path.name) for path in (whole.run_dir / "checkpoints").iterdir()})
    for path in (whole.run_dir / "checkpoints").iterdir():
        if int(path.name) > first:
            shutil.rmtree(path)
    again, rerun = run_here(saving, resume=whole.run_dir)
    assert rerun.all("run_resume")[0]["exact"]
    assert again.weights_hash == whole.weights_hash
    assert {(line["lag_min"], line["lag_max"]) for line in learned(rerun)} == {(3, 3)}


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1, 6])
def test_a_run_may_go_on_with_another_lag(tmp_path, monkeypatch, lag):
    monkeypatch.setitem(live_runs.QUICK, "algorithm", PPO)
    before, _ = run_here(settings(stop=STOP, schedule=LAGGING, **SAVING), tmp_path)
    longer = settings(stop={"env_steps": 2400}, schedule={**LAGGING, "simulated_lag": lag}, **SAVING)
    after, run = run_here(longer, resume=before.run_dir)
    assert after.steps > before.steps
    assert learned(run)[-1]["lag_max"] == lag


def test_an_algorithm_that_corrects_for_nothing_is_refused(live):
    with pytest.raises(SettingsError, match=r"schedule.simulated_lag.*got 2, expected 0: .*present policy"):
        live(algorithm={"name": "own_reinforce:REINFORCE"}, schedule={"kind": "is", "simulated_lag": 2})
