"""What wrappers keep between episodes: told as plain text, put into others, and refused where that cannot be."""

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, scalar_dtypes

from mlxe_async.errors import EnvironmentFault, TaskError
from mlxe_async.settings.task import MOST_STATE_BYTES
from mlxe_async.tasks import states
from mlxe_async.tasks.probe import probe
from mlxe_async.tasks.vector import VectorTask

HERE = "stateful_wrappers"
_NUMBERS = arrays(st.one_of(scalar_dtypes()).filter(lambda kind: kind.kind in "biuf"), array_shapes(max_side=3))
_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | _NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


class Telling(gymnasium.Wrapper):
    """Keeps what it is told."""

    state = None

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


def telling():
    wrapper = Telling(gymnasium.make("CartPole-v1"))
    return wrapper, states.kept_by(wrapper)


def wrapped(*names, env="CartPole-v1", **more):
    return {"env": env, "wrappers": [{"entry": f"{HERE}:{name}"} for name in names], **more}


def alike(one, other):
    if isinstance(one, np.ndarray | np.generic):
        return type(one) is type(other) and one.dtype == other.dtype and np.array_equal(one, other, equal_nan=True)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[name], other[name]) for name in one)
    return type(one) is type(other) and one == other


@given(_PLAIN)
def test_plain_state_comes_back_as_it_was(state):
    wrapper, layers = telling()
    wrapper.state = state
    text = states.text_of(layers)
    wrapper.state = "another"
    states.put(layers, text, "")
    assert alike(state, wrapper.state)
    assert states.text_of(layers) == text
    assert states.differences(text, text) == []


def test_numbers_that_are_none_and_numpys_own_come_back_too():
    wrapper, layers = telling()
    wrapper.state = [float("inf"), float("nan"), np.float32(0.1), np.int64(3), np.array(2.5)]
    states.put(layers, states.text_of(layers), "")
    assert repr(wrapper.state) == repr([float("inf"), float("nan"), np.float32(0.1), np.int64(3), np.array(2.5)])


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"a": (1, 2)}, r"Telling.get_state\(\), a: got \(1, 2\) \(tuple\), expected None"),
        ({"a": [0, {"b": object()}]}, r"a\[1\]\.b: got <object .*> \(object\), expected"),
        ({"a": {1: 2}}, r", a: got the key 1 \(int\), expected strings as keys"),
        (np.array([None]), "got an array of shape .* and dtype object, expected"),
        (lambda: 0, r"\(function\), expected"),
        ("x" * MOST_STATE_BYTES, "bytes as text, expected at most"),
        (np.zeros(MOST_STATE_BYTES), "expected at most"),
    ],
)
def test_what_is_not_plain_or_too_much_is_refused_by_its_key(state, told):
    wrapper, layers = telling()
    wrapper.state = state
    with pytest.raises(TaskError, match=told) as caught:
        states.text_of(layers)
    assert str(caught.value).startswith("task.wrappers: ")
    assert "\n" not in str(caught.value)


def test_several_alike_are_told_apart_the_innermost_first():
    inner = Telling(gymnasium.make("CartPole-v1"))
    outer = Telling(inner)
    inner.state, outer.state = "in", "out"
    assert states.states_in(states.text_of(states.kept_by(outer))) == {"Telling": "in", "Telling#2": "out"}


def test_an_episode_begins_with_the_state_it_is_given_or_as_the_environment_was_made():
    task = VectorTask(wrapped("Best"), 2)
    rewards = []
    for state in (None, None, "here", None):
        task.begins_with[:] = [task.state_of(0) if state else None] * 2
        task.reset(0, 1)
        task.reset(1, 1)
        rewards.append(task.step(np.array([0, 0])).raw_reward.tolist())
        task.step(np.array([0, 0]))
    assert rewards == [[1, 1], [1, 1], [3, 3], [1, 1]]
    task.close()


def test_tests_of_a_state_begin_each_episode_with_it():
    training = VectorTask(wrapped("Best"), 1)
    training.reset(0, 1)
    for _ in range(4):
        training.step(np.array([0]))
    state = training.state_of(0)
    training.close()
    task = VectorTask(wrapped("Best"), 1, evaluation=True, state=state)
    for _ in range(2):
        task.reset(0, 1)
        assert task.step(np.array([0])).raw_reward[0] == 5
    task.close()


def test_what_a_stage_has_not_begins_as_it_was_made():
    stages = [{"wrappers": [], "until_steps": 5}, {}]
    task = VectorTask(wrapped("Best", stages=stages), 1)
    assert not task.keeps_state
    task.begins_with[0] = task.state_of(0)
    task.enter(0, 1)
    for _ in range(2):
        task.reset(0, 1)
        assert task.step(np.array([0])).raw_reward[0] == 1
    task.close()


def test_gymnasiums_statistics_go_on_in_training_and_stand_still_in_tests():
    table = {"env": "Pendulum-v1", "wrappers": [{"entry": "gymnasium.wrappers:NormalizeObservation"}]}
    training, testing = VectorTask(table, 1), VectorTask(table, 1, evaluation=True)
    before = training.state_of(0)
    training.reset(0, 1)
    for _ in range(5):
        training.step(np.array([[0.5]]))
    after = training.state_of(0)
    assert states.states_in(after)["NormalizeObservation"]["count"] > 5
    assert states.differences(before, after) == ["NormalizeObservation"]
    testing.begins_with[0] = after
    testing.reset(0, 1)
    testing.step(np.array([[0.5]]))
    assert testing.state_of(0) == after
    training.close()
    testing.close()


def test_a_layer_that_cannot_take_a_state_up_is_a_fault_of_its_environment():
    task = VectorTask(wrapped("Best"), 1)
    task.begins_with[0] = '{"Best":{"dict":{}}}'
    with pytest.raises(EnvironmentFault, match=r"in reset.*KeyError: 'largest'"):
        task.reset(0, 1)
    task.close()


# -- the probe ---------------------------------------------------------------------------------------------------------


def test_a_wrapper_that_tells_all_it_keeps_needs_no_word():
    found = probe(wrapped("Best"))
    assert found["keeps_state"]
    assert found["notes"] == []


def test_one_that_leaves_something_out_is_told():
    (note,) = probe(wrapped("Forgetful"))["notes"]
    assert "which began with the same state" in note
    assert "get_state() leaves out something" in note


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "Deaf",
            "task.wrappers: Deaf: expected get_state.. to give what set_state.state. was given, got another state",
        ),
        ("Odd", r"task.wrappers: Odd.get_state\(\), seen\[1\]: got \{2, 3\} \(set\), expected"),
        ("Large", r"task.wrappers: Large.get_state\(\), rows: got 80,000 bytes, expected at most 32,768"),
        ("Raising", r"task.wrappers: Raising.get_state\(\): raised AttributeError: .*'largets'"),
    ],
)
def test_states_that_cannot_be_kept_are_refused_before_anything_starts(name, told):
    with pytest.raises(TaskError, match=told):
        probe(wrapped(name))


def test_of_an_environment_methods_of_these_names_count_only_where_it_says_so():
    assert not probe({"env": f"{HERE}:Body-v0"})["keeps_state"]
    assert probe({"env": f"{HERE}:Winning-v0"})["keeps_state"]
