"""What environments declare for the switches of `[task]`: each part alone, for whole batches, and every refusal."""

from __future__ import annotations

import json
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from odd_environments import Reach, Steady

from mlxe_async.errors import EnvironmentFault, TaskError
from mlxe_async.rows import Spaces, Symmetry
from mlxe_async.tasks.probe import probe
from mlxe_async.tasks.vector import VectorTask


class Help:
    """For Steady, whose observation is (0, step, last action)."""

    symmetry: ClassVar = {"observation_sign": [1, -1, 1, -1, 1], "action_order": [2, 1, 0]}
    limits = (None, 9, 2.0)

    def __init__(self):
        self.shown = []

    def features(self, obs):
        return np.stack([obs[:, 1] ** 2, obs[:, 2] + 0.5], axis=1)

    def shaped_reward(self, obs, action, next_obs, reward, terminated):
        self.shown.append((obs.copy(), action.copy(), next_obs.copy(), reward.copy(), terminated.copy()))
        return reward * 10 + obs[:, 1]

    def adverse_start(self, env, finished_episodes):
        if finished_episodes == 7:
            return None
        env.unwrapped.count = 100
        return [0.0, 100.0, finished_episodes]


class Helped(Steady):
    """Steady with help."""

    def __init__(self, **more):
        super().__init__(**more)
        self.mlxe_help = Help()


class Helping(gymnasium.Wrapper):
    """Declares help for what it wraps."""

    mlxe_help = Help()


class Broken(Steady):
    """Steady with a help of which one part is what is told."""

    def __init__(self, part, what, cls=Help):
        super().__init__()
        self.mlxe_help = cls()
        setattr(self.mlxe_help, part, BROKEN[what])


def raising(*given):
    raise SystemExit(3)


BROKEN = {
    "raising": raising,
    "nothing": lambda *given: None,
    "text": lambda *given: "text",
    "one row": lambda obs, *given: obs[:1],
    "no numbers": lambda obs, *given: np.array([["a"]] * len(obs)),
    "a number": 1.0,
    "too few signs": {"observation_sign": [1, 1], "action_order": [2, 1, 0]},
    "other signs": {"observation_sign": [1, 2, 1], "action_order": [2, 1, 0]},
    "a circle": {"observation_sign": [1, 1, 1], "action_order": [1, 2, 0]},
    "too few actions": {"observation_sign": [1, 1, 1], "action_order": [1, 0]},
    "other keys": {"sign": [1, 1, 1]},
    "not a number": lambda obs, action, next_obs, reward, terminated: np.where(next_obs[:, 1] > 1, np.nan, reward),
    "too large": lambda obs: np.full((len(obs), 1), 1e300),
}


def task(count=1, env="test_help:Helped", *, evaluation=False, **switches):
    return VectorTask({"env": env, **switches}, count, evaluation=evaluation)


def started(vector, finished_episodes=0):
    return np.stack([vector.reset(i, seed=i, finished_episodes=finished_episodes) for i in range(vector.count)])


def test_declared_features_stand_behind_the_observation_after_resets_and_steps():
    vector = task(2, features=True)
    assert vector.spaces.observation_shape == (5,)
    assert started(vector).tolist() == [[0, 0, 0, 0, 0.5]] * 2
    assert vector.step(np.array([1, 2])).next_obs.tolist() == [[0, 1, 1, 1, 1.5], [0, 1, 2, 1, 2.5]]
    assert vector.step(np.array([0, 2])).next_obs.tolist() == [[0, 2, 0, 4, 0.5], [0, 2, 2, 4, 2.5]]


def test_a_declared_reward_is_made_of_whole_transitions_and_the_raw_one_is_kept():
    vector = task(2, shaped_reward=True)
    started(vector)
    vector.step(np.array([1, 2]))
    vector.reset(1, seed=9)
    step = vector.step(np.array([0, 2]))
    # Ten times the own reward plus the step that was left: 1, and 0 after the reset.
    assert step.reward.tolist() == [11, 10]
    assert step.reward.dtype == np.float32
    assert step.raw_reward.tolist() == [1, 1]
    obs, action, next_obs, reward, terminated = vector._envs[0].mlxe_help.shown[-1]
    assert obs.tolist() == [[0, 1, 1], [0, 0, 0]]
    assert (action.tolist(), next_obs.tolist()) == ([0, 2], [[0, 2, 0], [0, 1, 2]])
    assert (reward.tolist(), terminated.tolist()) == ([1, 1], [False, False])


