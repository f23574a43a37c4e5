"""Stepping several environments: what comes back, when episodes end, and what spaces may look like."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from mlxe_async.errors import TaskError
from mlxe_async.rows import Spaces
from mlxe_async.tasks.vector import VectorTask


def started(task, count=1, **options):
    vector = VectorTask({"env": "odd_environments:Steady", **task}, count, **options)
    for index in range(count):
        vector.reset(index, seed=index)
    return vector


def test_cartpole_steps_exactly_as_gymnasium_does():
    vector = VectorTask({"env": "CartPole-v1"}, 3)
    envs = [gymnasium.make("CartPole-v1") for _ in range(3)]
    rng = np.random.default_rng(0)
    for index, env in enumerate(envs):
        assert np.array_equal(vector.reset(index, seed=10 + index), env.reset(seed=10 + index)[0])
    for number in range(400):
        actions = rng.integers(0, 2, 3)
        step = vector.step(actions)
        for index, env in enumerate(envs):
            obs, reward, terminated, truncated, _ = env.step(int(actions[index]))
            assert np.array_equal(step.next_obs[index], obs)
            assert (step.reward[index], step.raw_reward[index]) == (reward, reward)
            assert (step.terminated[index], step.truncated[index]) == (terminated, truncated)
            if index in step.ended:
                assert np.array_equal(vector.reset(index, seed=number), env.reset(seed=number)[0])
    assert step.ok.all()
    assert step.faults == []


def test_shapes_and_dtypes_are_those_of_rows():
    step = started({}, 2).step(np.array([0, 2]))
    assert step.next_obs.tolist() == [[0, 1, 0], [0, 1, 2]]
    assert (step.next_obs.dtype, step.reward.dtype, step.raw_reward.dtype) == (np.float32, np.float32, np.float64)
    assert step.terminated.dtype == step.truncated.dtype == step.ok.dtype == bool


def test_spaces_survive_the_way_through_json():
    spaces = VectorTask({"env": "CartPole-v1", "mirror": True, "squared_position": True}, 1).spaces
    assert Spaces.from_json(spaces.to_json()) == spaces
    assert (spaces.observation_shape, spaces.actions) == ((5,), 2)


def test_the_observation_of_the_end_is_the_last_one_and_not_one_after_a_reset():
    vector = started({"kwargs": {"end_at": 2}})
    vector.step(np.array([1]))
    last = vector.step(np.array([2]))
    assert last.next_obs.tolist() == [[0, 2, 2]]
    assert (last.terminated[0], last.truncated[0], last.ended) == (True, False, [0])


def test_an_ended_environment_is_never_stepped_on():
    vector = started({"kwargs": {"end_at": 1}})
    vector.step(np.array([0]))
    with pytest.raises(RuntimeError, match="environment 0: step without a reset"):
        vector.step(np.array([0]))


def test_an_environment_must_be_reset_before_its_first_step():
    with pytest.raises(RuntimeError, match="without a reset"):
        VectorTask({"env": "CartPole-v1"}, 1).step(np.array([0]))


def test_only_the_chosen_environments_are_stepped():
    vector = started({}, 3)
    step = vector.step(np.array([1, 1, 1]), only=[1])
    assert step.ok.tolist() == [False, True, False]
    assert vector.step(np.array([1, 1, 1])).next_obs[:, 1].tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("settings", "options", "limit"),
    [
        ({}, {}, 500),
        ({"max_episode_steps": 7}, {}, 7),
        ({"max_episode_steps": 600}, {}, 600),
        ({"max_episode_steps": 7}, {"evaluation": True, "max_episode_steps": 20}, 20),
    ],
)
def test_the_time_limit_is_the_evaluations_then_the_tasks_then_the_registered_one(settings, options, limit):
    vector = VectorTask({"env": "CartPole-v1", **settings}, 1, **options)
    assert vector.max_episode_steps == limit
    obs = vector.reset(0, seed=3)
    for number in range(1, limit + 1):
        step = vector.step(np.array([int(obs @ (0.1, 0.3, 1, 0.4) > 0)]))
        obs = step.next_obs[0]
        assert (step.terminated[0], step.truncated[0]) == (False, number == limit)


def test_an_end_in_the_last_allowed_step_is_both_terminated_and_truncated():
    step = started({"kwargs": {"end_at": 1}, "max_episode_steps": 1}).step(np.array([0]))
    assert (step.terminated[0], step.truncated[0]) == (True, True)


def test_a_stop_by_the_environment_itself_is_a_truncation():
    step = started({"kwargs": {"stop_at": 1}}).step(np.array([0]))
    assert (step.terminated[0], step.truncated[0], step.ended) == (False, True, [0])


def test_a_later_step_never_changes_what_an_earlier_one_gave():
    vector = started({"env": "odd_environments:SameBuffer"})
    steps = [vector.step(np.array([n % 3])) for n in range(50)]
    assert [step.next_obs[0].tolist() for step in steps] == [[0, n + 1, n % 3] for n in range(50)]


def test_continuous_actions_are_clipped_to_the_bounds_and_the_callers_array_is_left_alone():
    vector = started({"env": "odd_environments:Reach"})
    actions = np.array([[3.0, -1e30]], np.float32)
    assert vector.step(actions).next_obs.tolist() == [[2.0, np.float32(-1e30)]]
    assert actions.tolist() == [[3.0, np.float32(-1e30)]]


def test_unbounded_actions_have_finite_bounds_in_json():
    bounds = VectorTask({"env": "odd_environments:Reach"}, 1).spaces
    assert bounds.action_low[0] == -1
    assert np.isfinite([*bounds.action_low, *bounds.action_high]).all()


def test_actions_count_from_zero_wherever_the_space_starts():
    vector = started({"env": "odd_environments:FromFive"})
    assert vector.spaces.actions == 3
    assert vector.step(np.array([2])).next_obs[0, 2] == 7


@pytest.mark.parametrize(
    ("kind", "stored", "first", "note"),
    [
        ("float64", "<f4", [1, 0.5], False),
        ("list", "<f4", [1, 0.5], True),
        ("big-endian", "<f4", [1, 0.5], True),
        ("uint8", "|u1", [[1, 1], [1, 1]], False),
        ("int64 for uint8", "|u1", [1, 255], True),
        ("int8", "<f4", [1, -3], False),
        ("float16", "<f4", [1, -3], False),
    ],
)
def test_observations_of_other_kinds_are_cast_with_one_note_where_they_differ_from_the_space(kind, stored, first, note):
    vector = started({"env": "odd_environments:Other", "kwargs": {"space": kind}})
    steps = [vector.step(np.array([0])) for _ in range(3)]
    assert vector.spaces.observation_dtype == stored
    assert steps[0].next_obs[0].tolist() == first
    assert [("cast" in sentence) for _, sentence in vector.take_notes()] == [True] * note
    assert vector.take_notes() == []


def test_observations_out_of_bounds_are_counted_and_noted_once():
    vector = started({"env": "odd_environments:Other", "kwargs": {"space": "out of bounds"}})
    for _ in range(64):
        assert vector.step(np.array([0])).ok.all()
    assert vector.out_of_bounds == 4
    assert len([sentence for _, sentence in vector.take_notes() if "bounds" in sentence]) == 1


def test_an_episode_without_end_is_noted_once(monkeypatch):
    monkeypatch.setattr("mlxe_async.tasks.vector.ENDLESS", 50)
    vector = started({})
    for _ in range(200):
        vector.step(np.array([0]))
    assert ["has not ended" in sentence for _, sentence in vector.take_notes()] == [True]


def test_wrappers_apply_in_the_order_given():
    wrappers = ["odd_environments:Double", "odd_environments:Negative"]
    assert started({"wrappers": wrappers}).step(np.array([0])).reward[0] == -3
    assert started({"wrappers": wrappers[::-1]}).step(np.array([0])).reward[0] == -4


def test_rewards_to_learn_from_and_raw_rewards_are_the_same_without_shaping():
    step = started({"wrappers": ["odd_environments:Double"]}).step(np.array([0]))
    assert (step.reward[0], step.raw_reward[0]) == (2, 2)


def test_closing_twice_is_harmless():
    vector = started({}, 2)
    vector.close()
    vector.close()


@pytest.mark.parametrize("task", [{}, {"env": "CartPole-v1", "envv": 1}])
def test_a_table_with_missing_or_unknown_keys_is_refused(task):
    with pytest.raises(TaskError, match=r"env is missing|unknown keys envv"):
        VectorTask(task, 1)


def test_rewards_are_cut_for_learning_and_whole_in_tests():
    push = np.zeros((1, 1), np.float32)
    for evaluation in (False, True):
        vector = VectorTask({"env": "Pendulum-v1", "clip_rewards": True}, 1, evaluation=evaluation)
        vector.reset(0, seed=0)
        steps = [vector.step(push) for _ in range(20)]
        raw = np.concatenate([step.raw_reward for step in steps])
        assert raw.min() < -1 < raw.max()
        seen = np.concatenate([step.reward for step in steps])
        np.testing.assert_allclose(seen, raw if evaluation else np.clip(raw, -1, 1), rtol=1e-6)
        vector.close()


@pytest.mark.parametrize(("limit", "most"), [(None, 500), (30, 30)])
def test_a_wrapper_may_ask_for_the_limit_of_episodes(limit, most):
    task = {"env": "CartPole-v1", "max_episode_steps": limit, "wrappers": ["gymnasium.wrappers:TimeAwareObservation"]}
    vector = VectorTask(task, 1, max_episode_steps=7)
    vector.reset(0, seed=0)
    assert vector.step(np.array([0])).next_obs[0, 4] == 1
    assert vector.spaces.observation_shape == (5,)
    layer = vector._envs[0]
    assert layer.max_timesteps == most


def test_an_environment_without_spaces_is_refused_by_what_it_lacks():
    with pytest.raises(TaskError, match="asking for its observation_space raised AttributeError"):
        VectorTask({"env": "gymnasium:Env"}, 1)
