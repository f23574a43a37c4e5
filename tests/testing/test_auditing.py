"""The audit accepts what environments lived through, and finds each way in which rows can be wrong."""

import numpy as np
import pytest

from mlxe_async.testing import CountingEnv, audit, decode
from mlxe_async.testing.counting import LIMIT, Place, encode, reward_of


def lived(executor=0, life=1, instance=0, episodes=3, length=4):
    """Rows of one life, as a memory keeps them: columns in order."""
    rows = {name: [] for name in ("obs", "next_obs", "reward", "env", "step", "left")}
    total = 0
    for episode in range(episodes):
        for step in range(length):
            here = Place(executor, life, instance, episode, step, total)
            total += 1
            for name, value in (
                ("obs", encode(here)),
                ("next_obs", encode(here.after_one_step())),
                ("reward", reward_of(here.after_one_step())),
                ("env", 0),
                ("step", step),
                ("left", length - step),
            ):
                rows[name].append(value)
    return {name: np.array(column) for name, column in rows.items()}


def joined(*many):
    return {name: np.concatenate([rows[name] for rows in many]) for name in many[0]}


def without(rows, *which):
    return {name: np.delete(column, which, axis=0) for name, column in rows.items()}


def test_lives_that_follow_each_other_are_fine():
    found = audit({0: joined(lived(), lived(life=2)), 1: lived(executor=1)})
    assert found.ok, found.problems
    assert found.rows == 36
    assert found.lives == {(0, 1): 12, (0, 2): 12, (1, 1): 12}


def test_a_life_that_ended_early_is_fine():
    assert audit({0: joined(without(lived(), *range(8, 12)), lived(life=2))}).ok


def spoilt(way):
    rows = lived()
    if way == "lost":
        return without(rows, 5)
    if way == "lost at the beginning":
        return without(rows, 0, 1, 2, 3)
    if way == "twice":
        return joined(rows, {name: column[-1:] for name, column in rows.items()})
    if way == "torn":
        rows["obs"][5, 5] += 1
    if way == "joined with the next episode":
        rows["next_obs"][3] = rows["obs"][4]
    if way == "of another executor":
        return lived(executor=1)
    if way == "reward":
        rows["reward"][2] += 1
    if way == "step":
        rows["step"][2] += 1
    if way == "lives mixed":
        return joined(lived(life=2), lived())
    if way == "a segment over two lives":
        return joined(without(rows, *range(10, 12)), lived(life=2))
    if way == "a segment over two episodes":
        rows["left"][:] = np.arange(len(rows["left"]), 0, -1)
    return rows


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("lost", "missing"),
        ("lost at the beginning", "missing"),
        ("twice", "came before"),
        ("torn", "torn"),
        ("joined with the next episode", "does not follow"),
        ("of another executor", "of executor 1"),
        ("reward", "reward"),
        ("step", "is called step"),
        ("lives mixed", "comes after"),
        ("a segment over two lives", "a segment joins"),
        ("a segment over two episodes", "a segment joins"),
    ],
)
def test_each_way_of_being_wrong_is_found(way, words):
    found = audit({0: spoilt(way)})
    assert words in "; ".join(found.problems)


def test_a_memory_that_forgets_may_begin_anywhere_but_has_no_holes():
    assert audit({0: without(lived(), 0, 1, 2, 3)}, whole=False).ok
    assert not audit({0: without(lived(), 4, 5, 6, 7)}, whole=False).ok


def test_an_observation_says_exactly_where_it_is():
    place = Place(3, LIMIT - 1, 5, 6, 7, LIMIT - 2)
    assert decode(encode(place)) == place
    assert encode(place).dtype == np.float32


@pytest.mark.parametrize("entry", range(7))
def test_one_changed_piece_is_noticed(entry):
    obs = encode(Place(3, 1, 5, 6, 7, 8))
    obs[entry] += 1
    assert decode(obs) is None


@pytest.mark.parametrize("wrong", [np.zeros(6), np.full(7, np.nan), np.full(7, 0.5)])
def test_what_is_no_observation_of_ours_is_noticed(wrong):
    assert decode(wrong) is None


@pytest.mark.parametrize(
    ("ending", "flags"),
    [
        ("terminated", [(True, False)] * 2),
        ("truncated", [(False, True)] * 2),
        ("turns", [(True, False), (False, True)]),
    ],
)
def test_episodes_end_as_they_are_told(ending, flags):
    env, seen = CountingEnv(length=3, ending=ending), []
    for _ in flags:
        env.reset(seed=0)
        answers = [env.step(0) for _ in range(3)]
        assert not any(answer[2] or answer[3] for answer in answers[:2])
        seen.append(answers[2][2:4])
    assert seen == flags


def test_a_mistaken_ending_is_refused():
    with pytest.raises(ValueError, match="turns"):
        CountingEnv(ending="never")
