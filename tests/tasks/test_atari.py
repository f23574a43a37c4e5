"""Atari games: one preprocessing in two forms, and a clear word where the package is missing."""

import importlib

import numpy as np
import pytest

from mlxe_async.algorithms import load_algorithm
from mlxe_async.errors import TaskError
from mlxe_async.roles.evaluator import Evaluator
from mlxe_async.rows import Spaces
from mlxe_async.tasks import atari
from mlxe_async.tasks.native import NativeTask, training_task
from mlxe_async.tasks.probe import probe
from mlxe_async.tasks.vector import VectorTask

PONG = {"env": "ALE/Pong-v5", "atari": {"noop_max": 0}}
GAMES = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in atari.NEEDED), reason="needs the extra atari"
)


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(atari, "NEEDED", ("no_such_emulator",))
    monkeypatch.setattr("gymnasium.registry", {})
    with pytest.raises(TaskError, match=r'pip install "mlxe_async\[atari\]"'):
        probe(PONG)


@GAMES
def test_the_vector_of_games_and_the_single_game_show_the_same_pictures():
    native, single = training_task({**PONG, "vectorize": "native"}, 2), VectorTask(PONG, 1)
    try:
        assert isinstance(native, NativeTask)
        assert native.spaces == single.spaces
        assert native.spaces.observation_shape == (4, 84, 84)
        assert native.spaces.observation_dtype == "|u1"
        pairs = [(native.begin(3)[0], single.reset(0, 3))]
        for action in [0, 2, 2, 3, 3, 5] * 5:
            of_two, of_one = native.step(np.array([action, 0])), single.step(np.array([action]))
            assert not of_two.faults
            pairs.append((of_two.next_obs[0], of_one.next_obs[0]))
            assert of_two.raw_reward[0] == of_one.raw_reward[0]
        assert pairs[-1][0].any()
        # Both shrink pictures by areas, and may round a pixel differently.
        assert all(np.abs(a.astype(int) - b).mean() < 1 for a, b in pairs)
        # A row and its successor share three of their four pictures.
        np.testing.assert_array_equal(pairs[-1][0][:3], pairs[-2][0][1:])
    finally:
        native.close()
        single.close()


@GAMES
def test_vectors_begin_with_any_seed_and_end_where_they_are_told():
    task = {**PONG, "vectorize": "native", "max_episode_steps": 3}
    native = training_task(task, 1)
    try:
        native.begin(2**32 - 1)
        over = [bool(native.step(np.zeros(1, np.int64)).truncated[0]) for _ in range(3)]
        assert over == [False, False, True]
    finally:
        native.close()


@GAMES
def test_a_version_is_tested_by_whole_rewards_and_whole_episodes():
    algorithm = load_algorithm("ppo")
    fields = {"body": "nature", "normalise": False, "common": (16,), "policy": (), "value": ()}
    policy = algorithm(algorithm.Settings(**fields), Spaces((4, 84, 84), "|u1", 6), seed=0, learns=False)
    rules = {"rule": "mean_return", "episodes": 1, "max_episode_steps": 80, "screen_steps": 80, "threshold": -5.0}
    evaluator = Evaluator(policy, {**PONG, "clip_rewards": True}, rules)
    try:
        evaluator.add(1, policy.shape.initial([0]))
        (verdict,) = evaluator.advance()
    finally:
        evaluator.close()
    assert not verdict.fault
    assert verdict.steps == 80
    assert verdict.passed
