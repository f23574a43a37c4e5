"""Atari games: one preprocessing in two forms, and a clear word where the package is missing."""

import importlib
import re

import gymnasium
import numpy as np
import pytest

from mlxe_async.algorithms import load_algorithm
from mlxe_async.errors import TaskError
from mlxe_async.roles.evaluator import Evaluator
from mlxe_async.rows import Spaces
from mlxe_async.settings.task import Atari
from mlxe_async.tasks import atari
from mlxe_async.tasks.native import NativeTask
from mlxe_async.tasks.probe import probe
from mlxe_async.tasks.training import training_task
from mlxe_async.tasks.vector import VectorTask

PONG = {"env": "ALE/Pong-v5", "atari": {"noop_max": 0}}
BREAKOUT = "ALE/Breakout-v5"
GAMES = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in atari.NEEDED), reason="needs the extra atari"
)


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(atari, "NEEDED", ("no_such_emulator",))
    monkeypatch.setattr("gymnasium.registry", {})
    with pytest.raises(TaskError, match=r'pip install "mlxe_async\[atari\]"'):
        probe(PONG)


@pytest.mark.long
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
        evaluator.add(1, policy.weights())
        (verdict,) = evaluator.advance()
    finally:
        evaluator.close()
    assert not verdict.fault
    assert verdict.steps == 80
    assert verdict.passed


def breakout(evaluation=False, **atari_keys):
    return VectorTask({"env": BREAKOUT, "atari": {"noop_max": 0, **atari_keys}}, 1, evaluation=evaluation)


def stepped(task, action, steps):
    return [task.step(np.array([action])) for _ in range(steps)]


@GAMES
def test_pictures_are_bit_for_bit_those_of_gymnasiums_own_preprocessing():
    from gymnasium.wrappers import AtariPreprocessing

    plain = AtariPreprocessing(gymnasium.make(BREAKOUT, frameskip=1, repeat_action_probability=0.0), noop_max=30)
    ours = breakout(noop_max=30)
    try:
        pairs = [(plain.reset(seed=7)[0], ours.reset(0, 7)[-1])]
        for action in [1, 1, 2, 2, 3, 0] * 3:
            picture, reward, terminated, *_ = plain.step(action)
            step = ours.step(np.array([action]))
            assert (step.raw_reward[0], step.terminated[0]) == (reward, terminated)
            pairs.append((picture, step.next_obs[0, -1]))
        assert all(np.array_equal(*pair) for pair in pairs)
    finally:
        plain.close()
        ours.close()


@GAMES
def test_fire_begins_a_game_that_waits_for_it_and_is_pressed_again_after_each_lost_life():
    # Without FIRE among the actions the ball would never fly, and the game would never end.
    playing_game = []
    waiting, playing = (
        VectorTask(
            {"env": BREAKOUT, "atari": {"noop_max": 0, "fire": fire, "actions": ["NOOP", "RIGHT"]}},
            1,
            wrap=lambda env: playing_game.insert(0, env.unwrapped.ale) or env,
        )
        for fire in (False, True)
    )
    try:
        waiting.reset(0, 0)
        pictures = [step.next_obs[0, -1] for step in stepped(waiting, 0, 12)]
        assert all(np.array_equal(pictures[0], picture) for picture in pictures)
        playing.reset(0, 0)
        lives, steps = playing_game[0].lives, []
        while lives() > 3:  # a ball flew, was lost, and flew again
            steps += stepped(playing, 0, 1)
        assert 2 * 10 < len(steps) < 200
    finally:
        waiting.close()
        playing.close()


@GAMES
def test_a_lost_life_ends_an_episode_in_training_and_the_next_one_goes_on_with_the_game():
    games = []
    settings = {"env": BREAKOUT, "atari": {"noop_max": 0, "fire": True, "life_loss_ends": True}}
    training, test = (
        VectorTask(settings, 1, evaluation=evaluation, wrap=lambda env: games.append(env.unwrapped.ale) or env)
        for evaluation in (False, True)
    )
    try:
        for lives in (4, 3):
            training.reset(0, 0)
            while not training.step(np.array([2])).terminated[0]:
                assert games[0].lives() == lives + 1
            assert games[0].lives() == lives
        test.reset(0, 0)
        while games[1].lives() == 5:
            step = test.step(np.array([2]))
        assert not step.ended
        test.reset(0, 0)
        assert games[1].lives() == 5  # a test that is begun again is a new game
    finally:
        training.close()
        test.close()


@pytest.mark.long
@GAMES
def test_actions_are_those_that_are_named_in_their_order():
    all_of_them, two = breakout(fire=True), breakout(fire=True, actions=["LEFT", "RIGHT"])
    native = training_task(
        {"env": BREAKOUT, "vectorize": "native", "atari": {"noop_max": 0, "actions": ["LEFT", "FIRE"]}}, 1
    )
    try:
        assert (all_of_them.spaces.actions, two.spaces.actions, native.spaces.actions) == (4, 2, 2)
        all_of_them.reset(0, 0)
        two.reset(0, 0)
        for place, among_all in ((0, 3), (1, 2)):  # the game's are NOOP, FIRE, RIGHT, LEFT
            ours, theirs = stepped(two, place, 6)[-1], stepped(all_of_them, among_all, 6)[-1]
            assert np.array_equal(ours.next_obs, theirs.next_obs)
        other = breakout()
        other.reset(0, 0)
        native.begin(0)
        native_picture = stepped(native, 0, 8)[-1].next_obs[0, -1]
        assert np.abs(native_picture.astype(int) - stepped(other, 3, 8)[-1].next_obs[0, -1]).mean() < 0.1
        assert np.abs(native_picture.astype(int) - stepped(other, 2, 8)[-1].next_obs[0, -1]).mean() > 0.1
        other.close()
    finally:
        for task in (all_of_them, two, native):
            task.close()


