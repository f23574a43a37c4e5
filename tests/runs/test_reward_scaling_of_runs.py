"""The scale of rewards in real runs: each row counts once, also after kills and in a run that goes on."""

import shutil

import live_runs
import numpy as np
import pytest
from resume_tools import SAVING, run_here, settings, whole_numbers

DISCOUNT = 0.9
SCALED = {
    "name": "own_scaling:ScaledPPO",
    "discount": DISCOUNT,
    "rows_per_update": 0,
    "epochs": 1,
    "minibatches": 2,
}
PIECES = {"kind": "is", "executors": 2, "envs_per_executor": 2, "sync": "rollout", "rollout_steps": 16}
WHOLE = {"kind": "is", "executors": 2, "envs_per_executor": 1, "sync": "episode"}
STOP = {"env_steps": 900}


@pytest.fixture(autouse=True)
def scaled(monkeypatch):
    monkeypatch.setitem(live_runs.QUICK, "algorithm", SCALED)


def told(run):
    return [line["losses"] for line in run.all("phase", phase="learn") if line["updates"]]


def returns_of(lengths):
    """R of all rows of CartPole's episodes, where each step is worth 1."""
    return np.concatenate([(1 - DISCOUNT ** np.arange(1, length + 1)) / (1 - DISCOUNT) for length in lengths])


@pytest.mark.long
def test_pieces_of_episodes_are_counted_as_the_whole_ones_they_belong_to(live):
    result, run = live(algorithm=SCALED, schedule=PIECES, stop=STOP)
    last = told(run)[-1]
    assert last["rows_counted"] == result.steps
    # Those that were under way at the end are known by what is left: four environments, all stepped alike.
    stepped, under_way = result.steps // 4, []
    for executor in range(2):
        for env in range(2):
            lengths = [e["length"] for e in run.all("episode_end", idx=executor) if e["env"] == env]
            under_way.append(stepped - sum(lengths))
    lengths = [episode["length"] for episode in run.all("episode_end")]
    every = returns_of([*lengths, *under_way])
    assert len(every) == result.steps
    assert last["mean_return"] == pytest.approx(every.mean(), rel=1e-6)
    assert last["deviation"] == pytest.approx(np.sqrt(every.var() + 1e-8), rel=1e-6)


@pytest.mark.slow
def test_each_row_counts_once_whoever_is_killed(live):
    undisturbed, run = live(algorithm=SCALED, schedule=WHOLE, stop=STOP)
    kill = live_runs.killing((3, "mlxe-exe-1"), (5, "mlxe-lrn"), (7, "mlxe-exe-0"), (9, "mlxe-lrn"))
    disturbed, killed = live(kill, algorithm=SCALED, schedule=WHOLE, stop=STOP)
    assert len(killed.all("proc_exit", expected=False)) == 4
    assert told(killed) == told(run)
    assert disturbed.weights_hash == undisturbed.weights_hash
    assert told(killed)[-1]["rows_counted"] == disturbed.steps


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [PIECES, WHOLE])
def test_a_run_that_goes_on_counts_on(tmp_path, schedule):
    saving = settings(algorithm=SCALED, stop=STOP, schedule=schedule, **SAVING)
    whole, run = run_here(saving, tmp_path)
    folder = whole.run_dir / "checkpoints"
    first = min(set(whole_numbers(run)) & {int(path.name) for path in folder.iterdir()})
    for path in folder.iterdir():
        if int(path.name) > first:
            shutil.rmtree(path)
    again, rerun = run_here(saving, resume=whole.run_dir)
    assert rerun.all("run_resume")[0]["exact"]
    assert told(rerun)[-1] == told(run)[-1]
    assert told(rerun)[-1]["rows_counted"] == again.steps
    assert again.weights_hash == whole.weights_hash


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ia", "oa"])
def test_where_rollouts_are_cut_or_late_the_running_return_is_still_that_of_its_episode(live, kind):
    _, run = live(algorithm=SCALED, schedule={**PIECES, "kind": kind}, stop=STOP)
    last, most = told(run)[-1], 1 / (1 - DISCOUNT)
    assert 1.0 <= last["mean_return"] < most
    assert last["rows_counted"] == sum(line["rows"] for line in run.all("phase", phase="learn"))
