"""`learner.own_core`: in a real run the learner's process, and no other, runs on the core that it was given."""

import os
import signal

import pytest

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores to choose from")
CORES = os.sched_getaffinity(0)


@pytest.mark.long
def test_a_learner_with_its_own_core_shares_it_with_nobody_also_after_a_restart(live):
    seen = {}

    async def watch(run):
        await run.saw("placed")
        starts = run.all("proc_start")
        names = {line["process"] for line in starts if line["process"].startswith(("mlxe-lrn", "mlxe-exe"))}
        seen["before"] = {name: os.sched_getaffinity(run.pid(name)) for name in names}
        os.kill(run.pid("mlxe-exe-0"), signal.SIGKILL)
        await run.saw("proc_start", process="mlxe-exe-0", times=2)
        while os.sched_getaffinity(run.pid("mlxe-exe-0")) == CORES:
            await run.saw("phase", after=run.lines[-1]["seq"] + 1)
        seen["after"] = os.sched_getaffinity(run.pid("mlxe-exe-0"))
        run.supervisor.request_stop("enough")

    _, run = live(watch, learner={"own_core": True, "threads": 1}, stop={"env_steps": 10**9})
    core = run.all("placed")[0]["core"]
    assert core in CORES
    assert seen["before"].pop("mlxe-lrn") == {core}
    assert len(seen["before"]) >= 2
    assert set(map(frozenset, seen["before"].values())) == {frozenset(CORES - {core})}
    assert seen["after"] == CORES - {core}
    assert os.sched_getaffinity(0) == CORES
    assert len(run.all("placed")) == 1


@pytest.mark.slow
def test_nobody_is_moved_where_the_learner_has_several_threads_or_is_not_to_be_alone(live):
    for learner in ({"threads": 2}, {"own_core": False, "threads": 1}):

        async def watch(run):
            await run.enough("weights", times=3)

        _, run = live(watch, learner=learner, stop={"env_steps": 10**9})
        assert not run.all("placed")
