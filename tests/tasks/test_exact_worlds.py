"""Environments that change what they showed in place, or take no action beyond bounds in double precision."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from mlxe_async.tasks.vector import VectorTask


class InPlace(gymnasium.Env):
    """Shows one array, which it changes; takes actions in double precision, and none beyond their bounds."""

    observation_space = Box(0.0, 9.0, (2,), np.float32)
    action_space = Box(-0.1, 0.1, (1,), np.float64)

    def __init__(self):
        self.obs = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs[:] = 0
        return self.obs, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.obs += np.float32(0.25)
        return self.obs, 0.0, False, False, {}


@pytest.fixture(autouse=True)
def registered():
    gymnasium.register("InPlace-v0", entry_point=InPlace)
    yield
    del gymnasium.registry["InPlace-v0"]


def test_a_history_is_of_what_was_shown_then():
    vector = VectorTask({"env": "InPlace-v0", "history": 3}, 1)
    vector.reset(0, seed=0)
    for _ in range(3):
        step = vector.step(np.zeros((1, 1), np.float32))
    np.testing.assert_allclose(step.next_obs[0], [[0.25] * 2, [0.5] * 2, [0.75] * 2])
    vector.close()


@pytest.mark.parametrize("action", [5.0, -5.0, 0.1, 0.05])
def test_actions_are_cut_at_the_bounds_in_the_environments_own_precision(action):
    vector = VectorTask({"env": "InPlace-v0"}, 1)
    vector.reset(0, seed=0)
    assert not vector.step(np.full((1, 1), action, np.float32)).faults
    vector.close()
