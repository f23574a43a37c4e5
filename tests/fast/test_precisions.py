"""Whatever a network is computed in, its twin is audited by a measure of that precision."""

from typing import get_args

import pytest
from proof import NEAR as EQUAL
from proof import PICTURES, distance

from mlxe_async.fast.audit import NEAR
from mlxe_async.fast.rounding import UNITS
from mlxe_async.networks import Precision


def test_each_precision_has_a_measure_between_those_of_its_neighbours():
    assert NEAR.keys() == UNITS.keys() == set(get_args(Precision))
    for measure in (NEAR, UNITS):
        assert measure["float32"] < measure["tf32"] < measure["bfloat16"]


def test_on_the_cpu_tf32_is_float32():
    look = {"body": "small", "common": [8], "policy": [], "value": [], "normalise": False, "minibatch": 64, "epochs": 1}
    found = [distance("ppo", PICTURES, look | {"precision": name}, updates=1) for name in ("float32", "tf32")]
    assert found[0] == pytest.approx(found[1], abs=EQUAL)
    assert max(found) <= EQUAL
