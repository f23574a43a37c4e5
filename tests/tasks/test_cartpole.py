"""CartPole's changes for learning, each a switch of its own, against numbers worked out by hand."""

from __future__ import annotations

from collections import Counter

import gymnasium
import numpy as np
import pytest

from mlxe_async.errors import TaskError
from mlxe_async.settings.task import CartPole
from mlxe_async.tasks.cartpole import CartPoleHelp
from mlxe_async.tasks.vector import VectorTask

ALL = {"adverse_starts": True, "shaped_reward": True, "squared_position": True, "mirror": True}


def shaped(obs, fell, *settings):
    """The shaped reward of states that were reached, which does not depend on where the step began."""
    return CartPoleHelp(*settings).shaped_reward(None, None, obs, None, fell)


def vector(count=1, *, evaluation=False, **switches):
    return VectorTask({"env": "CartPole-v1", "max_episode_steps": 1000, **switches}, count, evaluation=evaluation)


@pytest.mark.parametrize(
    ("episodes", "four_times_p"),
    [(0, 0.8), (1, 0.8), (5, 0.8), (10, 0.559), (25, 0.4), (50, 0.329), (100, 0.28), (150, 0.257), (350, 0.22)],
)
def test_adverse_starts_grow_rarer_with_finished_episodes(episodes, four_times_p):
    assert 4 * CartPoleHelp().adverse_probability(episodes) == pytest.approx(four_times_p, abs=5e-4)


@pytest.mark.parametrize("episodes", [625, 10**6])
def test_adverse_starts_never_become_rarer_than_one_in_five(episodes):
    assert CartPoleHelp().adverse_probability(episodes) == pytest.approx(0.05)


def kind_of_start(obs, plain):
    changed = np.flatnonzero(obs != plain)
    return tuple((int(entry), round(float(obs[entry]), 3)) for entry in changed)


@pytest.mark.parametrize(("episodes", "untouched"), [(0, 0.2), (25, 0.6)])
def test_each_adverse_start_overwrites_one_coordinate_and_has_its_probability(episodes, untouched):
    task, plain = vector(adverse_starts=True), gymnasium.make("CartPole-v1").unwrapped
    kinds = Counter(
        kind_of_start(task.reset(0, seed, finished_episodes=episodes), plain.reset(seed=seed)[0])
        for seed in range(2000)
    )
    assert set(kinds) == {(), ((0, -1.5),), ((0, 1.5),), ((2, -0.15),), ((2, 0.15),)}
    assert kinds[()] / 2000 == pytest.approx(untouched, abs=0.04)
    for kind in set(kinds) - {()}:
        assert kinds[kind] / 2000 == pytest.approx((1 - untouched) / 4, abs=0.03)


def test_the_environment_goes_on_from_the_adverse_start():
    task = vector(adverse_starts=True)
    seed = next(seed for seed in range(100) if task.reset(0, seed)[0] == np.float32(1.5))
    obs = task.reset(0, seed)
    assert task.step(np.array([1])).next_obs[0, 0] == pytest.approx(obs[0] + 0.02 * obs[1])


def test_the_same_seed_gives_the_same_start():
    starts = [[vector(adverse_starts=True).reset(0, seed).tolist() for seed in range(30)] for _ in range(2)]
    assert starts[0] == starts[1]


def test_shaped_rewards_are_the_published_ones():
    """r = 1 + (1 - |x|/2.4) + (1 - |theta|/0.20943951), and -10 for the fall."""
    obs = np.array([[0, 9, 0, 9], [1.2, 0, 0, 0], [-2.4, 0, 0.1, 0], [0.6, 0, -0.20943951, 0], [2.5, 0, 0, 0]], "f4")
    fell = np.array([False, False, False, False, True])
    expected = [3, 2.5, 2 - 0.1 / 0.20943951, 1.75, -10]
    assert shaped(obs, fell) == pytest.approx(expected, abs=1e-6)
    assert shaped(np.pad(obs, ((0, 0), (0, 1))), fell) == pytest.approx(expected, abs=1e-6)


