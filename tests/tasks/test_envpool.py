"""EnvPool itself: its steps are those of gymnasium, ends are told from limits, and one seed gives the same twice."""

import importlib.util
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from mlxe_async.errors import TaskError
from mlxe_async.rows import MASK
from mlxe_async.tasks import atari
from mlxe_async.tasks.pooled import PooledTask
from mlxe_async.tasks.probe import probe
from mlxe_async.tasks.sources import PoolEnv
from mlxe_async.tasks.training import training_task
from mlxe_async.tasks.vector import VectorTask

pytestmark = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="needs the extra envpool")
GAMES = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in atari.NEEDED), reason="needs the extra atari"
)
POOL = {"vectorize": "envpool"}
CARTPOLE = {"env": "CartPole-v1", **POOL}


def drawn(spaces, rng, count):
    if spaces.actions is not None:
        return rng.integers(0, spaces.actions, count)
    return rng.uniform(-1, 1, (count, *spaces.action_shape)).astype(np.float32)


def played(table, count=4, steps=60, seed=3, threads=1):
    """All that a vector shows in some steps with random actions."""
    task = training_task({**POOL, **table}, count, threads=threads)
    rng, told = np.random.default_rng(0), [task.begin(seed)]
    for _ in range(steps):
        step = task.step(drawn(task.spaces, rng, count))
        assert not step.faults
        told += [step.next_obs, step.start, step.raw_reward, step.terminated, step.truncated, step.ok, step.began]
    task.close()
    return told


def test_a_pool_of_cartpoles_makes_the_steps_of_gymnasiums():
    task, single = PooledTask(CARTPOLE, 4), gymnasium.make("CartPole-v1").unwrapped
    obs, rng, ended = task.begin(seed=3), np.random.default_rng(0), 0
    single.reset()
    for _ in range(100):
        actions = rng.integers(0, 2, 4)
        step = task.step(actions)
        for i in np.flatnonzero(step.ok):
            single.state, single.steps_beyond_terminated = obs[i].astype(np.float64), None
            next_obs, reward, terminated, _, _ = single.step(int(actions[i]))
            assert np.allclose(step.next_obs[i], next_obs, atol=1e-5)
            assert (step.reward[i], step.terminated[i], step.truncated[i]) == (reward, terminated, False)
        ended += int((step.terminated & step.ok).sum())
        obs = step.start
    assert ended > 4
    task.close()


def falls(limit):
    """Steps, terminated and truncated of the first episodes of poles that are always pushed one way."""
    task = PooledTask({**CARTPOLE, "max_episode_steps": limit}, 8)
    task.begin(3)
    first = {}
    for number in range(1, 16):
        step = task.step(np.ones(8, np.int64))
        for i in np.flatnonzero((step.terminated | step.truncated) & step.ok):
            first.setdefault(int(i), (number, bool(step.terminated[i]), bool(step.truncated[i])))
    task.close()
    return first


def test_a_pole_that_falls_in_the_step_of_the_limit_has_fallen():
    whole, cut = falls(500), falls(9)
    lengths = {length for length, *_ in whole.values()}
    assert {8, 9, 10} <= lengths
    for env, (length, terminated, truncated) in whole.items():
        assert (terminated, truncated) == (True, False)
        assert cut[env] == ((length, True, False) if length <= 9 else (9, False, True))


def test_pendulums_are_stopped_at_their_limit_and_show_where_they_were():
    task = PooledTask({"env": "Pendulum-v1", **POOL, "max_episode_steps": 20}, 3)
    single = gymnasium.make("Pendulum-v1").unwrapped
    single.reset()
    obs, compared = task.begin(1), 0
    for number in range(1, 61):
        step = task.step(np.ones((3, 1), np.float32))
        assert step.ok.all()
        assert (step.truncated == (number % 20 == 0)).all()
        assert not step.terminated.any()
        for i in range(3):
            single.state = np.array([np.arctan2(obs[i, 1], obs[i, 0]), obs[i, 2]])
            expected, reward, *_ = single.step(np.ones(1, np.float32))
            if abs(expected[2]) < 8:  # at its largest speed EnvPool's moves by the speed before the cut
                assert np.allclose(step.next_obs[i], expected, atol=1e-4)
                compared += 1
            assert step.raw_reward[i] == pytest.approx(reward, abs=1e-4)
        obs = step.start
    assert compared > 100
    task.close()


@pytest.mark.parametrize(
    "env",
    [
        "CartPole-v1",
        "Pendulum-v1",
        "HalfCheetah-v5",
        "FrozenLake-v1",
        pytest.param("CheetahRun-v1", marks=pytest.mark.long),
    ],
)
def test_one_seed_gives_the_same_steps_twice_on_any_number_of_threads(env):
    table = {"env": env, "max_episode_steps": 20}
    first, again, other = played(table), played(table, threads=2), played(table, seed=4)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    starts = first[0]
    assert env == "FrozenLake-v1" or len(np.unique(starts, axis=0)) == 4


