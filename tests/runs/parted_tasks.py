"""A task whose observations have parts, solved by looking at two of them."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class Lamps(gymnasium.Env):
    """Which lamp is on says which action is right, shifted by an offset: an episode has eight guesses.

    Args:
        texts: whether observations also have a sentence.
        pictures: whether the lamp is shown as a bright column of a picture.
        masks: whether `info` says that the last action is not allowed; taking it anyway ends the process.
    """

    def __init__(self, *, texts: bool = False, pictures: bool = False, masks: bool = False) -> None:
        lamp = spaces.Box(0, 255, (2, 3), np.uint8) if pictures else spaces.Discrete(3, start=4)
        self.observation_space = spaces.Dict(
            {"lamp": lamp, "shift": spaces.Tuple((spaces.MultiBinary(1), spaces.Box(-1, 1, (2,))))}
            | ({"says": spaces.Text(9)} if texts else {})
        )
        self.action_space = spaces.Discrete(4)
        self._texts, self._pictures, self._masks = texts, pictures, masks

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return self._look(), self._info()

    def step(self, action):
        if self._masks and action == 3:
            raise RuntimeError("that was not allowed")
        right = (self._lamp + self._shift) % 3
        self._count += 1
        return self._look(), float(action == right), self._count == 8, False, self._info()

    def right(self, obs):
        """The right action, from an observation."""
        lamp = int(obs["lamp"][0].argmax()) if self._pictures else obs["lamp"] - 4
        return (lamp + int(obs["shift"][0][0])) % 3

    def _look(self):
        self._lamp, self._shift = self.np_random.integers(0, 3), self.np_random.integers(0, 2)
        lamp = int(self._lamp) + 4
        if self._pictures:
            lamp = np.zeros((2, 3), np.uint8)
            lamp[:, self._lamp] = 255
        obs = {"lamp": lamp, "shift": (np.array([self._shift], np.int8), np.zeros(2, np.float32))}
        return obs | ({"says": "guess"} if self._texts else {})

    def _info(self):
        return {"action_mask": np.array([1, 1, 1, 0], np.int8)} if self._masks else {}


class Sights(gymnasium.Env):
    """A picture and three numbers in a Dict: one of the two says which of three actions is right, the other nothing.

    The picture is dark but for one of three columns, the numbers are zero but for one. An episode has eight guesses.

    Args:
        answer: `"picture"` or `"numbers"`.
        last: whether the picture has its channels last.
    """

    def __init__(self, *, answer: str = "picture", last: bool = True) -> None:
        self._answer, self._last = answer, last
        picture = spaces.Box(0, 255, (36, 36, 1) if last else (1, 36, 36), np.uint8)
        numbers = spaces.Dict({"one": spaces.Box(-5, 5, (3,), np.float32)})
        self.observation_space = spaces.Dict({"picture": picture, "numbers": numbers})
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return self._look(), {}

    def step(self, action):
        reward = float(action == self._places[self._answer])
        self._count += 1
        return self._look(), reward, self._count == 8, False, {}

    def right(self, obs):
        """The right action, from an observation."""
        if self._answer == "numbers":
            return int(obs["numbers"]["one"].argmax())
        return int(obs["picture"].reshape(36, 36).sum(0).argmax()) // 12

    def _look(self):
        self._places = dict(zip(("picture", "numbers"), self.np_random.integers(0, 3, 2), strict=True))
        picture, one = np.zeros((36, 36), np.uint8), np.zeros(3, np.float32)
        picture[:, 12 * self._places["picture"] :][:, :12] = 255
        one[self._places["numbers"]] = 4
        return {"picture": picture[..., None] if self._last else picture[None], "numbers": {"one": one}}


class Doors(gymnasium.Env):
    """Several choices at once, of which some are forbidden in each step; a forbidden one ends the process.

    Args:
        kind: `"single"`, `"multi"` or `"binary"`.
    """

    def __init__(self, kind: str) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        kinds = {
            "single": spaces.Discrete(5, start=3),
            "multi": spaces.MultiDiscrete([3, 2], start=[1, 7]),
            "binary": spaces.MultiBinary((2, 2)),
        }
        self.action_space, self._kind = kinds[kind], kind
        self._sizes = {"single": [5], "multi": [3, 2], "binary": [2] * 4}[kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return self._look(), {"action_mask": self._forbidding()}

    def step(self, action):
        if not self.action_space.contains(action):
            raise RuntimeError(f"{action!r} is no action")
        chosen = np.ravel(action - getattr(self.action_space, "start", 0))
        if not all(mask[choice] for mask, choice in zip(self._mask, chosen, strict=True)):
            raise RuntimeError(f"{action!r} was not allowed")
        self._count += 1
        over = self._count == 9
        return self._look(), 1.0, over, False, {} if over else {"action_mask": self._forbidding()}

    def _look(self):
        return self.np_random.random(2, np.float32)

    def _forbidding(self):
        self._mask = [(self.np_random.random(size) < 0.5).astype(np.int8) for size in self._sizes]
        for mask, size in zip(self._mask, self._sizes, strict=True):
            mask[self.np_random.integers(size)] = 1
        return tuple(self._mask) if self._kind == "multi" else np.concatenate(self._mask)


class Switches(gymnasium.Env):
    """Two switches: the lamp says where the first belongs, the sign of the dial where the second one does.

    One wrong place of the first switch is blocked in each step, and to choose it is an error. Eight steps an episode.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Dict({"lamp": spaces.Discrete(3), "dial": spaces.Box(-1, 1, (1,))})
        self.action_space = spaces.MultiDiscrete([3, 2])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return self._look()

    def step(self, action):
        first, second = map(int, action)
        if first == self._blocked:
            raise RuntimeError(f"switch 1 cannot be put to {first}")
        right = int(first == self._lamp) + int(second == (self._dial > 0))
        self._count += 1
        return *self._look()[:1], right / 2, self._count == 8, False, self._info()

    def _look(self):
        self._lamp, self._dial = self.np_random.integers(3), self.np_random.uniform(-1, 1)
        self._blocked = (self._lamp + self.np_random.integers(1, 3)) % 3
        return {"lamp": self._lamp, "dial": np.array([self._dial], np.float32)}, self._info()

    def _info(self):
        mask = np.ones(5, np.int8)
        mask[self._blocked] = 0
        return {"action_mask": mask}
