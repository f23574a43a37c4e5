"""The newest observations in one: any Box, nothing of another episode, the same bits as one by one."""

import numpy as np
import pytest

from mlxe_async.errors import TaskError
from mlxe_async.tasks.training import training_task
from mlxe_async.tasks.vector import VectorTask


def alone_and_stacked(task, depth, steps, seed=5):
    """The same episodes twice: single observations, and with a history; a list of (single, stacked, begins) each."""
    plain, deep = VectorTask(task, 1), VectorTask({**task, "history": depth}, 1)
    rng, seen = np.random.default_rng(seed), []
    seen.append((plain.reset(0, seed=seed), deep.reset(0, seed=seed), True))
    for number in range(steps):
        action = rng.integers(0, plain.spaces.actions, 1)
        one, other = plain.step(action), deep.step(action)
        seen.append((one.next_obs[0].copy(), other.next_obs[0].copy(), False))
        assert (one.reward, one.terminated, one.truncated) == (other.reward, other.terminated, other.truncated)
        if one.ended:
            seen.append((plain.reset(0, seed=number), deep.reset(0, seed=number), True))
    return seen, deep


@pytest.mark.parametrize("depth", [2, 4])
def test_a_vector_is_shown_with_those_before_it_in_its_episode(depth):
    seen, deep = alone_and_stacked({"env": "CartPole-v1"}, depth, 120)
    assert deep.spaces.observation_shape == (depth, 4)
    assert deep.spaces.frames == depth
    assert sum(begins for *_, begins in seen) > 3
    newest = []
    for single, stacked, begins in seen:
        newest = [single] * depth if begins else [*newest[1:], single]
        np.testing.assert_array_equal(stacked, np.stack(newest))
    assert deep.out_of_bounds == 0


def test_pictures_have_their_channels_side_by_side():
    shown = {"env": "odd_environments:Coloured", "channels_first": True}
    seen, deep = alone_and_stacked(shown, 3, 8)
    channels, *sides = VectorTask(shown, 1).spaces.observation_shape
    assert deep.spaces.observation_shape == (3 * channels, *sides)
    assert deep.spaces.observation_dtype == VectorTask(shown, 1).spaces.observation_dtype
    newest = []
    for single, stacked, begins in seen:
        newest = [single] * 3 if begins else [*newest[1:], single]
        np.testing.assert_array_equal(stacked, np.concatenate(newest))


def test_one_is_no_history():
    assert VectorTask({"env": "CartPole-v1", "history": 1}, 1).spaces.observation_shape == (4,)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"env": "FrozenLake-v1"}, "expected observations that are a Box"),
        ({"env": "CartPole-v1", "mirror": True}, "task.mirror: is for observations as CartPole-v1 has them"),
        ({"env": "CartPole-v1", "vectorize": "native"}, "task.history is for environments that are stepped one by one"),
    ],
)
def test_what_it_does_not_go_with_is_refused(task, words):
    with pytest.raises(TaskError, match=words):
        training_task({**task, "history": 2}, 1)


def test_where_there_is_a_choice_they_are_stepped_one_by_one():
    assert isinstance(training_task({"env": "CartPole-v1", "vectorize": "auto", "history": 2}, 2), VectorTask)
