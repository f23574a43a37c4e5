"""Priorities made of factors in real runs: deterministic, wherever the memorizer lives, and through its death."""

import os
import signal

import numpy as np
import pytest
from live_runs import settings

from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.workers import Probe

JUDGED = {
    "algorithm": {
        "name": "mlxe",
        "min_updates": 4,
        "batch": 64,
        "priorities": ["age", "risk", "td"],
        "priority_exponent_growth": 0.001,
        "priority_correction": 0.5,
    },
    "stop": {"env_steps": 800},
}


@pytest.mark.slow
def test_one_seed_gives_the_same_weights_wherever_the_memorizer_lives(live):
    own, _ = live(schedule={"memorizer": "own"}, **JUDGED)
    beside, _ = live(schedule={"memorizer": "learner"}, **JUDGED)
    assert own.weights_hash == beside.weights_hash
    kept = {key: value for key, value in JUDGED["algorithm"].items() if not key.startswith("priorit")}
    evenly, _ = live(**{**JUDGED, "algorithm": kept | {"priorities": []}})
    assert evenly.weights_hash != own.weights_hash


@pytest.mark.slow
def test_after_the_memorizer_was_killed_rows_still_know_when_they_came(live):
    seen = {}

    async def kill(run):
        def look(line):
            if line["event"] == "run_end":
                supervisor = run.supervisor
                memory = ReplayMemory(
                    supervisor._startup.blueprint.memory_shape, supervisor._startup.segments["memory"].buffer
                )
                live_rows = memory.live()
                order = np.argsort(memory._ring["stamp"][live_rows])
                seen.update(born=memory._ring["born"][live_rows][order], phases=memory.phases)

        run.hooks.append(look)
        await run.saw("weights", times=4)
        os.kill(run.pid("mlxe-mem"), signal.SIGKILL)
        again = await run.saw("proc_start", times=2, process="mlxe-mem")
        await run.saw("weights", times=3, after=again["seq"])

    schedule = {"kind": "oa", "executors": 2, "memorizer": "own", "updates_per_publish": 4}
    roomy = {**JUDGED, "stop": {"env_steps": 4000}, "memory": {"capacity_rows": 40_000}}  # nothing is overwritten
    result, run = live(kill, schedule=schedule, **roomy)
    assert result.reason == "env_steps"
    assert run.all("proc_exit", process="mlxe-mem", expected=False)
    born, phases = seen["born"], seen["phases"]
    assert phases >= 6
    assert born.max() <= phases + 1
    # In the order in which they were stored, no row is older than one before it, and no phase's rows are missing.
    assert (np.diff(born) >= 0).all()
    assert len(np.unique(born)) == born.max() - born.min() + 1
    assert born.min() == 1
    assert len(born) == run.all("ledger")[-1]["committed"]


def test_an_algorithm_that_cannot_appraise_is_refused_when_it_is_probed():
    chosen = settings(algorithm={"name": "mute_algorithm:Mute", "priorities": ["age", "td"]})
    answer = Probe(chosen.model_dump(mode="json"), ProgressPage(bytearray(PAGE_BYTES))).probe()
    assert answer == {
        "problems": [
            {"path": ["algorithm"], "message": "priorities: td need an algorithm with the verb appraise"},
        ]
    }
