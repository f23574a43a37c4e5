"""Pools of EnvPool's kind, with toys in them: no row is made of a reset, and the world's end is told from a limit."""

import numpy as np
import pytest
from toy_pools import Toys

from mlxe_async.errors import TaskError
from mlxe_async.tasks import pools
from mlxe_async.tasks.pooled import PooledTask
from mlxe_async.tasks.probe import probe
from mlxe_async.tasks.training import training_task
from mlxe_async.tasks.vector import VectorTask

TOY = {"env": "Toy-v0", "vectorize": "envpool"}


@pytest.fixture
def toys(monkeypatch):
    """The package in place of EnvPool."""
    stand_in = Toys()
    monkeypatch.setattr(pools, "package", lambda: stand_in)
    pools._looked_up.cache_clear()
    yield stand_in
    pools._looked_up.cache_clear()


def played(steps=40, count=3, seed=1, **table):
    """The rows (env, episode, step reached, terminated, truncated) of some steps."""
    task = training_task({**TOY, **table}, count)
    assert isinstance(task, PooledTask)
    obs, rows = task.begin(seed), []
    for _ in range(steps):
        step = task.step(np.zeros(count, np.int64))
        assert not step.faults
        for i in np.flatnonzero(step.ok):
            # From the observation before to the one after, within one episode.
            assert step.next_obs[i].tolist() == [obs[i, 0], obs[i, 1] + 1, obs[i, 2]]
            assert step.raw_reward[i] == 1.0
            rows.append((int(i), *map(int, step.next_obs[i, :2]), bool(step.terminated[i]), bool(step.truncated[i])))
        assert (step.start[step.began, 1] == 0).all()
        assert (step.start[~step.began] == step.next_obs[~step.began]).all()
        obs = step.start
    task.close()
    return rows


def episodes(rows, env):
    """Length, terminated and truncated of each whole episode of an environment."""
    mine = [row[1:] for row in rows if row[0] == env]
    assert [row[1] for row in mine] == [n for n, _ in _counted(mine)]
    return [(step, over, stopped) for _, step, over, stopped in mine if over or stopped]


def _counted(mine):
    number = 0
    for row in mine:
        number += 1
        yield number, row
        if row[2] or row[3]:
            number = 0


def test_rows_are_the_steps_of_episodes_and_nothing_else(toys):
    rows = played()
    for env in range(3):
        length = 2 + env
        assert set(episodes(rows, env)) == {(length, True, False)}
        # One step in each episode only resets.
        assert len([row for row in rows if row[0] == env]) == 40 - 40 // (length + 1)


def test_an_episode_that_ends_by_itself_in_the_step_of_the_limit_is_terminated(toys):
    rows = played(max_episode_steps=3)
    assert set(episodes(rows, 0)) == {(2, True, False)}
    assert set(episodes(rows, 1)) == {(3, True, False)}
    assert set(episodes(rows, 2)) == {(3, False, True)}


def test_a_stopped_episode_is_begun_again_at_once(toys):
    rows = played(max_episode_steps=3)
    assert len([row for row in rows if row[0] == 2]) == 40
    assert toys.made[-1][0]["max_episode_steps"] == 4


def test_the_limit_of_the_pool_holds_where_none_is_written(toys):
    rows = played(steps=450, kwargs={"stretch": 60})
    assert set(episodes(rows, 0)) == {(100, False, True)}
    assert PooledTask(TOY, 2)._spec.max_episode_steps == 100


def test_where_rewards_may_depend_on_the_limit_the_pool_is_told_it_and_judges(toys):
    rows = played(env="TimedToy-v0", max_episode_steps=3)
    assert toys.made[-1][0]["max_episode_steps"] == 3
    assert set(episodes(rows, 0)) == {(2, True, False)}
    assert set(episodes(rows, 1)) == {(3, False, True)}
    # Here the pool resets by itself, a step later.
    assert len([row for row in rows if row[0] == 2]) == 30


def test_seeds_follow_from_one_and_differ_between_environments(toys):
    def seeds(seed):
        task = PooledTask(TOY, 3)
        task.begin(seed)
        return toys.made[-1][0]["env_seed"]

    assert seeds(2**32 - 1) == seeds(2**32 - 1) != seeds(6)
    assert len(set(seeds(5))) == 3
    assert all(0 <= one < 2**31 for one in seeds(5))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise", "raised OSError: lost"),
        ("nan", "observation of environment 1: expected finite"),
        ("reward", "reward: expected 3"),
        ("elapsed", "elapsed_step: expected 0 exactly where an episode ended before"),
    ],
)
def test_a_fault_of_one_is_a_fault_of_all_and_the_pool_is_made_anew(toys, fault, said):
    task = PooledTask({**TOY, "kwargs": {"fault": fault}}, 3)
    task.begin(seed=1)
    assert task.step(np.zeros(3, np.int64)).ok.all()
    step = task.step(np.zeros(3, np.int64))
    assert not step.ok.any()
    assert said in step.faults[0].detail
    task.rebuild()
    assert toys.made[-1][1].closed == 1
    task.begin(seed=2)
    assert task.step(np.zeros(3, np.int64)).ok.all()


