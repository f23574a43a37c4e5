"""An update changes nothing in the batch that it is given, neither by the file nor by the twin."""

import copy

import numpy as np
import pytest
from made_rows import SPACES, agent, batch
from proof import BOX, MIRRORED

from mlxe_async.algorithms import Clock
from mlxe_async.fast import TWINS, updates

CASES = [
    *((name, SPACES, {}) for name in ("reinforce", "a2c", "impala", "ppo", "dqn", "c51", "rainbow", "mlxe", "sac")),
    *((name, BOX, {}) for name in ("reinforce", "a2c", "impala", "ppo", "sac", "td3", "ddpg")),
    *((name, SPACES, {"reward_scaling": True}) for name in ("reinforce", "a2c", "impala", "ppo")),
    ("reinforce", SPACES, {"baseline": "mean"}),
    ("ppo", SPACES, {"minibatches": "sequences", "value_epochs": 1, "value_clip": 0.1}),
    *(("mlxe", MIRRORED, {"correction": kind, "n_step": 3, "normalise": True}) for kind in ("vtrace", "none")),
    ("mlxe", SPACES, {"correction": "vtrace", "n_step": 3, "target": "every_k", "faithful_truncation": True}),
    *(("mlxe", SPACES, {"value_scale": scale}) for scale in ("survival", "categorical")),
    ("dqn", MIRRORED, {"prioritised": True, "value_scale": "survival"}),
    *((name, BOX, {"n_step": 3, "normalise": True}) for name in ("sac", "td3", "ddpg")),
]


@pytest.mark.parametrize(("name", "spaces", "settings"), CASES)
def test_an_update_leaves_its_batch_as_it_is(name, spaces, settings):
    ways = []
    for by_twin in (False, True)[: 1 + (name in TWINS)]:
        algorithm = agent(name, spaces=spaces, **settings)
        if by_twin:
            twin = updates(algorithm).twin
            if twin is None:
                continue
            ways.append((algorithm, twin.update))
        else:
            ways.append((algorithm, algorithm.update))
    for algorithm, update in ways:
        rows = batch(algorithm)
        kept = copy.deepcopy(rows)
        for number in range(2):
            update(rows, Clock(updates=number))
        assert rows.keys() == kept.keys()
        for column in kept:
            np.testing.assert_array_equal(rows[column], kept[column], err_msg=column)
