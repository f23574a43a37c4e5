"""Pushes and results that are not what they seem to be by their size."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from mlxe_async.errors import StepsDiffer
from mlxe_async.maths import together
from mlxe_async.maths.delay_compensation import DelayCompensation
from mlxe_async.roles.parameter_server import ParameterServer
from mlxe_async.supervisor.learning.learner import LearnerHandle


def compensated(*gradients):
    server = object.__new__(ParameterServer)
    server.algorithm, server._harmless = None, 0
    server._exchanges = SimpleNamespace(follow=lambda _: None, weights=lambda: np.ones(3, np.float32))
    how = DelayCompensation(8)
    entries = [(together.GRADIENT, np.array([0.0, *one], np.float32)) for one in gradients]
    return server._compensated(how, entries, 1, 1)


def test_gradients_of_two_networks_are_not_taken_for_one_of_both():
    compensated([3.0, 1.0, 1.0])
    with pytest.raises(StepsDiffer, match="what is compensated is one gradient of all weights"):
        compensated([3.0], [1.0, 1.0])


@pytest.mark.parametrize(("by", "left"), [("steps", {}), ("mean_return", {1: [20.0, 30.0]})])
def test_rounds_without_an_update_add_nothing_to_the_steps_of_an_iteration(by, left):
    handle = object.__new__(LearnerHandle)
    returns = {1: [20.0, 30.0]}
    handle._context = SimpleNamespace(counters=None, delivered={0}, promote_by=by, returns=returns)
    assert asyncio.run(handle._learn({"updates": 0})) == "nothing"
    assert returns == left
