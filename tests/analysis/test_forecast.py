"""The rate under each schedule follows from the costs of a step, an answer and an update."""

import pytest

from mlxe_async.analysis.forecast import Costs, Shape, outlook, rates

KINDS = ("serial", "is", "istb", "ia", "oa")
EVEN = Costs(step_s=1e-3, act_s=4e-3, update_s=0.512, updates_per_row=1 / 512)
"""A row costs 2 ms to play, of which half is the policy's, and 1 ms to learn."""


def shape(**given):
    return Shape(**{"kind": "is", "executors": 2, "envs": 4, "cores": 4, "rows": 128, "rollout_steps": 32, **given})


def test_rounds_add_up_and_a_free_running_schedule_has_the_slower_of_the_two():
    found = rates(EVEN, shape(), KINDS)
    assert found["serial"] == found["istb"] == pytest.approx(1 / 3e-3)
    assert found["is"] == found["ia"] == pytest.approx(1 / 2e-3)
    assert found["oa"] == pytest.approx(1 / 1e-3)


def test_cores_are_shared():
    found = rates(EVEN, shape(executors=8, cores=2), KINDS)
    assert found["is"] == pytest.approx(1 / 2e-3)
    assert found["oa"] == pytest.approx(1 / 1.5e-3)
    assert rates(EVEN, shape(cores=1), ("oa",))["oa"] == pytest.approx(1 / 3e-3)


def test_what_costs_nothing_has_no_rate():
    assert rates(Costs(0, 0, 0, 0), shape(), KINDS) == {}


def test_the_outlook_is_the_verdict_of_such_a_run():
    slow_learner = outlook(Costs(1e-4, 1e-4, 5.12, 1 / 512), shape())
    assert slow_learner.limit == "learner"
    assert slow_learner.change == {"schedule.kind": "oa"}
    slow_steps = outlook(Costs(1e-2, 1e-4, 0.1, 1 / 512), shape())
    assert slow_steps.limit == "executors"
    assert slow_steps.change == {"schedule.executors": 4}
    assert slow_steps.predicted == pytest.approx(
        rates(Costs(1e-2, 1e-4, 0.1, 1 / 512), shape(executors=4), ("is",))["is"]
        / rates(Costs(1e-2, 1e-4, 0.1, 1 / 512), shape(), ("is",))["is"],
        rel=0.05,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_an_outlook(kind):
    assert outlook(EVEN, shape(kind=kind)).sentence


@pytest.mark.parametrize("kind", ["istb", "serial"])
@pytest.mark.parametrize("executors", [2, 4, 6])
def test_executors_that_take_turns_are_judged_as_one(kind, executors):
    """Neither are their turns rounds that begin and end, nor would another executor help."""
    costs = Costs(3e-5, 1.2e-4, 8e-3, 1 / 512)
    found = outlook(costs, Shape(kind, executors, 1, 8, 128, 128))
    assert "beginnings and ends" not in found.sentence
    assert "schedule.executors" not in found.change
    alone = outlook(costs, Shape("serial", 1, 1, 8, 128, 128))
    assert found.limit == alone.limit