def test_shaping_looks_at_the_state_reached_and_leaves_the_raw_reward_alone():
    task = vector(2, shaped_reward=True)
    for index in range(2):
        task.reset(index, seed=index)
    ends = 0
    for number in range(60):
        step = task.step(np.array([0, number % 2]))
        assert step.raw_reward.tolist() == [1.0, 1.0]
        x, theta = np.abs(step.next_obs[:, 0]), np.abs(step.next_obs[:, 2])
        expected = np.where(step.terminated, -10, 3 - x / 2.4 - theta / 0.20943951)
        assert step.reward == pytest.approx(expected, abs=1e-5)
        ends += len(step.ended)
        for index in step.ended:
            task.reset(index, seed=number)
    assert ends > 2


def test_a_truncated_step_keeps_its_ordinary_shaped_reward():
    task = VectorTask({"env": "CartPole-v1", "max_episode_steps": 1, "shaped_reward": True}, 1)
    task.reset(0, seed=0)
    step = task.step(np.array([1]))
    assert step.truncated[0]
    assert step.reward[0] > 2.5


def test_the_squared_position_is_there_after_resets_and_after_steps():
    task = vector(2, squared_position=True, adverse_starts=True)
    obs = np.stack([task.reset(index, seed=index) for index in range(2)])
    assert obs.shape == (2, 5)
    assert np.array_equal(obs[:, 4], obs[:, 0] ** 2)
    step = task.step(np.array([0, 1]))
    assert np.array_equal(step.next_obs[:, 4], step.next_obs[:, 0] ** 2)
    assert np.array_equal(step.next_obs[:, :4], plain_steps([0, 1], task, obs))


def plain_steps(actions, task, obs):
    """One step of two bare environments from the states of `task`'s before its step."""
    rows = []
    for action, index in zip(actions, range(2), strict=True):
        env = gymnasium.make("CartPole-v1").unwrapped
        env.reset(seed=index)
        task.reset(index, seed=index)
        env.state = np.array(task._envs[index].unwrapped.state)
        assert np.allclose(env.state, obs[index, :4])
        rows.append(env.step(action)[0])
    return np.stack(rows)


def test_the_mirror_image_of_a_step_is_the_step_of_the_mirror_image():
    symmetry = vector(squared_position=True, mirror=True).spaces.symmetry
    sign = np.array(symmetry.observation_sign)
    assert symmetry.action_order == (1, 0)
    for action in (0, 1):
        left, right = vector(squared_position=True), vector(squared_position=True)
        left.reset(0, seed=4)
        right.reset(0, seed=4)
        right._envs[0].unwrapped.state *= -1
        step = left.step(np.array([action])).next_obs[0]
        mirrored = right.step(np.array([symmetry.action_order[action]])).next_obs[0]
        assert np.array_equal(step * sign, mirrored)


@pytest.mark.parametrize("name", list(ALL))
def test_each_switch_changes_its_own_part_and_no_other(name):
    task, plain = vector(**{name: True}), vector()
    changed = {
        "adverse_starts": any(not np.array_equal(task.reset(0, seed)[:4], plain.reset(0, seed)) for seed in range(20)),
        "squared_position": task.spaces.observation_shape == (5,),
        "mirror": task.spaces.symmetry is not None,
    }
    seed = next(seed for seed in range(50) if np.array_equal(task.reset(0, seed)[:4], plain.reset(0, seed)))
    task.reset(0, seed)
    plain.reset(0, seed)
    changed["shaped_reward"] = task.step(np.array([0])).reward[0] != plain.step(np.array([0])).reward[0]
    assert changed == {other: other == name for other in changed}


def test_evaluation_keeps_the_features_and_nothing_else():
    task, plain = vector(evaluation=True, **ALL), gymnasium.make("CartPole-v1")
    for seed in range(40):
        assert np.array_equal(task.reset(0, seed)[:4], plain.reset(seed=seed)[0])
        step = task.step(np.array([1]))
        assert (step.reward[0], step.next_obs.shape) == (1.0, (1, 5))
    assert task.simulator is not None