@GAMES
@pytest.mark.parametrize(
    ("env", "keys", "said"),
    [
        (
            BREAKOUT,
            {"actions": ["NOOP", "RIHGT"]},
            'task.atari.actions: got "RIHGT", expected some of "NOOP", "FIRE", "RIGHT", "LEFT", which ALE/Breakout-v5 '
            'has; did you mean "RIGHT"?',
        ),
        (BREAKOUT, {"actions": ["left"]}, 'did you mean "LEFT"?'),
        ("ALE/Freeway-v5", {"fire": True}, "task.atari.fire: ALE/Freeway-v5 has no action FIRE"),
        (BREAKOUT, {"crop": [200, 10, 0, 0]}, "task.atari.crop: got [200, 10, 0, 0], expected to leave something"),
    ],
)
def test_what_a_game_does_not_have_is_refused_with_a_hint(env, keys, said):
    with pytest.raises(TaskError, match=re.escape(said)):
        probe({"env": env, "atari": keys})


@GAMES
@pytest.mark.parametrize(
    "key",
    [{"fire": True}, {"crop": [1, 0, 0, 0]}, {"colour": True}, {"life_loss_ends": True}],
    ids=lambda k: next(iter(k)),
)
def test_what_a_vector_of_games_cannot_do_is_refused(key):
    task = {"env": BREAKOUT, "atari": key}
    with pytest.raises(TaskError, match=f"task.atari.{next(iter(key))} is for games that are stepped one by one"):
        training_task({**task, "vectorize": "native"}, 1)
    single = training_task({**task, "vectorize": "auto"}, 1)
    assert isinstance(single, VectorTask)
    single.close()


@pytest.mark.long
@GAMES
def test_pictures_have_the_size_the_part_and_the_colours_that_are_asked_for():
    tall, cut, coloured = breakout(height=100, width=60), breakout(crop=[32, 14, 8, 8]), breakout(colour=True, stack=2)
    whole = breakout()
    try:
        assert tall.reset(0, 0).shape == (4, 100, 60)
        full, part, coloured_picture = (task.reset(0, 0) for task in (whole, cut, coloured))
        assert part.shape == full.shape
        assert full[-1, :10].any()  # the score stands at the top, and
        assert full[-1, 20:60, :3].all()  # the walls at the sides,
        assert not part[-1, -1].any()  # which are cut off: below the bricks all is black.
        assert coloured_picture.shape == (6, 84, 84)
        assert not np.array_equal(coloured_picture[3], coloured_picture[4])
        assert not coloured_picture[:3].any()  # the older picture of two is not there yet
        assert coloured.spaces.frames == 0
        step = coloured.step(np.array([0]))
        assert np.array_equal(step.next_obs[0, :3], coloured_picture[3:])
    finally:
        for task in (tall, cut, coloured, whole):
            task.close()


@GAMES
def test_doing_nothing_at_the_start_makes_games_differ_by_their_seeds():
    for most in (0, 30):
        task = breakout(noop_max=most, fire=True)
        pictures = {task.reset(0, seed).tobytes() for seed in range(3)}
        task.close()
        assert (len(pictures) > 1) == (most > 0)


@GAMES
@pytest.mark.parametrize(
    ("env", "sticky"),
    [
        ("ALE/Seaquest-v5", 0.0),  # a reset Seaquest keeps a byte of the game before
        pytest.param(BREAKOUT, 0.25, marks=pytest.mark.long),
        pytest.param("ALE/Seaquest-v5", 0.25, marks=pytest.mark.slow),
        pytest.param(BREAKOUT, 0.0, marks=pytest.mark.slow),
    ],
)
def test_a_game_after_others_is_bit_for_bit_that_of_a_newly_loaded_cartridge(env, sticky):
    settings = Atari(sticky=sticky, fire=env == BREAKOUT)
    atari.provide(env)
    worn, new = (atari.Screen(gymnasium.make(env, **atari.single_kwargs(settings, {})), settings, life_loss_ends=False)
                 for _ in range(2))  # fmt: skip
    rng = np.random.default_rng(0)
    for seed in range(4):
        worn.reset(seed=seed)
        for action in rng.integers(0, worn.action_space.n, 40):
            worn.step(action)
    memories = []
    for game in (worn, new):
        pictures, memory, steps = [game.reset(seed=9)[0]], [game.unwrapped.ale.getRAM()], np.random.default_rng(1)
        for action in steps.integers(0, game.action_space.n, 100):
            pictures.append(game.step(action)[0])
            memory.append(game.unwrapped.ale.getRAM())
        memories.append((np.array(pictures), np.array(memory)))
        game.close()
    for one, other in zip(*memories, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.long
@GAMES
def test_fire_is_held_until_it_is_surely_taken_where_frames_repeat_the_last_action():
    games = []
    for sticky in (0.0, 0.25, 0.9):
        keys = {"noop_max": 0, "fire": True, "sticky": sticky}
        task = VectorTask({"env": BREAKOUT, "atari": keys}, 1, wrap=lambda env: games.append(env.unwrapped.ale) or env)
        task.reset(0, 0)
        task.close()
    numbers = [game.getEpisodeFrameNumber() for game in games]
    # Of ten frames with 0.25, and of 132 with 0.9, none takes its action once in a million games.
    assert numbers == [4, 10, 132]