@pytest.mark.parametrize(
    ("env", "words", "limit"),
    [
        ("HalfCheetah-v5", "17 floats", 1000),
        ("FrozenLake-v1", "16 floats", 100),
        ("Blackjack-v1", "3 floats", None),
        ("CheetahRun-v1", "position 8 floats, velocity 9 floats", 1000),
        ("MiniGrid-Empty-5x5-v0", "direction 4 floats, image 7 x 7 x 3 bytes, mission 96 bytes", 100),
    ],
)
def test_spaces_of_all_kinds_are_stored_as_those_of_single_environments(env, words, limit):
    table = {"env": env, **POOL}
    assert probe(table)["max_episode_steps"] == limit
    task, single = PooledTask(table, 2), VectorTask(table, 1)
    assert task.spaces == single.spaces
    assert task.spaces.observation_words == words
    task.close()
    single.close()


def test_parts_are_chosen_and_masks_are_heard():
    parts = played({"env": "CheetahRun-v1", "observe": ["velocity"]}, steps=2)
    assert parts[0].shape == (4, 9)
    task = PooledTask({"env": "Jumanji/Snake-v1", **POOL, "observe": ["grid"], "action_mask": True}, 3)
    obs = task.begin(1)
    assert [part.name for part in task.spaces.parts] == ["grid", MASK]
    for _ in range(30):
        allowed = np.array([task.spaces.mask(one) for one in obs])
        assert allowed.any(1).all()
        step = task.step(allowed.argmax(1))
        assert not step.faults
        obs = step.start
    task.close()


def test_several_choices_at_once_are_whole_numbers_of_the_pool():
    task = PooledTask({"env": "Cleaner-v0", **POOL}, 2)
    assert task.spaces.action_sizes == (4, 4, 4)
    task.begin(0)
    assert not task.step(np.array([[0, 1, 2], [3, 3, 3]])).faults
    task.close()


def test_gymnasiums_environment_stands_for_it_in_tests_where_it_is_the_same():
    same = VectorTask(CARTPOLE, 1)
    assert type(same._envs[0].unwrapped).__name__ == "CartPoleEnv"
    assert same.simulator is not None
    other = VectorTask({"env": "Blackjack-v1", **POOL}, 1)
    assert type(other._envs[0]) is PoolEnv
    (note,) = [note for note in probe({"env": "Blackjack-v1", **POOL})["notes"] if "tests, play and eval" in note]
    assert "gymnasium's own shows Tuple(" in note
    assert not probe({**CARTPOLE, "kwargs": {"num_threads": 2}})["notes"]


def test_features_and_shaped_rewards_go_with_a_pool():
    task = PooledTask({**CARTPOLE, "squared_position": True, "shaped_reward": True}, 3)
    obs = task.begin(0)
    assert np.array_equal(obs[:, 4], obs[:, 0] ** 2)
    step = task.step(np.array([0, 1, 1]))
    assert not np.array_equal(step.reward, step.raw_reward)
    task.close()


def test_single_games_repeat_themselves_by_their_seed():
    task = VectorTask({"env": "CheetahRun-v1", **POOL}, 1, evaluation=True)

    def lived(seed):
        obs = [task.reset(0, seed)]
        obs += [task.step(np.full((1, 6), 0.5, np.float32)).next_obs[0] for _ in range(5)]
        return np.array(obs)

    first = lived(5)
    assert np.array_equal(first, lived(5))
    assert not np.array_equal(first, lived(6))
    task.close()


def test_a_pool_that_is_made_anew_leaves_no_thread_of_the_last_one():
    def threads():
        return len(list(Path("/proc/self/task").iterdir()))

    task, counted = PooledTask(CARTPOLE, 4, threads=2), [threads()]
    for seed in range(5):
        task.begin(seed)
        counted.append(threads())
    task.close()
    assert counted[0] + 2 <= counted[1] == counted[-1]
    assert threads() == counted[0]


def test_values_that_the_package_refuses_are_a_sentence():
    with pytest.raises(TaskError, match=r"task\.kwargs\.ctrl_cost_weight: expected a number, got"):
        probe({"env": "HalfCheetah-v5", **POOL, "kwargs": {"ctrl_cost_weight": "x"}})
    with pytest.raises(TaskError, match=r'EnvPool has no environment "HalfCheeta-v5"; did you mean HalfCheetah-v5'):
        probe({"env": "HalfCheeta-v5", **POOL})


@GAMES
@pytest.mark.long
def test_games_show_the_pictures_of_single_games():
    """The starts differ by pictures of doing nothing, of which there is one here."""
    table = {"env": "ALE/Pong-v5", "atari": {"noop_max": 1, "actions": ["NOOP", "RIGHT", "LEFT"]}}
    task, single = PooledTask({**table, **POOL, "max_episode_steps": 12}, 1), VectorTask(table, 1)
    assert task.spaces == single.spaces
    assert task.spaces.frames == 4
    assert np.array_equal(task.begin(3)[0], single.reset(0, 3))
    for number, action in enumerate([0, 1, 1, 2, 2, 0] * 2, 1):
        mine, theirs = task.step(np.array([action])), single.step(np.array([action]))
        assert np.array_equal(mine.next_obs, theirs.next_obs)
        assert mine.truncated[0] == (number == 12)
    assert mine.start[0, :3].max() == 0 < mine.start[0, 3].max()
    task.close()
    single.close()
