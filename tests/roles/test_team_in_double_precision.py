"""In double precision workers come, over many updates, to what one learner comes to from all of their rows."""

import functools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mlxe_async.algorithms import Clock
from mlxe_async.fast import updates
from mlxe_async.maths import together
from mlxe_async.networks import tensors
from mlxe_async.roles.in_turn import Turn, Turns
from mlxe_async.roles.team import Team

sys.path += [str(Path(__file__).parents[1] / "fast"), str(Path(__file__).parent)]
from made_rows import agent
from test_team import CASES, IDS, REPORT, ROWS, Shared, orders, whole_batch

UPDATES = 50


@pytest.fixture
def double(monkeypatch):
    """Have modules, their optimisers and the tensors of columns be of double precision."""
    real = tensors.tensor_type

    def wide(*given):
        found = real(*given)
        return torch.float64 if found is torch.float32 else found

    for module in [one for name, one in sys.modules.items() if name.startswith("mlxe_async")]:
        if getattr(module, "tensor_type", None) is real:
            monkeypatch.setattr(module, "tensor_type", wide)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def learned(algorithm):
    """All that an algorithm's modules and optimisers hold, as numbers of double precision."""
    found = {}
    for name, value in vars(algorithm).items():
        if isinstance(value, torch.nn.Module):
            found |= {f"{name}.{key}": one.double().numpy().copy() for key, one in value.state_dict().items()}
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("name", "spaces", "settings"), CASES, ids=IDS)
@pytest.mark.usefixtures("double")
def test_fifty_updates_of_workers_are_those_of_one_learner(name, spaces, settings, workers):
    one, *team = (agent(name, spaces=spaces, **settings) for _ in range(workers + 1))
    whole, parts = whole_batch(one, workers)
    count = max(1, round(workers * ROWS / settings.get("minibatch", 10**9)))
    ways = [updates(mine, fast=False) for mine in (one, *team)]
    groups = None
    for k in range(UPDATES):
        clock = Clock(env_steps=100 * (k + 1), episodes=k, updates=k, version=k)
        one.rng = Shared(0, 1, lambda _count: orders(whole, workers, count))
        ways[0].update(whole, clock)
        turns = Turns(workers)
        groups = groups or [Team(Turn(turns, index), 0) for index in range(workers)]

        def work(index, clock=clock, turns=turns, groups=groups):
            mine, group = team[index], groups[index]
            group._group = Turn(turns, index)
            with group.learning(mine, clock, 1, twin=False):
                mine.rng = Shared(index, workers, np.arange)
                rows = parts[index]
                together.learn_from(len(rows["weight"]) if "weight" in rows else rows["valid"].sum())
                ways[1 + index].update(rows, clock)
                group.agreed(mine, REPORT)

        turns.run([functools.partial(work, index) for index in range(workers)])
    expected = learned(one)
    assert expected
    for mine in team:
        for entry, numbers in learned(mine).items():
            np.testing.assert_allclose(numbers, expected[entry], rtol=1e-8, atol=1e-8, err_msg=entry)