def test_a_declared_reward_sees_the_features_too():
    vector = task(1, shaped_reward=True, features=True)
    started(vector)
    vector.step(np.array([1]))
    assert vector._envs[0].mlxe_help.shown[-1][2].tolist() == [[0, 1, 1, 1, 1.5]]


class Writing(Help):
    """Writes where it may only read."""

    def features(self, obs):
        obs[:] = 1
        return obs

    def shaped_reward(self, obs, action, next_obs, reward, terminated):
        next_obs[:] = 1
        return reward


class Written(Steady):
    """Its help changes what it is shown."""

    mlxe_help = Writing()


@pytest.mark.parametrize("switch", ["features", "shaped_reward"])
def test_what_functions_are_shown_is_for_reading_only(switch):
    with pytest.raises(TaskError, match=rf"task\.{switch}: .* raised ValueError: .*read-only"):
        probe({"env": "test_help:Written", switch: True})


def test_only_the_environments_that_are_stepped_move_on_in_what_the_reward_is_shown():
    vector = task(2, shaped_reward=True)
    started(vector)
    vector.step(np.array([1, 1]))
    assert vector.step(np.array([1, 1]), only=[0]).reward.tolist() == [11, 0]
    assert vector.step(np.array([1, 1])).reward.tolist() == [12, 11]


def test_declared_starts_are_the_first_observation_and_the_environment_goes_on_from_there():
    vector = task(1, adverse_starts=True)
    assert vector.reset(0, seed=0, finished_episodes=3).tolist() == [0, 100, 3]
    assert vector.step(np.array([2])).next_obs.tolist() == [[0, 101, 2]]
    assert vector.reset(0, seed=0, finished_episodes=7).tolist() == [0, 0, 0]


def test_a_declared_mirror_image_is_cut_to_what_is_shown():
    assert task().spaces.symmetry is None
    assert task(mirror=True).spaces.symmetry == Symmetry((1.0, -1.0, 1.0), (2, 1, 0))
    assert task(mirror=True, features=True).spaces.symmetry == Symmetry((1.0, -1.0, 1.0, -1.0, 1.0), (2, 1, 0))


def test_declared_limits_need_no_switch_and_travel_as_json():
    assert task().spaces.limits == (None, 9.0, 2.0)
    facts = probe({"env": "test_help:Helped", "features": True})
    spaces = Spaces.from_json(json.loads(json.dumps(facts["spaces"], allow_nan=False)))
    assert spaces.limits == (None, 9.0, 2.0, None, None)
    assert spaces == task(features=True).spaces


def test_spaces_written_before_there_were_limits_are_read():
    written = Spaces((3,), actions=2).to_json()
    del written["limits"]
    assert Spaces.from_json(written) == Spaces((3,), actions=2)


def test_tests_of_frozen_versions_keep_the_features_and_nothing_else():
    vector = task(1, evaluation=True, features=True, shaped_reward=True, adverse_starts=True, mirror=True)
    assert started(vector).tolist() == [[0, 0, 0, 0, 0.5]]
    assert vector.step(np.array([1])).reward.tolist() == [1]


def test_a_wrapper_may_declare_help_for_an_environment_of_others():
    wrapped = {"env": "odd_environments:Steady", "wrappers": ["test_help:Helping"]}
    vector = VectorTask({**wrapped, "features": True, "mirror": True}, 1)
    assert started(vector).shape == (1, 5)
    cartpole = {"env": "CartPole-v1", "wrappers": ["test_help:Helping"]}
    with pytest.raises(TaskError, match="limits as a list of 4"):
        VectorTask(cartpole, 1)


def test_the_outermost_help_counts():
    vector = VectorTask({"env": "test_help:Helped", "wrappers": ["test_help:Helping"], "shaped_reward": True}, 1)
    Helping.mlxe_help.shown.clear()
    started(vector)
    vector.step(np.array([0]))
    assert len(Helping.mlxe_help.shown) == 1


class OwnType(Steady):
    """Declares its mirror image by the package's own type."""

    mlxe_help = type("OwnHelp", (), {"symmetry": Symmetry((1.0, 1.0, 1.0), (0, 1, 2))})


