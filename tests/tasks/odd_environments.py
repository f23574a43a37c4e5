"""Environments that do one thing wrong, each in its own way, at a step that is told."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class TwoArguments(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class UnprintableObject:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __float__(self) -> float:
        raise SystemExit(5)


class Steady(gymnasium.Env):
    """Observation `(0, step, last action)`, reward 1, never ends by itself."""

    def __init__(self, end_at: int = 0, stop_at: int = 0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.end_at, self.stop_at = end_at, stop_at
        self.count = 0
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.count = 0
        return self._obs(0), {}

    def step(self, action: int):
        self.count += 1
        return self._obs(action), 1.0, self.count == self.end_at, self.count == self.stop_at, {}

    def close(self) -> None:
        self.closed = True

    def _obs(self, action: int) -> np.ndarray:
        return np.array([0, self.count, action], np.float32)


class Odd(Steady):
    """Steady, but its `at`-th step (or its reset, or its making) gives or raises what `way` names."""

    def __init__(self, way: str, at: int = 1, where: str = "step") -> None:
        super().__init__()
        self.way, self.at, self.where = way, at, where
        if where == "make":
            self._raise()

    def reset(self, *, seed=None, options=None):
        answer = super().reset(seed=seed)
        if self.where != "reset":
            return answer
        self._raise()
        return self._answer(answer)

    def step(self, action):
        answer = super().step(action)
        if self.where != "step" or self.count != self.at:
            return answer
        self._raise()
        return self._answer(answer)

    def _raise(self) -> None:
        if self.way in RAISED:
            raise RAISED[self.way]()

    def _answer(self, answer):
        obs, *rest = answer
        if self.way in OBSERVATIONS:
            return (OBSERVATIONS[self.way](obs), *rest)
        if self.way in REWARDS:
            return (obs, REWARDS[self.way], *rest[1:])
        return ANSWERS[self.way](answer)


def _own_cause() -> Exception:
    error = ValueError("round and round")
    error.__cause__ = KeyError("and round")
    error.__cause__.__cause__ = error
    return error


RAISED: dict[str, Any] = {
    "value error": lambda: ValueError("the motor is too hot"),
    "two arguments": lambda: TwoArguments("one", "two"),
    "unprintable": Unprintable,
    "own cause": _own_cause,
    "ten megabytes": lambda: ValueError("x" * 10_000_000),
    "half a surrogate": lambda: ValueError("name \udcff\x00"),
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "generator exit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "memory": MemoryError,
    "stop iteration": StopIteration,
}
OBSERVATIONS: dict[str, Any] = {
    "not a number": lambda obs: np.array([0, np.nan, 0], np.float32),
    "infinite": lambda obs: np.array([np.inf, 0, 0], np.float32),
    "minus infinite": lambda obs: np.array([0, 0, -np.inf], np.float32),
    "too large": lambda obs: np.array([1e300, 0, 0]),
    "longer": lambda obs: np.zeros(4, np.float32),
    "broadcastable": lambda obs: np.zeros(1, np.float32),
    "scalar": lambda obs: 0.0,
    "empty": lambda obs: np.zeros(0, np.float32),
    "another rank": lambda obs: np.zeros((1, 3), np.float32),
    "ragged": lambda obs: [[0.0, 1.0], [2.0]],
    "objects": lambda obs: np.array([None, 1, 2], object),
    "words": lambda obs: np.array(["a", "b", "c"]),
    "complex": lambda obs: np.zeros(3, np.complex64),
    "none": lambda obs: None,
    "a dictionary": lambda obs: {"a": 1},
    "unprintable object": lambda obs: UnprintableObject(),
}
REWARDS: dict[str, Any] = {
    "reward none": None,
    "reward text": "1.0",
    "reward complex": 1 + 0j,
    "reward array": np.ones(2),
    "reward array of nothing": np.ones(0),
    "reward bool": True,
    "reward numpy bool": np.bool_(True),
    "reward nan": float("nan"),
    "reward inf": float("inf"),
    "reward beyond float32": 1e300,
    "reward beyond float64": 10**400,
    "reward unprintable": UnprintableObject(),
}
ANSWERS: dict[str, Any] = {
    "four values": lambda answer: answer[:4],
    "six values": lambda answer: (*answer, 0),
    "a list": list,
    "nothing": lambda answer: None,
    "terminated is a number": lambda answer: (*answer[:2], 1, *answer[3:]),
    "truncated is none": lambda answer: (*answer[:3], None, answer[4]),
}


class Other(Steady):
    """Steady with the space and the kind of observation that are told."""

    def __init__(self, space: str) -> None:
        super().__init__()
        self.observation_space, self.say = OTHER_SPACES[space]

    def _obs(self, action: int):
        return self.say(self.count)


OTHER_SPACES: dict[str, Any] = {
    "float64": (spaces.Box(-9, 9, (2,), np.float64), lambda n: np.array([n, 0.5])),
    "list": (spaces.Box(-9, 9, (2,), np.float32), lambda n: [n, 0.5]),
    "big-endian": (spaces.Box(-9, 9, (2,), np.float32), lambda n: np.array([n, 0.5], ">f4")),
    "uint8": (spaces.Box(0, 255, (2, 2), np.uint8), lambda n: np.full((2, 2), n, np.uint8)),
    "int64 for uint8": (spaces.Box(0, 255, (2,), np.uint8), lambda n: np.array([n, 255])),
    "too large for uint8": (spaces.Box(0, 255, (2,), np.uint8), lambda n: np.array([n, 256])),
    "negative for uint8": (spaces.Box(0, 255, (2,), np.uint8), lambda n: np.array([n, -1])),
    "fraction for uint8": (spaces.Box(0, 255, (2,), np.uint8), lambda n: np.array([n, 0.5])),
    "int8": (spaces.Box(-9, 9, (2,), np.int8), lambda n: np.array([n, -3], np.int8)),
    "float16": (spaces.Box(-9, 9, (2,), np.float16), lambda n: np.array([n, -3], np.float16)),
    "out of bounds": (spaces.Box(-1, 1, (2,), np.float32), lambda n: np.array([n, 0], np.float32)),
}


class SameBuffer(Steady):
    """Returns the same array again and again, and spoils it afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.zeros(3, np.float32)

    def step(self, action):
        answer = super().step(action)
        self.buffer[:] = answer[0]
        return (self.buffer, *answer[1:])


