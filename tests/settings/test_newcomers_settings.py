"""Values that newcomers write are taken, or answered with what to write instead."""

import numpy as np
import pytest

from mlxe_async.errors import SettingsError
from mlxe_async.settings import algorithm_problems, load_settings


def test_numbers_of_numpy_are_numbers():
    tree = {"task": {"env": "CartPole-v1", "kwargs": {"gain": np.float32(0.5), "sizes": [np.int64(3)]}}}
    settings = load_settings(tree, {"stop.env_steps": np.int64(500), "algorithm.common": [np.int32(8)]})
    assert settings.stop.env_steps == 500
    assert settings.task.kwargs == {"gain": 0.5, "sizes": [3]}
    assert type(settings.task.kwargs["gain"]) is float
    assert settings.algorithm.table["common"] == [8]


def test_a_window_while_training_is_refused():
    with pytest.raises(SettingsError, match="watch it by play --render"):
        load_settings({"task": {"env": "CartPole-v1", "kwargs": {"render_mode": "human"}}})


@pytest.mark.parametrize("name", ["MlpPolicy", "CnnPolicy"])
def test_the_name_of_a_policy_elsewhere_is_answered(name):
    from mlxe_async.algorithms import load_algorithm

    (problem,) = algorithm_problems(load_algorithm("ppo").Settings, {"policy": name})
    assert "the network follows from the observations: leave it out" in problem.message


@pytest.mark.parametrize(("written", "name"), [("PPO", "ppo"), ("Q-Learning", "q_learning"), ("DQN", "dqn")])
def test_an_algorithms_name_may_be_written_as_papers_do(written, name):
    tree = {"task": {"env": "CartPole-v1"}, "algorithm": {"name": written}}
    assert load_settings(tree).algorithm.name == name


@pytest.mark.parametrize(
    "others",
    [
        {"run": {"total_timesteps": 5}},
        {"evaluation": {"interval_steps": 100}},  # without effect, since no version is tested
        {"schedule": {"executors": 0}},
    ],
)
def test_wrong_keys_of_an_algorithm_are_told_beside_those_of_other_tables(others):
    tree = {"task": {"env": "CartPole-v1"}, "algorithm": {"name": "PPO", "n_steps": 8, "clip": "x"}, **others}
    with pytest.raises(SettingsError) as refused:
        load_settings(tree)
    told = "\n".join(refused.value.problems)
    assert len(refused.value.problems) == 3
    assert "algorithm.n_steps: got 8, expected schedule.rollout_steps" in told
    assert 'algorithm.clip: got "x", expected a number' in told


def test_a_tree_of_a_program_has_no_lines():
    with pytest.raises(SettingsError, match=r"^settings: run.total_timesteps: got 5, expected stop.env_steps"):
        load_settings({"task": {"env": "CartPole-v1"}, "run": {"total_timesteps": 5}})


def test_a_key_that_is_missing_under_its_name_here_alone_is_told_once():
    with pytest.raises(SettingsError) as refused:
        load_settings({"task": {"env_id": "CartPole-v1"}})
    [line] = refused.value.problems
    assert "task.env_id: got " in line


@pytest.mark.parametrize("others", [{}, {"schedule": {"num_workers": 2}}])
def test_keys_of_an_algorithm_that_there_is_not_are_told_too(others):
    table = {"name": "APPO", "use_rnn": True, "gamma": 0.9, "clip": 0.1, "never_heard_of": 1}
    with pytest.raises(SettingsError) as refused:
        load_settings({"task": {"env": "CartPole-v1"}, "algorithm": table, **others})
    told = "\n".join(refused.value.problems)
    assert len(refused.value.problems) == 4 + len(others)
    assert 'algorithm.name: got "APPO", expected one of ' in told
    assert 'did you mean "ppo", with schedule.kind = "oa"?' in told
    assert 'algorithm.use_rnn: got true, expected algorithm.cell = "lstm", as it is called here' in told
    assert "algorithm.gamma: got 0.9, expected algorithm.discount, as it is called here" in told
    assert "algorithm.never_heard_of: got 1, expected a key of an algorithm" in told
