"""Where the rows of a rollout belong together."""

import numpy as np

from mlxe_async.maths.rollouts import ends


def rollout(length, **marks):
    rows = {name: np.zeros((length, 1), np.uint8) for name in ("terminated", "truncated", "cut")}
    rows |= {"valid": np.ones((length, 1), bool), "episode": np.zeros((length, 1), np.int64)}
    rows["step"] = np.arange(length)[:, None]
    for name, values in marks.items():
        rows[name] = np.array(values)[:, None]
    return rows


def test_an_unbroken_rollout_ends_with_its_last_row():
    assert ends(rollout(4))[:, 0].tolist() == [False, False, False, True]


def test_a_failure_a_time_limit_and_a_cut_are_ends():
    rows = rollout(5, terminated=[0, 1, 0, 0, 0], truncated=[0, 0, 1, 0, 0], cut=[0, 0, 0, 1, 0])
    assert ends(rows)[:, 0].tolist() == [False, True, True, True, True]


def test_padding_begins_after_the_last_valid_row():
    assert ends(rollout(4, valid=[True, True, False, False]))[1, 0]
    assert not ends(rollout(4, valid=[True, True, False, False]))[0, 0]


def test_a_gap_without_a_mark_is_an_end():
    assert ends(rollout(4, episode=[3, 3, 4, 4], step=[7, 8, 0, 1]))[:, 0].tolist() == [False, True, False, True]
    assert ends(rollout(4, step=[7, 8, 10, 11]))[:, 0].tolist() == [False, True, False, True]
