"""What is annealed by an executor's steps goes on where it was when the executor is started anew."""

import os
import signal

import numpy as np
import pytest

from mlxe_async.memory.replay import ReplayMemory


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["is", "oa"])
def test_the_clock_of_an_executor_survives_its_death(live, kind):
    clocks = {}

    async def kill(run):
        def hook(line):
            if line["event"] == "run_end":
                supervisor = run.supervisor
                memory = ReplayMemory(
                    supervisor._startup.blueprint.memory_shape, supervisor._startup.segments["memory"].buffer
                )
                for index in memory.live():
                    row = memory.row(index)
                    clocks.setdefault(int(index) // memory.shape.stream_rows, []).append((row["stamp"], row["clock"]))

        run.hooks.append(hook)
        await run.saw("phase", times=6, phase="generate")
        os.kill(run.pid("mlxe-exe-0"), signal.SIGKILL)
        await run.saw("run_end")

    _, run = live(
        kill,
        schedule={"kind": kind, "executors": 2},
        algorithm={"name": "noting_clocks:NotingClocks"},
        stop={"env_steps": 1200},
        memory={"capacity_rows": 8192},
    )
    assert run.all("proc_exit", process="mlxe-exe-0", expected=False)
    assert len(clocks) == 2
    for stream in clocks.values():
        in_order = np.array([clock for _, clock in sorted(stream)])
        if kind == "is":  # what was lost is generated again, alike
            np.testing.assert_array_equal(in_order, np.arange(len(in_order)))
        else:  # rows of the broken rollout count twice; the clock never starts again
            assert in_order[0] == 0
            assert len(in_order) - 250 < in_order[-1] < len(in_order)
            assert (in_order == 0).sum() == 1
