"""Environments that can be shown, each in another way or not at all, without any package for pictures."""

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import DependencyNotInstalled


class Pictured(gymnasium.Env):
    """Ends after three steps; each picture is two by two and shows the step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as gymnasium has it
    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(1, np.float32), 1.0, self.count == 3, False, {}

    def render(self):
        return np.full((2, 2, 3), self.count, np.uint8)


class Unpictured(Pictured):
    """Knows no rendering."""

    metadata = {"render_modes": []}  # noqa: RUF012 - as gymnasium has it

    def __init__(self):
        super().__init__()


class Lacking(Pictured):
    """Needs a package for its pictures that is not there, as gymnasium's own without pygame."""

    def render(self):
        raise DependencyNotInstalled('pygame is not installed, run `pip install "gymnasium[classic-control]"`')


class Huge(Pictured):
    """Its pictures take more memory than there is."""

    def render(self):
        return np.broadcast_to(np.zeros(1, np.uint8), (1 << 20, 1 << 20, 3))


class Aids:
    """Two features: the square, and a one."""

    def features(self, obs):
        return np.concatenate([obs**2, np.ones_like(obs)], axis=1)


class Featured(Pictured):
    """Declares features."""

    mlxe_help = Aids()
