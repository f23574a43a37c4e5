"""Entries of observations that `task.hide` keeps from the agent."""

import gymnasium
import numpy as np
import pytest

from mlxe_async.errors import TaskError
from mlxe_async.settings.task import Task, task_of
from mlxe_async.tasks import native
from mlxe_async.tasks.making import make, read_spaces, simulator_of


def shown(obs, hidden):
    return np.delete(obs, hidden)


def test_what_is_left_is_the_environments_own_numbers_in_order():
    plain, hidden = make(Task(env="CartPole-v1")), make(Task(env="CartPole-v1", hide=(3, 1)))
    assert np.array_equal(shown(plain.reset(seed=3)[0], [1, 3]), hidden.reset(seed=3)[0])
    for action in (0, 1, 1, 0, 1):
        (one, *rest), (other, *same) = plain.step(action), hidden.step(action)
        assert np.array_equal(shown(one, [1, 3]), other)
        assert rest[:3] == same[:3]


def test_the_agent_knows_only_of_what_is_shown():
    task = Task(env="CartPole-v1", hide=(1, 3))
    env = make(task)
    assert read_spaces(env, task)[0].observation_shape == (2,)
    plain = gymnasium.make("CartPole-v1").observation_space
    assert np.array_equal(env.observation_space.high, plain.high[[0, 2]])


def test_nothing_that_knows_all_entries_is_used():
    task = Task(env="CartPole-v1", hide=(1,))
    env = make(task)
    assert simulator_of(env, task) is None
    assert read_spaces(env, task)[0].symmetry is None
    assert "hide" in native.why_not(task)


def test_the_same_entry_named_twice_is_hidden_once():
    assert make(Task(env="CartPole-v1", hide=(1, 1))).observation_space.shape == (3,)


def test_history_is_of_what_is_shown():
    env = make(Task(env="CartPole-v1", hide=(1, 3), history=2))
    assert env.observation_space.shape == (2, 2)


@pytest.mark.parametrize("hide", [(4,), (0, 9), (0, 1, 2, 3)])
def test_entries_that_are_not_there_and_all_of_them_are_refused(hide):
    with pytest.raises(TaskError, match=r"task\.hide: expected some of 0 to 3, not all"):
        make(Task(env="CartPole-v1", hide=hide))


def test_observations_without_entries_are_refused():
    with pytest.raises(TaskError, match=r"task\.hide: expected observations that are a vector"):
        make(Task(env="FrozenLake-v1", hide=(0,)))


def test_aids_that_are_made_for_all_entries_are_refused():
    with pytest.raises(TaskError, match=r"got task\.hide; drop one"):
        make(Task(env="CartPole-v1", hide=(1,), shaped_reward=True))


def test_a_written_task_is_read_back_the_same():
    assert task_of({"env": "CartPole-v1", "hide": [1, 3]}) == Task(env="CartPole-v1", hide=(1, 3))
