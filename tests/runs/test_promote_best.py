"""Real runs that go back to the best version: as the log's own episodes say they should, and across a restart."""

import os
import signal

import pytest

PROMOTING = {"learner": {"promote_best": 2}, "stop": {"episodes": 30}}


def worked_out(run, patience):
    """What the log's episodes lead to: (best version, its result, iterations, next version) of each time."""
    returns, expected, best, since = {}, [], None, 0
    for line in run.all("episode_end"):
        returns.setdefault(line["version"], []).append(line["episode_return"])
    last = max(line["version"] for line in run.all("weights"))
    for version in sorted(returns):
        result = sum(returns[version]) / len(returns[version])
        if best is None or result > best[1]:
            best, since = (version, result), 0
        else:
            since += 1
        if since == patience and version < last:
            expected.append((*best, since, version + 1))
            since = 0
    return expected


@pytest.mark.parametrize("kind", ["is", pytest.param("serial", marks=pytest.mark.slow)])
def test_the_learner_goes_back_exactly_when_the_episodes_say_so(live, kind):
    _, run = live(schedule={"kind": kind, "executors": 2}, **PROMOTING)
    told = [
        (line["best_version"], line["result"], line["iterations"], line["version"]) for line in run.all("best_promoted")
    ]
    assert told == worked_out(run, 2)
    assert len(told) >= 2


def test_the_best_version_survives_a_learner_that_is_killed(live):
    async def kill(run):
        first = await run.saw("best_promoted")
        os.kill(run.pid("mlxe-lrn"), signal.SIGKILL)
        again = await run.saw("proc_start", times=2, process="mlxe-lrn")
        later = await run.saw("best_promoted", after=again["seq"])
        assert later["best_version"] >= first["best_version"]
        assert later["result"] >= first["result"]

    result, run = live(kill, learner={"promote_best": 1}, stop={"episodes": 60})
    assert result.reason == "episodes"
    assert run.all("proc_exit", process="mlxe-lrn", expected=False)
