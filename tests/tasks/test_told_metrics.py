"""Numbers that an environment tells of itself are averaged; what is none is noted, and ends nothing."""

import numpy as np
import pytest

from mlxe_async.tasks.metrics import LONGEST, MOST, Metrics
from mlxe_async.tasks.vector import VectorTask


def test_numbers_are_averaged_over_the_steps_that_told_them():
    metrics = Metrics()
    metrics.add({"speed": 1, "height": np.float32(0.5)})
    metrics.add({"speed": np.int64(4)})
    metrics.add({"speed": True})
    metrics.add({"speed": np.array(2.0)})
    assert metrics.take() == {"speed": 2.0, "height": 0.5}
    assert metrics.take() == {}
    assert metrics.take_odd() == ""


class Unkind:
    def __float__(self):
        raise SystemExit("no")


@pytest.mark.parametrize(
    ("told", "odd"),
    [
        ({"a": "fast"}, 'info["metrics"]["a"] is'),
        ({"a": float("nan")}, "expected a finite number"),
        ({"a": [1.0, 2.0]}, "expected a finite number"),
        ({"a": None}, 'info["metrics"]["a"]'),
        ({3: 1.0}, "has the name"),
        ({"": 1.0}, "printable letters"),
        ({"a\n": 1.0}, "printable letters"),
        ({"a" * (LONGEST + 1): 1.0}, "printable letters"),
        ([1.0], "expected names with numbers"),
        ({"a": Unkind()}, ""),
    ],
)
def test_what_is_no_number_is_noted_and_passed_over(told, odd):
    metrics = Metrics()
    metrics.add(told)
    assert odd in metrics.take_odd()
    assert metrics.take() == {}


def test_there_is_a_bound_on_names():
    metrics = Metrics()
    metrics.add({f"m{k}": 1.0 for k in range(MOST + 5)})
    assert "more than" in metrics.take_odd()
    assert len(metrics.take()) == MOST


def test_an_infinite_mean_is_not_told():
    metrics = Metrics()
    metrics.add({"a": 1.7e308})
    metrics.add({"a": 1.7e308})
    assert metrics.take() == {}


def test_environments_tell_by_their_infos_in_any_step(monkeypatch):
    import gymnasium

    class Telling(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {"metrics": {"resets": 1}}

        def step(self, action):
            told = {"chosen": float(action)} if action == 1 else "nothing"
            return np.zeros(2, np.float32), 0.0, False, False, {"metrics": told}

    gymnasium.register("Telling-v0", entry_point=Telling)
    try:
        vector = VectorTask({"env": "Telling-v0"}, 2)
        for env in range(2):
            vector.reset(env, 0)
        step = vector.step(np.array([1, 0]))
        assert step.ok.all()
        assert vector.metrics.take() == {"chosen": 1.0}
        ((kind, sentence),) = vector.take_notes()
        assert kind == "metrics"
        assert "expected names with numbers" in sentence
        vector.close()
    finally:
        del gymnasium.registry["Telling-v0"]
