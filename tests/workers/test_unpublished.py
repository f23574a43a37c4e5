"""What executors would act by without its being published is told by its attribute, before anything is started."""

from contextlib import nullcontext

import pytest
import unpublished
from unpublished import CHOSEN, REFUSED

from mlxe_async.tasks.vector import VectorTask
from mlxe_async.workers.rehearsal import NoUpdate, rehearse

TAKEN = ["OfTensor", "OfBuffer", "Replaced", "Trains", "Averages", "LearnsBySelf", "OwnNoise", "Counter", "ByClock"]


def settings(name, env="CartPole-v1", **algorithm):
    return {
        "algorithm": {"name": name, **algorithm},
        "learner": {"device": "cpu"},
        "task": {"env": env},
    }


def rehearsed(name):
    env, more = CHOSEN.get(name, ("CartPole-v1", {}))
    chosen = settings(f"unpublished:{name}", env, **more)
    rehearse(chosen, VectorTask(chosen["task"], 1), nullcontext)


@pytest.fixture(autouse=True)
def _as_it_was():
    """What these algorithms change in their module is put back."""
    yield
    unpublished.TEMPERATURE, unpublished.TABLE = 1.0, {"temperature": 1.0}
    vars(unpublished).pop("MADE_LATER", None)
    unpublished.OfClass.temperature = 1.0


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_published_and_acted_by_is_told_by_its_attribute(name):
    with pytest.raises(NoUpdate) as found:
        rehearsed(name)
    said = str(found.value)
    assert REFUSED[name] in said.partition("by what is not published: ")[2].partition(";")[0].split(", "), said
    assert "\n" not in said


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_published_or_not_acted_by_goes_through(name):
    rehearsed(name)
