"""Every kind of schedule can be asked in the same terms, and each default is decided there."""

from dataclasses import fields

import pytest

from mlxe_async.settings import load_settings
from mlxe_async.settings.schedules import SCHEDULES, Traits


def schedule_of(kind, **keys):
    return load_settings({"task": {"env": "CartPole-v1"}, "schedule": {"kind": kind, **keys}}).schedule


@pytest.mark.parametrize("memory", ["replay", "rollouts"])
@pytest.mark.parametrize("model", SCHEDULES, ids=lambda model: model.__name__)
def test_all_kinds_answer_every_trait(model, memory):
    traits = schedule_of(model.model_fields["kind"].annotation.__args__[0]).traits(memory)
    assert {field.name for field in fields(Traits)} == set(vars(traits))


@pytest.mark.parametrize(
    ("keys", "memory", "lag"),
    [
        ({}, "rollouts", 8),
        ({}, "replay", None),
        ({"max_policy_lag": 0}, "rollouts", 0),
        ({"max_policy_lag": 3}, "replay", 3),
    ],
)
def test_the_bound_on_policy_lag_is_decided_once(keys, memory, lag):
    assert schedule_of("oa", **keys).traits(memory).max_policy_lag == lag


@pytest.mark.parametrize("kind", ["is", "serial"])
def test_lag_is_simulated_and_bounded_together(kind):
    assert schedule_of(kind).traits("rollouts") == Traits()
    lagging = schedule_of(kind, simulated_lag=4, max_policy_lag=4).traits("replay")
    assert (lagging.simulated_lag, lagging.max_policy_lag) == (4, 4)
    assert schedule_of(kind, simulated_lag=4).traits("rollouts").max_policy_lag is None


@pytest.mark.parametrize(
    ("keys", "memory", "most"),
    [
        ({}, "rollouts", 4),
        ({}, "replay", None),
        ({"max_rollouts": 9}, "rollouts", 9),
        ({"max_rollouts": 2}, "replay", 2),
    ],
)
def test_the_bound_on_rollouts_is_decided_once(keys, memory, most):
    assert schedule_of("ia", **keys).traits(memory).max_rollouts == most


def test_who_waits_is_repeated_rollout_by_rollout():
    kinds = ("serial", "is", "istb", "ia", "oa")
    assert [schedule_of(kind).traits("replay").deterministic for kind in kinds] == [True, True, True, False, False]
    assert [schedule_of(kind).reproducible for kind in kinds] == [True, True, False, False, False]
