"""Trying an environment out: the facts about a good one, and one helpful sentence about any other."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import tomllib

import gymnasium
import numpy as np
import odd_environments as odd
import pytest
from gymnasium import spaces
from many_spaces import Drawn

from mlxe_async.errors import TaskError
from mlxe_async.rows import Spaces
from mlxe_async.tasks.probe import probe
from mlxe_async.tasks.vector import VectorTask


class Limits:
    """Remembers which calls were bounded, and that none was left open."""

    def __init__(self):
        self.calls = []
        self._within = 0

    @contextlib.contextmanager
    def __call__(self, call):
        assert not self._within, "one call within another: the inner one's end would be taken for both"
        self._within += 1
        self.calls.append(call)
        yield
        self._within -= 1


def refusal(task):
    with pytest.raises(TaskError) as caught:
        probe(task)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_facts_are_plain_json_and_tell_what_a_run_must_know():
    facts = probe({"env": "CartPole-v1", "max_episode_steps": 1000, "squared_position": True})
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert Spaces.from_json(facts["spaces"]).observation_shape == (5,)
    assert (facts["env"], facts["max_episode_steps"], facts["registered_max_episode_steps"]) == (
        "CartPole-v1",
        1000,
        500,
    )
    assert (facts["reward_threshold"], facts["evaluation_vectorised"], facts["notes"]) == (475.0, True, [])
    assert all(facts[name] > 0 for name in ("make_seconds", "first_step_seconds", "step_seconds"))


def test_bounds_without_limit_are_plain_json_too():
    json.dumps(probe({"env": "odd_environments:Reach"}), allow_nan=False)


@pytest.mark.parametrize("env", ["Acrobot-v1", "Pendulum-v1", "MountainCarContinuous-v0", "gymnasium:CartPole-v1"])
def test_ordinary_environments_pass(env):
    assert probe({"env": env})["spaces"]["observation_shape"]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("Cartpole-v1", "did you mean CartPole-v1"),
        ("cart-pole-v1", "did you mean CartPole"),
        ("CartPole", "did you mean CartPole"),
        ("CartPole-v7", "did you mean CartPole"),
        ("LunarLander-v2", "did you mean LunarLander-v3"),
        ("zzzzzzzz", 'there is no environment "zzzzzzzz"'),
        ("ALE/NoSuchGame-v5", 'pip install "mlxe_async[atari]"'),
        ("no_such_module_here:Env-v0", "there is no module no_such_module_here"),
        ("a-b:Env-v0", 'such as "CartPole-v1" or "module:Id-v0"'),
        ("odd_environments:Missing-v0", 'there is no environment "Missing-v0"'),
    ],
)
def test_an_unknown_environment_is_refused_with_a_way_out(env, words):
    assert words in refusal({"env": env})


@pytest.mark.parametrize(
    ("env", "package", "extra"), [("LunarLander-v3", "Box2D", "box2d"), ("HalfCheetah-v5", "mujoco", "mujoco")]
)
def test_a_missing_package_is_named_with_what_to_install(env, package, extra):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed here")
    assert f'{env} needs a package that is not installed: pip install "mlxe_async[{extra}]"' in refusal({"env": env})


@pytest.mark.parametrize("env", ["os:system", "builtins:eval", "subprocess:Popen", "odd_environments:TwoArguments"])
def test_only_classes_of_environments_are_called_from_other_modules(env):
    assert "there is no environment" in refusal({"env": env, "kwargs": {}})


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        ("os:system", "has no gymnasium.Wrapper"),
        ("odd_environments:Steady", "has no gymnasium.Wrapper"),
        ("odd_environments", 'expected "module:Wrapper"'),
        ("no_such_module_here:Wrapper", "there is no module no_such_module_here"),
    ],
)
def test_a_wrapper_that_is_none_is_refused(wrapper, words):
    text = refusal({"env": "CartPole-v1", "wrappers": [wrapper]})
    assert text.startswith("task.wrappers: ")
    assert words in text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise SystemExit(3)", "importing it called exit(3)"),
        ("print('bye'); exit(0)", "importing it called exit(0)"),
        ("raise KeyboardInterrupt", "importing it raised KeyboardInterrupt"),
        ("import no_such_package_here", "there is no module no_such_package_here"),
        ("import Box2D.none", 'pip install "mlxe_async[box2d]"'),
        ("1 +", "importing it raised SyntaxError"),
    ],
)
def test_a_module_that_does_not_let_itself_be_imported_is_a_sentence(body, words, tmp_path, monkeypatch):
    (tmp_path / "awkward_module.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("awkward_module", None)
    assert words in refusal({"env": "awkward_module:Env-v0"})


@pytest.mark.parametrize("space", ["Text", "Graph", "Sequence", "OneOf"])
def test_an_observation_space_nobody_can_use_is_refused_by_name(space):
    text = refusal({"env": "odd_environments:Wordy", "kwargs": {"observation": space}})
    assert f"observation space {space}(" in text
    assert "is not supported, expected a Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple" in text


@pytest.mark.parametrize("kwargs", [{}, {"observe": ["a"]}])
def test_a_dict_of_which_nothing_can_be_used_is_refused_by_name(kwargs):
    space = spaces.Dict({"a": spaces.Text(3), "b": spaces.Tuple((spaces.Sequence(spaces.Discrete(2)),))})
    text = refusal({"env": "many_spaces:Drawn", "kwargs": {"observation": space}, **kwargs})
    assert "nothing of the observation space Dict('a': Text(" in text
    assert "is supported, expected a Box" in text
    assert "observe =" not in text
    empty = refusal({"env": "many_spaces:Drawn", "kwargs": {"observation": spaces.Tuple(())}})
    assert "nothing of the observation space Tuple()" in empty


@pytest.mark.parametrize(
    ("box", "stored"),
    [
        (spaces.Box(0, 1, (0,)), [1]),
        (spaces.Box(0, 255, (2, 0), np.uint8), [1]),
        (spaces.Dict({"a": spaces.Box(0, 1, (0,)), "b": spaces.Box(0, 1, (2,))}), [3]),
    ],
)
def test_a_box_without_an_entry_is_shown_as_one_zero(box, stored):
    facts = probe({"env": "many_spaces:Drawn", "kwargs": {"observation": box}})
    assert facts["spaces"]["observation_shape"] == stored
    assert facts["notes"] == []


def test_a_box_without_an_entry_that_shows_one_is_a_fault():
    task = {"env": "many_spaces:Drawn", "kwargs": {"observation": spaces.Box(0, 1, (0,)), "wrong": lambda _: [1.0]}}
    assert "observation: expected shape (0,), got [1.0] (list)" in refusal(task)


MISSION = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (7, 7, 3), np.uint8),
        "direction": spaces.Discrete(4),
        "mission": spaces.Text(9),
        'odd "name"': spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))),
        "words": spaces.Dict({"one": spaces.Text(3), "two": spaces.Discrete(2)}),
    }
)


@pytest.mark.parametrize(
    ("space", "said", "kept"),
    [
        (MISSION, '"mission" (Text), "words" (Dict)', ["direction", "image", 'odd "name"']),
        (spaces.Tuple((spaces.Text(3), spaces.Discrete(2), spaces.MultiBinary(2))), '"0" (Text)', ["1", "2"]),
    ],
)
def test_what_is_no_number_is_named_with_the_line_that_leaves_it_out_and_that_line_works(space, said, kept):
    task = {"env": "many_spaces:Drawn", "kwargs": {"observation": space}}
    text = refusal(task)
    assert f"{said} cannot be made numbers of a fixed size" in text
    pasted = tomllib.loads(text[text.index("observe = ") :])
    assert pasted == {"observe": kept}
    found = Spaces.from_json(probe({**task, **pasted})["spaces"])
    assert {part.name.partition(".")[0] for part in found.parts} == set(kept)
    (one, *_) = kept
    found = Spaces.from_json(probe({**task, "observe": [one]})["spaces"])
    assert {part.name for part in found.parts} == {one}


def test_observe_names_what_is_there_and_what_can_be_used():
    task = {"env": "many_spaces:Drawn", "kwargs": {"observation": MISSION}}
    known = '"direction", "image", "odd \\"name\\""'
    text = refusal({**task, "observe": ["image", "picture"]})
    assert text == f'task.observe: many_spaces:Drawn shows no "picture", expected some of {known}'
    text = refusal({**task, "observe": ["image", "mission"]})
    assert text.endswith(f'"mission" (Text) cannot be made numbers of a fixed size; write observe = [{known}]')
    assert "chooses among the parts of a Dict or a Tuple, CartPole-v1 shows Box(" in refusal(
        {"env": "CartPole-v1", "observe": ["image"]}
    )


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(3)})}),
        spaces.Dict({1: spaces.Discrete(2), "1": spaces.Discrete(3)}),
    ],
)
def test_two_parts_of_one_name_are_refused(space):
    text = refusal({"env": "many_spaces:Drawn", "kwargs": {"observation": space}})
    assert "two parts of its observations are called" in text


def test_wrappers_take_arguments_and_may_be_functions():
    stacked = {"entry": "gymnasium.wrappers:FrameStackObservation", "kwargs": {"stack_size": 4}}
    found = probe({"env": "CartPole-v1", "wrappers": [stacked, "gymnasium.wrappers:FlattenObservation"]})
    assert found["spaces"]["observation_shape"] == [16]
    rewards = []
    for one in ("odd_environments:doubled", {"entry": "odd_environments:doubled", "kwargs": {"times": 5}}):
        vector = VectorTask({"env": "odd_environments:Steady", "wrappers": [one]}, 1)
        vector.reset(0, seed=0)
        rewards.append(float(vector.step(np.zeros(1, np.int64)).reward[0]))
        vector.close()
    assert rewards[1] == pytest.approx(2.5 * rewards[0]) != 0
    text = refusal({"env": "odd_environments:Steady", "wrappers": ["odd_environments:lost"]})
    assert "odd_environments:lost returned None (NoneType), expected a gymnasium.Env" in text


def test_pictures_are_shown_with_their_channels_first_where_that_is_asked():
    task = {"env": "odd_environments:Coloured", "channels_first": True}
    assert probe(task)["spaces"]["observation_shape"] == [3, 40, 48]
    vector = VectorTask(task, 1)
    seen = np.array(vector.reset(0, seed=0))
    expected = odd.Coloured().reset(seed=0)[0]
    np.testing.assert_array_equal(seen.reshape(3, 40, 48), np.moveaxis(expected, -1, 0))
    vector.close()
    assert "expected pictures (H, W, C)" in refusal({"env": "CartPole-v1", "channels_first": True})


@pytest.mark.parametrize(
    ("env", "observation", "action"),
    [
        ("FrozenLake-v1", "16 floats", "one of 4"),
        ("Taxi-v4", "500 floats", "one of 6"),
        ("Blackjack-v1", "0 32 floats, 1 11 floats, 2 2 floats", "one of 2"),
    ],
)
def test_environments_of_integers_and_tuples_pass(env, observation, action):
    found = probe({"env": env})
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    known = Spaces.from_json(found["spaces"])
    assert (known.observation_words, known.action_words) == (observation, action)


def test_a_mask_that_nobody_uses_is_told_once_and_one_that_is_used_limits_what_is_tried():
    (note,) = probe({"env": "Taxi-v4"})["notes"]
    assert note == "Taxi-v4 tells which actions are allowed (action_mask): task.action_mask = true would use it"
    found = probe({"env": "Taxi-v4", "action_mask": True})
    assert found["notes"] == []
    assert Spaces.from_json(found["spaces"]).masked
    Drawn.made.clear()
    forbidding = {"mask": ([0, 0, 1], [1, 0]), "action": spaces.MultiDiscrete([3, 2])}
    probe({"env": "many_spaces:Drawn", "kwargs": forbidding, "action_mask": True})
    assert {tuple(action.tolist()) for action in Drawn.made[0].given} == {(2, 0)}


def test_a_mask_is_for_actions_to_choose_from_and_must_be_given():
    text = refusal({"env": "Pendulum-v1", "action_mask": True})
    assert text == "task.action_mask: is for actions to choose from, Pendulum-v1 takes a Box of shape (1,)"
    text = refusal({"env": "CartPole-v1", "action_mask": True})
    assert "CartPole-v1" in text
    assert 'info["action_mask"]: expected 2 of 0 or 1, got None' in text


@pytest.mark.parametrize("space", ["mission", "Text", "Graph", "Sequence", "Tuple", "Dict", "Box(0, 10", "OneOf", "()"])
def test_an_action_space_nobody_can_use_is_refused_by_name(space):
    text = refusal({"env": "odd_environments:Wordy", "kwargs": {"action": space}})
    assert "action space" in text
    assert space.strip("()").removeprefix("mission") in text
    assert "is not supported, expected Discrete, MultiDiscrete, MultiBinary or a Box of floats" in text


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([3, 2], start=[1, 1]), spaces.MultiBinary((2, 2))])
def test_actions_of_several_choices_are_tried_out(space):
    Drawn.made.clear()
    known = Spaces.from_json(probe({"env": "many_spaces:Drawn", "kwargs": {"action": space}})["spaces"])
    assert known.action_shape == space.shape
    assert all(space.contains(action) for action in Drawn.made[0].given)
    assert len({action.tobytes() for action in Drawn.made[0].given}) == np.prod(known.action_sizes)


def test_who_must_not_wait_for_environments_to_close_is_given_them():
    made = []
    task = {"env": "odd_environments:NeverCloses"}
    assert probe(task, made)["spaces"]["actions"] == 3
    assert [vector.count for vector in made] == [1]


@pytest.mark.parametrize("forgets", ["observation_space", "action_space"])
def test_a_space_that_is_not_declared_is_a_sentence(forgets):
    text = refusal({"env": "odd_environments:Spaceless", "kwargs": {"forgets": forgets}})
    assert "odd_environments:Spaceless" in text
    assert f"raised LookupError: no {forgets} here" in text


@pytest.mark.parametrize("way", ["four values", "reward none", "broadcastable", "value error", "exit"])
def test_an_environment_that_never_manages_a_first_step_is_refused_with_the_reason(way):
    text = refusal({"env": "odd_environments:Odd", "kwargs": {"way": way}})
    assert "at step 1 of the episode with seed " in text


class SmallSeeds(gymnasium.Env):
    """It takes seeds of 16 bits alone; those of training have 32."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        if seed >= 2**16:
            raise ValueError("no such level")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


