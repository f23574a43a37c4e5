"""A task that no seed can repeat."""

import os

import gymnasium


class Unrepeatable(gymnasium.ObservationWrapper):
    """Shows something of the process it lives in."""

    def observation(self, observation):
        observation = observation.copy()
        observation[0] += (os.getpid() % 1000) * 1e-4
        return observation
