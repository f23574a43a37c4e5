"""What an environment breaks of gymnasium's promises is found, and an honest one is not accused."""

import contextlib
import re

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from mlxe_async.tasks import conformance as looking

BOX = spaces.Box(-1, 1, (2,), np.float32)


class Honest(gymnasium.Env):
    """Draws what it shows by its own generator; an episode has `length` steps."""

    observation_space, action_space = BOX, spaces.Discrete(2)
    length = 5

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.look(), {}

    def look(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        self.count += 1
        return self.look(), float(action), self.count == self.length, False, {}


class Doubles(Honest):
    def look(self):
        return self.np_random.uniform(-1, 1, 2)


class Outside(Honest):
    def look(self):
        return np.full(2, 3.0, np.float32)


class Endless(Honest):
    length = -1


class Forgetful(Honest):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None)


class Chancy(Honest):
    drawn = np.random.default_rng(0)

    def step(self, action):
        obs, _, over, stopped, info = super().step(action)
        return obs, float(self.drawn.random()), over, stopped, info


class Alike(Honest):
    def look(self):
        return np.zeros(2, np.float32)


class Loose(Honest):
    def step(self, action):
        obs, _, over, _, _ = super().step(action)
        return obs, "a lot", int(over), False, None


class Resetting(Honest):
    """Gives the next episode's first observation, which is always the same, as the last of this one."""

    def look(self):
        return np.full(2, (self.count % self.length) / self.length, np.float32)


class Truncating(Honest):
    def step(self, action):
        obs, reward, over, _, info = super().step(action)
        return obs, reward, False, over, info


class Masked(Honest):
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"action_mask": ([1, 0], [0, 0, 1])}

    def step(self, action):
        assert action.tolist() == [0, 2]
        return (*super().step(0)[:4], {"action_mask": ([1, 0], [0, 0, 1])})


class Raising(Honest):
    def step(self, action):
        raise ZeroDivisionError("in the world")


@pytest.fixture
def found():
    def find(kind, **task):
        gymnasium.register("Looked-v0", entry_point=kind, max_episode_steps=None)
        try:
            calls = []

            @contextlib.contextmanager
            def limited(call):
                calls.append(call)
                yield

            answer = looking.conformance({"env": "Looked-v0", **task}, limited, 5.0)
            assert "make" in calls
            return {one.promise: one for one in answer}
        finally:
            del gymnasium.registry["Looked-v0"]

    return find


def test_an_honest_environment_keeps_all_promises(found):
    answer = found(Honest)
    assert {one.is_kept for one in answer.values()} == {True}
    assert list(answer) == ["spaces", "types", "seeding", "determinism", "resets", "ends"]
    assert answer["ends"].told == "51 episodes of 5 random steps, all by the world; no limit"
    assert answer["seeding"].told == "seeds repeat themselves, and differ"


@pytest.mark.parametrize(
    ("kind", "promise", "told"),
    [
        (Doubles, "spaces", "reset: dtype float64, expected float32: it is cast"),
        (Outside, "spaces", "entry [0] is 3, expected -1 to 1, the bounds of the space (2 of 2 entries are beyond)"),
        (Forgetful, "seeding", "begin differently: runs cannot be repeated"),
        (Chancy, "determinism", "two copies differ at step 1 of seed"),
        (Loose, "types", "step 1 of seed 20231: info None (NoneType), expected a dict"),
    ],
)
def test_a_promise_that_is_broken_is_told_with_its_place(found, kind, promise, told):
    answer = found(kind)
    assert answer[promise].is_kept is False
    assert told in answer[promise].told
    if kind is not Forgetful:  # whose copies do not begin alike either
        assert [name for name, one in answer.items() if not one.is_kept] == [promise]


def test_what_cannot_be_known_is_told_as_such(found):
    assert found(Resetting)["resets"].is_kept is None
    assert found(Endless)["ends"] == (
        "ends",
        None,
        "no episode ended in 256 random steps, no limit; set task.max_episode_steps",
    )
    assert found(Endless, max_episode_steps=9)["ends"].is_kept


def test_deterministic_starts_and_truncation_are_no_faults(found):
    assert found(Alike)["seeding"].told == "seeds repeat themselves; all episodes begin alike"
    assert "of them truncated by itself" in found(Truncating)["ends"].told


def test_only_allowed_actions_are_taken(found):
    assert all(one.is_kept for one in found(Masked).values())


def test_an_environment_that_raises_is_told_with_step_seed_and_line_and_no_more(found):
    (only,) = found(Raising).values()
    assert only.is_kept is False
    assert re.fullmatch(r"step \d+ of seed \d+ raised ZeroDivisionError.* \(.*test_conformance.py:\d+\)", only.told)


class Switches(gymnasium.Env):
    """Takes switches, some of which may not be on, and breaks where they are."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.MultiBinary(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {"action_mask": [np.array([1, 1]), np.array([1, 0]), np.array([0, 1])]}

    def step(self, action):
        assert not action[1], action
        assert action[2], action
        over = bool(self.np_random.random() < 0.1)
        mask = [np.array([1, 1]), np.array([1, 0]), np.array([0, 1])]
        return np.zeros(1, np.float32), 1.0, over, False, {"action_mask": mask}


def test_switches_keep_to_their_mask_whatever_holds_it():
    gymnasium.register("Switches-v0", entry_point=Switches)
    try:
        found = looking.conformance(
            {"env": "Switches-v0", "action_mask": True}, lambda _: contextlib.nullcontext(), 0.2
        )
    finally:
        del gymnasium.registry["Switches-v0"]
    assert not [one for one in found if one.is_kept is False], found
