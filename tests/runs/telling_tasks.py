"""CartPole that tells its angle, and sometimes nonsense."""

import gymnasium


class Angle(gymnasium.Wrapper):
    def step(self, action):
        obs, reward, over, stopped, info = self.env.step(action)
        return obs, reward, over, stopped, {**info, "metrics": {"angle": abs(float(obs[2])), "wrong": "text"}}
