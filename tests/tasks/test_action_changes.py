"""A cost per change of action is charged in training, within episodes, and seen by no return and no test."""

import numpy as np
import pytest

from mlxe_async.errors import TaskError
from mlxe_async.rows import Spaces
from mlxe_async.tasks.changes import ActionChanges
from mlxe_async.tasks.training import training_task
from mlxe_async.tasks.vector import VectorTask

CARTPOLE = {"env": "CartPole-v1", "action_change_cost": 0.25}


def test_a_change_is_charged_where_the_action_before_it_was_of_the_same_episode():
    changes = ActionChanges(0.5, 3, Spaces((1,), actions=4))
    reward, everyone = np.ones(3, np.float32), np.ones(3, bool)
    changes.charge(reward, np.array([0, 1, 2]), everyone)
    assert reward.tolist() == [1, 1, 1]
    changes.charge(reward, np.array([1, 1, 3]), np.array([True, True, False]))  # the third did not step
    assert reward.tolist() == [0.5, 1, 1]
    changes.begin(0)
    changes.charge(reward, np.array([3, 1, 3]), everyone)
    assert reward.tolist() == [0.5, 1, 0.5]
    assert changes.charged == 2


def test_actions_of_several_entries_change_once():
    changes = ActionChanges(1.0, 1, Spaces((1,), action_shape=(2,), action_kind="multi_discrete", action_sizes=(3, 3)))
    reward = np.zeros(1, np.float32)
    for action in ([0, 1], [2, 2], [2, 2], [2, 0]):
        changes.charge(reward, np.array([action]), np.ones(1, bool))
    assert (reward[0], changes.charged) == (-2.0, 2)


def test_training_is_charged_and_returns_and_tests_are_not():
    training, test = VectorTask(CARTPOLE, 1), VectorTask(CARTPOLE, 1, evaluation=True)
    found = []
    for task in (training, test):
        task.reset(0, 3)
        steps = [task.step(np.array([action])) for action in (0, 1, 1, 0)]
        found.append([float(step.reward[0]) for step in steps])
        assert [float(step.raw_reward[0]) for step in steps] == [1, 1, 1, 1]
        task.reset(0, 3)
        assert task.step(np.array([1])).reward[0] == 1  # another episode's first action
        task.close()
    assert found == [[1, 0.75, 1, 0.75], [1, 1, 1, 1]]
    assert (training.changes.charged, test.changes) == (2, None)


def test_it_comes_after_clipping_and_also_where_rewards_are_shaped():
    for switch in ("clip_rewards", "shaped_reward"):
        rewards = []
        for cost in (0.0, 0.25):
            task = VectorTask({**CARTPOLE, "action_change_cost": cost, switch: True}, 1)
            task.reset(0, 0)
            rewards.append([float(task.step(np.array([action])).reward[0]) for action in (0, 1)])
            task.close()
        plain, charged = rewards
        assert charged == pytest.approx([plain[0], plain[1] - 0.25])


def test_a_vector_forgets_the_last_action_where_it_resets_itself():
    native = training_task({**CARTPOLE, "vectorize": "native"}, 2)
    native.begin(0)
    expected, before, over = 0, None, np.zeros(2, bool)
    for tick in range(60):
        actions = np.array([1, tick % 2])  # the first falls without a change, the second lives on
        step = native.step(actions)
        changed = step.ok & ~over & (before is not None) & (actions != before)
        assert step.reward[step.ok].tolist() == pytest.approx((1 - 0.25 * changed[step.ok]).tolist())
        expected, before, over = expected + int(changed.sum()), actions, step.began | ~step.ok
    assert native.changes.charged == expected > 20
    native.close()


def test_actions_that_are_no_choices_are_refused():
    with pytest.raises(TaskError, match=r"task\.action_change_cost: is for actions to choose from, Pendulum-v1 takes"):
        VectorTask({"env": "Pendulum-v1", "action_change_cost": 0.1}, 1)