class SixthStep(SmallSeeds):
    """Its sixth step fails."""

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 6:
            raise ValueError("the motor is too hot")
        return super().step(action)


def test_seeds_are_tried_out_that_are_as_large_as_those_of_training():
    gymnasium.register("SmallSeeds-v0", SmallSeeds)
    try:
        assert "no such level" in refusal({"env": "SmallSeeds-v0"})
    finally:
        del gymnasium.registry["SmallSeeds-v0"]


def test_a_fault_after_the_first_step_is_told_with_its_step_and_seed():
    gymnasium.register("SixthStep-v0", SixthStep)
    try:
        (note,) = (note for note in probe({"env": "SixthStep-v0"})["notes"] if "fault" in note)
    finally:
        del gymnasium.registry["SixthStep-v0"]
    assert note.startswith("after 5 steps with random actions it had a fault, of which a run survives some: task.env: ")
    assert "at step 6 of the episode with seed " in note
    assert "the motor is too hot" in note


def test_a_raising_environment_is_refused_with_the_line_in_its_code():
    assert "odd_environments.py" in refusal({"env": "odd_environments:Odd", "kwargs": {"way": "value error"}})


@pytest.mark.parametrize("where", ["make", "reset"])
def test_an_environment_that_cannot_be_made_or_reset_is_refused(where):
    text = refusal({"env": "odd_environments:Odd", "kwargs": {"way": "value error", "where": where}})
    assert f"in {where}" in text


def test_an_environment_that_fails_later_now_and_then_is_not_refused():
    assert probe({"env": "odd_environments:Odd", "kwargs": {"way": "value error", "at": 9}})["step_seconds"] > 0


def test_wrong_arguments_are_a_sentence():
    assert "kwargs" in refusal({"env": "CartPole-v1", "kwargs": {"length": 3}})


def test_each_call_into_the_environment_is_bounded():
    limits = Limits()
    probe({"env": "CartPole-v1", "max_episode_steps": 3}, limited=limits)
    assert limits.calls[:6] == ["import", "make", "reset", "first step", "reset", "first step"]
    assert limits.calls[6:9] == ["step", "step", "reset"]
    assert set(limits.calls[9:]) == {"reset", "first step", "step"}


def test_the_calls_of_a_native_vector_are_bounded_too():
    limits = Limits()
    probe({"env": "CartPole-v1", "vectorize": "native"}, limited=limits)
    assert limits.calls[:5] == ["import", "make", "make", "reset", "first step"]