class Reach(gymnasium.Env):
    """Continuous actions; shows the action it was given, and keeps and spoils the array."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(np.array([-1, -np.inf], np.float32), np.array([2, np.inf], np.float32))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        seen = action.copy()
        action[:] = 77
        return seen, 0.5, False, False, {}


class FromFive(Steady):
    """Actions are 5, 6 and 7."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(3, start=5)


class Wordy(Steady):
    """A space that is told, to be refused."""

    def __init__(self, observation: str = "", action: str = "") -> None:
        super().__init__()
        if observation:
            self.observation_space = SPACES[observation]
        if action:
            self.action_space = SPACES[action]


class Coloured(Steady):
    """Pictures with their colours in the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (40, 48, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: int):
        return self._look(), *super().step(action)[1:]

    def _look(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (40, 48, 3), dtype=np.uint8)


def doubled(env: gymnasium.Env, times: int = 2) -> gymnasium.Env:
    """A function that wraps."""
    return gymnasium.wrappers.TransformReward(env, lambda reward: times * reward)


def lost(env: gymnasium.Env) -> None:
    """A function that returns nothing."""


SPACES: dict[str, Any] = {
    "mission": spaces.Dict(
        {
            "image": spaces.Box(0, 255, (7, 7, 3), np.uint8),
            "direction": spaces.Discrete(4),
            "mission": spaces.Text(9),
        }
    ),
    "Text": spaces.Text(5),
    "Graph": spaces.Graph(spaces.Box(0, 1, (2,)), None),
    "Sequence": spaces.Sequence(spaces.Discrete(2)),
    "Discrete": spaces.Discrete(4),
    "MultiBinary": spaces.MultiBinary(3),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "Tuple": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))),
    "Dict": spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})}),
    "Box(0, 10": spaces.Box(0, 10, (2,), np.int32),
    "OneOf": spaces.OneOf((spaces.Discrete(2), spaces.Text(3))),
    "()": spaces.Box(0, 1, ()),
}


class Spaceless(Steady):
    """Cannot tell one of its spaces."""

    def __init__(self, forgets: str) -> None:
        super().__init__()
        self.forgets = forgets

    def __getattribute__(self, name: str) -> Any:
        if name.endswith("_space") and name == self.forgets:
            raise LookupError(f"no {name} here")
        return super().__getattribute__(name)


class NeverCloses(Steady):
    """Does not come back from `close`."""

    def close(self) -> None:
        threading.Event().wait()


class Double(gymnasium.Wrapper):
    """Doubles the reward."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, 2 * reward, terminated, truncated, info


class Negative(gymnasium.RewardWrapper):
    """Changes the reward's sign and takes one away."""

    def reward(self, reward):
        return -reward - 1