@pytest.mark.parametrize("name", ["adverse_starts", "shaped_reward", "mirror", "features"])
def test_a_switch_of_an_environment_that_declares_nothing_is_refused_by_its_name(name):
    with pytest.raises(TaskError, match=rf"task\.{name}: Acrobot-v1 declares no \w+: .* an attribute mlxe_help"):
        VectorTask({"env": "Acrobot-v1", name: True}, 1)


def test_the_squared_position_is_for_cartpole_and_is_all_the_features_that_it_has():
    with pytest.raises(TaskError, match=r'task\.squared_position: is for CartPole, got task.env = "Acrobot-v1"'):
        VectorTask({"env": "Acrobot-v1", "squared_position": True}, 1)
    with pytest.raises(TaskError, match=r"task\.features: CartPole's feature is task\.squared_position"):
        vector(features=True)


def test_failure_limits_are_declared_without_a_switch_and_not_where_a_wrapper_may_change_what_is_seen():
    assert vector().spaces.limits == pytest.approx((2.4, None, 0.20943951, None))
    assert vector(squared_position=True).spaces.limits == pytest.approx((2.4, None, 0.20943951, None, None))
    assert vector(wrappers=["gymnasium.wrappers:FlattenObservation"]).spaces.limits is None
    assert VectorTask({"env": "Acrobot-v1"}, 1).spaces.limits is None


def test_a_switch_together_with_wrappers_is_refused_naming_both():
    wrappers = ["gymnasium.wrappers:FlattenObservation"]
    with pytest.raises(TaskError, match=r"task\.shaped_reward: .* combined with task\.wrappers"):
        vector(shaped_reward=True, wrappers=wrappers)
    assert vector(wrappers=wrappers).simulator is None


OTHERS = CartPole(
    adverse_x=2.0,
    adverse_angle=0.1,
    adverse_first=0.25,
    adverse_least=0.1,
    adverse_base=10.0,
    failure_reward=-1.0,
    centre_weight=0.0,
    upright_weight=2.0,
)


@pytest.mark.parametrize(("episodes", "probability"), [(0, 0.25), (10, 0.25), (100, 0.125), (10**6, 0.1)])
def test_the_constants_of_adverse_starts_are_settings(episodes, probability):
    assert CartPoleHelp(OTHERS).adverse_probability(episodes) == pytest.approx(probability)
    task, plain = vector(adverse_starts=True, cartpole=vars(OTHERS)), gymnasium.make("CartPole-v1").unwrapped
    starts = [task.reset(0, seed, finished_episodes=episodes) for seed in range(300)]
    kinds = {kind_of_start(obs, plain.reset(seed=seed)[0]) for seed, obs in enumerate(starts)}
    assert kinds - {()} == {((0, -2.0),), ((0, 2.0),), ((2, -0.1),), ((2, 0.1),)}
    assert (() in kinds) == (probability < 0.25)


def test_a_probability_that_may_fall_to_nothing_leaves_starts_as_they_are():
    never = CartPoleHelp(CartPole(adverse_least=0.0, adverse_base=1 + 1e-9))
    assert never.way_of(0.0, 10**9) in (None, (0, -1.5))
    assert never.way_of(0.5, 10**9) is None


def test_the_constants_of_the_shaped_reward_are_settings():
    """1 + 2 (1 - |theta| / 0.20943951), and -1 for the fall; with both weights 0 the reward of each step is 1."""
    obs = np.array([[0, 9, 0, 9], [1.2, 0, 0.1, 0], [2.5, 0, 0, 0]], "f4")
    fell = np.array([False, False, True])
    assert shaped(obs, fell, OTHERS) == pytest.approx([3, 3 - 0.2 / 0.20943951, -1], abs=1e-6)
    bare = CartPole(centre_weight=0.0, upright_weight=0.0, failure_reward=-1.0)
    assert shaped(obs, fell, bare).tolist() == [1, 1, -1]
