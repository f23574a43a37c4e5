"""Three tasks: one that shows several parts, one that forbids actions, and one of which a call steps many at once."""

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

SIDE = 5


class Errand(gymnasium.Env):
    """A courier fetches a parcel and brings it to a door, on 5 x 5 fields: 0 left, 1 right, 2 down, 3 up.

    A Dict, as tasks with goals have it: each part is stored by its name, and a network sees all of them side by side.
    """

    action_space = spaces.Discrete(4)
    observation_space = spaces.Dict(
        {
            "place": spaces.Box(0.0, 1.0, (2,), np.float32),
            "goal": spaces.Box(0.0, 1.0, (2,), np.float32),
            "carries": spaces.Discrete(2),
        }
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.parcel, self.door = self.np_random.integers(0, SIDE, (3, 2))
        self.carries = 0
        return self._seen(), {}

    def step(self, action):
        self.place[action // 2] = np.clip(self.place[action // 2] + 2 * (action % 2) - 1, 0, SIDE - 1)
        reward, done = -0.02, False
        if not self.carries and (self.place == self.parcel).all():
            self.carries, reward = 1, 0.5
        elif self.carries and (self.place == self.door).all():
            done, reward = True, 1.0
        return self._seen(), reward, done, False, {}

    def _seen(self):
        goal = self.door if self.carries else self.parcel
        place, goal = (point.astype(np.float32) / (SIDE - 1) for point in (self.place, goal))
        return {"place": place, "goal": goal, "carries": self.carries}


class Picking(gymnasium.Env):
    """Six numbers are taken one after the other, each once; early ones count more, so the largest is taken first.

    What is taken cannot be taken again: `info["action_mask"]` says so, and `[task] action_mask = true` uses it.
    """

    action_space = spaces.Discrete(6)
    observation_space = spaces.Box(0.0, 1.0, (12,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.numbers, self.left = self.np_random.random(6), np.ones(6, np.int8)
        return self._seen(), {"action_mask": self.left.copy()}

    def step(self, action):
        reward = float(self.numbers[action] * self.left.sum() / 6)
        self.left[action] = 0
        done = not self.left.any()
        return self._seen(), reward, done, False, {"action_mask": self.left.copy()}

    def _seen(self):
        return np.concatenate([self.numbers, self.left]).astype(np.float32)


class Homing(gymnasium.Env):
    """A point on a line is pushed to 0; single, for tests and `play`. Its vector is `HomingVector`."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = started(self.np_random, 1)
        return self.state[0].copy(), {}

    def step(self, action):
        self.state, reward = moved(self.state, np.asarray(action)[None])
        return self.state[0].copy(), float(reward[0]), False, False, {}


class HomingVector(VectorEnv):
    """Any number of them in four operations of numpy; the step after an episode's end begins the next one."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs=1, max_episode_steps=40):
        self.num_envs, self.limit = num_envs, max_episode_steps
        self.single_observation_space, self.single_action_space = Homing.observation_space, Homing.action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.steps = started(self.np_random, self.num_envs), np.zeros(self.num_envs, int)
        return self.state.copy(), {}

    def step(self, actions):
        begins = self.steps >= self.limit
        self.state, reward = moved(self.state, actions)
        self.state[begins] = started(self.np_random, int(begins.sum()))
        self.steps = np.where(begins, 0, self.steps + 1)
        never = np.zeros(self.num_envs, bool)
        return self.state.copy(), np.where(begins, 0.0, reward), never, self.steps >= self.limit, {}


def started(rng, count):
    """Places and speeds (N, 2)."""
    return np.stack([rng.uniform(-2, 2, count), np.zeros(count)], 1).astype(np.float32)


def moved(state, push):
    """The states after a push (N, 1), and the rewards (N,)."""
    speed = 0.9 * state[:, 1] + 0.1 * np.clip(push[:, 0], -1, 1)
    place = state[:, 0] + speed
    return np.stack([place, speed], 1).astype(np.float32), -(place**2) - 0.01 * push[:, 0] ** 2


gymnasium.register("Errand-v0", entry_point=Errand, max_episode_steps=60)
gymnasium.register("Picking-v0", entry_point=Picking)
gymnasium.register("Homing-v0", entry_point=Homing, vector_entry_point=HomingVector, max_episode_steps=40)
