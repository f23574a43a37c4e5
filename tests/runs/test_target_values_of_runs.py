"""A learner of pictures that keeps values of its target network learns the same if it is killed, and has none again."""

import os
import signal

import pytest

TASK = {"env": "frame_tasks:Dot", "wrappers": ["frame_tasks:Repeating"], "max_episode_steps": 21}
LEARNS = {
    "name": "dqn", "body": "small", "layers": [16], "layer_norm": False, "batch": 32, "start_rows": 64,
    "target_every": 150,
}  # fmt: skip
SCHEDULE = {"kind": "is", "executors": 1, "envs_per_executor": 2, "rollout_steps": 16}


@pytest.mark.long
def test_a_learner_that_is_killed_and_keeps_no_values_goes_on_with_the_same_bits(live):
    def tables(**learner):
        memory = {"capacity_rows": 400}
        return {"task": TASK, "algorithm": LEARNS, "schedule": SCHEDULE, "memory": memory, "learner": learner}

    async def kill(run):
        for times in range(1, 4):
            await run.saw("weights", times=4 * times)
            os.kill(run.pid("mlxe-lrn"), signal.SIGKILL)
            await run.saw("proc_start", times=times + 1, process="mlxe-lrn")

    stop = {"updates": 400}
    undisturbed, first = live(**tables(), stop=stop)
    disturbed, second = live(kill, **tables(), stop=stop)
    audited, third = live(**tables(audit_every=5), stop=stop)
    for one in (first, second, third):
        assert all(line["fast"] for line in one.all("updates")), one.all("updates")
    assert len(second.all("proc_exit", process="mlxe-lrn", expected=False)) == 3
    assert disturbed.weights_hash == audited.weights_hash == undisturbed.weights_hash
