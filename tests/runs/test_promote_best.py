"""Real runs that go back to the best version: as the log's own episodes say they should, and across a restart."""

import os
import signal

import numpy as np
import pytest

PROMOTING = {"learner": {"promote_best": 2}, "stop": {"episodes": 30}}


def worked_out(run, patience, by="mean_return"):
    """What the log's episodes lead to: (best version, its result, iterations, next version) of each time."""
    returns, expected, best, since = {}, [], None, 0
    for line in run.all("episode_end"):
        returns.setdefault(line["version"], []).append(line["episode_return" if by == "mean_return" else "length"])
    last = max(line["version"] for line in run.all("weights"))
    for version in sorted(returns):
        result = sum(returns[version]) / (len(returns[version]) if by == "mean_return" else 1)
        if best is None or result > best[1]:
            best, since = (version, result), 0
        else:
            since += 1
        if since == patience and version < last:
            expected.append((*best, since, version + 1))
            since = 0
    return expected


def told_by(run):
    return [
        (line["best_version"], line["result"], line["iterations"], line["version"]) for line in run.all("best_promoted")
    ]


@pytest.mark.parametrize("kind", ["is", pytest.param("serial", marks=pytest.mark.slow)])
def test_the_learner_goes_back_exactly_when_the_episodes_say_so(live, kind):
    _, run = live(schedule={"kind": kind, "executors": 2}, **PROMOTING)
    assert told_by(run) == worked_out(run, 2)
    assert len(told_by(run)) >= 2


@pytest.mark.long
def test_by_steps_the_result_is_the_sum_over_all_executors(live):
    learner = {"promote_best": 2, "promote_by": "steps"}
    _, run = live(schedule={"kind": "serial", "executors": 2}, learner=learner, stop={"episodes": 30})
    assert told_by(run) == worked_out(run, 2, "steps")
    assert told_by(run)
    assert {line["by"] for line in run.all("training_result")} == {"steps"}


def results_of_oa(run, executors, by):
    """(result, version) of each iteration: over as soon as each executor has finished an episode."""
    finished, found = {}, []
    for line in run.all("episode_end"):
        finished.setdefault(line["idx"], []).append(line["length" if by == "steps" else "episode_return"])
        if len(finished) == executors:
            values = [value for own in finished.values() for value in own]
            result = np.float32(sum(values) / (1 if by == "steps" else len(values)))
            found.append((float(result), line["version"]))
            finished = {}
    return found


@pytest.mark.long
@pytest.mark.parametrize("by", ["steps", pytest.param("mean_return", marks=pytest.mark.slow)])
def test_where_nobody_waits_the_learner_goes_back_to_the_version_that_did_best(live, by):
    learner = {"promote_best": 2, "promote_by": by}
    _, run = live(schedule={"kind": "oa", "executors": 2}, learner=learner, stop={"episodes": 60})
    told = [(line["result"], line["version"]) for line in run.all("training_result")]
    assert told == results_of_oa(run, 2, by)
    best_so_far = [one for place, one in enumerate(told) if all(one[0] > before[0] for before in told[:place])]
    assert run.all("best_promoted")
    for line in run.all("best_promoted"):
        # A better one may have come while the learner was at work.
        assert (line["result"], line["best_version"]) in best_so_far
        assert line["iterations"] >= 2


@pytest.mark.long
def test_the_best_version_survives_a_learner_that_is_killed(live):
    async def kill(run):
        first = await run.saw("best_promoted")
        os.kill(run.pid("mlxe-lrn"), signal.SIGKILL)
        again = await run.saw("proc_start", times=2, process="mlxe-lrn")
        later = await run.saw("best_promoted", after=again["seq"])
        assert later["best_version"] >= first["best_version"]
        assert later["result"] >= first["result"]

    result, run = live(kill, learner={"promote_best": 1}, stop={"episodes": 60, "env_steps": 100_000})
    assert result.reason == "episodes"
    assert run.all("proc_exit", process="mlxe-lrn", expected=False)