def test_a_symmetry_may_be_declared_as_the_packages_own_type():
    assert task(env="test_help:OwnType", mirror=True).spaces.symmetry == Symmetry((1.0, 1.0, 1.0), (0, 1, 2))


@pytest.mark.parametrize(
    ("part", "what", "switch", "words"),
    [
        ("features", "raising", "features", r"task\.features: mlxe_help\.features of .* raised SystemExit: 3"),
        ("features", "nothing", "features", "expected features to return 2 rows of numbers, got"),
        ("features", "one row", "features", "expected features to return 2 rows of numbers, got"),
        ("features", "no numbers", "features", "expected features to return 2 rows of numbers, got"),
        ("symmetry", "too few signs", "mirror", "expected observation_sign with 3 numbers"),
        ("symmetry", "other signs", "mirror", "expected observation_sign of 1 and -1"),
        ("symmetry", "a circle", "mirror", "expected action_order to pair the actions 0 to 2"),
        ("symmetry", "too few actions", "mirror", "expected action_order with 3 numbers"),
        ("symmetry", "other keys", "mirror", "expected symmetry as observation_sign and action_order"),
        ("limits", "a number", "features", "expected limits as a list of 3, got 1.0"),
    ],
)
def test_help_of_another_form_is_refused_when_the_task_is_made(part, what, switch, words):
    with pytest.raises(TaskError, match=words):
        VectorTask({"env": "test_help:Broken", "kwargs": {"part": part, "what": what}, switch: True}, 1)


@pytest.mark.parametrize("what", ["raising", "nothing", "text", "one row"])
def test_a_reward_that_is_none_is_refused_by_the_probe(what):
    settings = {"env": "test_help:Broken", "kwargs": {"part": "shaped_reward", "what": what}, "shaped_reward": True}
    with pytest.raises(TaskError, match=r"task\.shaped_reward: mlxe_help.*(raised SystemExit|to return 1 numbers)"):
        probe(settings)


def test_a_start_that_cannot_be_made_is_a_fault_of_the_reset():
    for what, words in (("raising", "in reset of the episode with seed 3: raised SystemExit"), ("text", "observation")):
        vector = task(env="test_help:Broken", kwargs={"part": "adverse_start", "what": what}, adverse_starts=True)
        with pytest.raises(EnvironmentFault, match=words) as caught:
            vector.reset(0, seed=3)
        assert caught.value.phase == "reset"


def test_a_shaped_reward_that_is_no_number_is_a_fault_of_the_environment_it_is_for():
    kwargs = {"part": "shaped_reward", "what": "not a number"}
    vector = task(2, env="test_help:Broken", kwargs=kwargs, shaped_reward=True)
    started(vector)
    assert vector.step(np.array([0, 0])).ok.all()
    vector.reset(1, seed=5)
    step = vector.step(np.array([0, 0]))
    assert step.ok.tolist() == [False, True]
    assert "reward as shaped: expected a finite number, got nan" in step.faults[0].detail
    assert (step.reward.tolist(), step.next_obs[0].tolist()) == ([0, 1], [0, 0, 0])
    vector.rebuild(0)
    vector.reset(0, seed=6)
    assert vector.step(np.array([0, 0]), only=[0]).ok.tolist() == [True, False]


def test_a_feature_that_float32_cannot_hold_is_a_fault():
    vector = task(env="test_help:Broken", kwargs={"part": "features", "what": "too large"}, features=True)
    with pytest.raises(EnvironmentFault, match=r"expected finite numbers, got inf at index \[3\]"):
        vector.reset(0, seed=0)


class HelpedReach(Reach):
    """Actions that are arrays have no mirror image here."""

    mlxe_help = Help()


class HelpedPicture(Steady):
    """Shows a picture."""

    mlxe_help = type("PictureHelp", (Help,), {"limits": None})()

    def __init__(self):
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)


def test_mirrors_and_features_are_refused_where_they_make_no_sense():
    HelpedReach.mlxe_help.limits = None
    with pytest.raises(TaskError, match="declared for discrete actions only"):
        task(env="test_help:HelpedReach", mirror=True)
    for switch in ("mirror", "features"):
        with pytest.raises(TaskError, match=rf"task\.{switch}: is for observations that are vectors of floats"):
            task(env="test_help:HelpedPicture", **{switch: True})