@pytest.mark.parametrize(
    ("threads", "kwargs", "expected"), [(1, {}, 1), (16, {}, 3), (2, {}, 2), (1, {"num_threads": 4}, 4)]
)
def test_threads_are_as_many_as_are_told_and_never_more_than_environments(toys, threads, kwargs, expected):
    training_task({**TOY, "kwargs": kwargs}, 3, threads=threads).begin(0)
    assert toys.made[-1][0]["num_threads"] == expected


def test_single_environments_are_stepped_by_a_pool_of_one_that_repeats_itself_by_its_seed(toys):
    task = VectorTask(TOY, 2)
    first = [task.reset(0, 7), task.reset(1, 8)]
    assert [obs[:2].tolist() for obs in first] == [[0, 0], [0, 0]]
    assert first[0][2] != first[1][2]
    ends = []
    for _ in range(3):
        step = task.step(np.zeros(2, np.int64))
        for i in step.ended:
            ends.append((i, step.next_obs[i, :2].tolist(), bool(step.terminated[i])))
            task.reset(i, 7)
    assert ends == [(0, [0, 2], True), (1, [0, 2], True)]
    assert np.array_equal(task.reset(1, 7), first[0])
    assert task.spec.reward_threshold == 7.5
    task.close()


def test_tests_may_play_longer_than_the_limit_of_training(toys):
    task = VectorTask({**TOY, "kwargs": {"stretch": 200}}, 1, evaluation=True, max_episode_steps=300)
    task.reset(0, 1)
    steps = [task.step(np.zeros(1, np.int64)) for _ in range(300)]
    assert [bool(step.truncated[0]) for step in steps] == [False] * 299 + [True]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"env": "Toi-v0"}, r'EnvPool has no environment "Toi-v0"; did you mean .*Toy-v0'),
        ({"env": "ALE/Pung-v5"}, r'EnvPool has no environment "ALE/Pung-v5"; did you mean ALE/Pong-v5'),
        ({"env": "my_task:Toy-v0"}, "task.vectorize: .* not those of a module"),
        ({"env": "Two-v0"}, "a game of several players"),
        ({"kwargs": {"stetch": 2}}, r"task\.kwargs\.stetch: .* no such argument; did you mean stretch"),
        ({"kwargs": {"gravity": 2}}, r"task\.kwargs\.gravity: .* it has .*stretch"),
        ({"kwargs": {"stretch": "x"}}, r"task\.kwargs\.stretch: expected a whole number, got"),
        ({"kwargs": {"stretch": True}}, r"task\.kwargs\.stretch: expected a whole number, got"),
        ({"kwargs": {"seed": 2}}, r"task\.kwargs\.seed: is said by run\.seed"),
        ({"kwargs": {"max_episode_steps": 2}}, r"task\.kwargs\.max_episode_steps: is said by task\.max_episode_steps"),
        ({"kwargs": {"vzd_path": "/bin/sh"}}, r"task\.kwargs\.vzd_path: names a program"),
        ({"wrappers": ["a:B"]}, r"task\.wrappers: is for environments that are stepped one by one"),
        ({"history": 2}, r"task\.history: is for environments that are stepped one by one"),
        ({"adverse_starts": True}, r"task\.adverse_starts: is for environments that are stepped one by one"),
        ({"hide": [3]}, r"task\.hide: expected some of 0 to 2"),
        ({"env": "ALE/Pong-v5", "atari": {"fire": True}}, r"task\.atari\.fire: EnvPool cannot do that"),
        ({"env": "ALE/Pong-v5", "atari": {"noop_max": 0}}, r"task\.atari\.noop_max: .*expected at least 1"),
        ({"env": "ALE/Pong-v5", "atari": {"preprocess": False}}, r"task\.atari\.preprocess: EnvPool shows small"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_key(toys, table, words):
    with pytest.raises(TaskError, match=words):
        probe({**TOY, **table})


def test_entries_are_hidden_from_batches_as_from_single_observations(toys):
    task, single = PooledTask({**TOY, "hide": [0]}, 2), VectorTask({**TOY, "hide": [0]}, 1)
    assert task.begin(3).shape == (2, 2)
    assert task.spaces == single.spaces
    assert task.step(np.zeros(2, np.int64)).next_obs[:, 0].tolist() == [1, 1]


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(pools, "PACKAGE", "no_such_pool")
    with pytest.raises(TaskError, match=r'task\.vectorize: .*pip install "mlxe_async\[envpool\]"'):
        probe(TOY)
