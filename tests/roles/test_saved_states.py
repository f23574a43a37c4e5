"""What an algorithm or a role is to take up is seen to be of its kind first."""

import numpy as np
import pytest

from mlxe_async.errors import MlxeError
from mlxe_async.roles.states import expect_counts, expect_like, expect_numbers, take_up

NOW = {"step": np.zeros(2, np.int64), "obs": np.zeros((2, 3), np.float32), "running": np.zeros(2, bool)}


class Learner:
    def state(self):
        return {"moments": np.zeros(4, np.float32)}

    def restore(self, state):
        self.taken = state


def test_what_is_alike_is_taken_whatever_else_there_is():
    expect_like("executor 0", {**NOW, "step": np.ones(2, np.int32), "more": np.zeros(1)}, NOW)


@pytest.mark.parametrize(
    ("name", "saved", "words"),
    [
        ("step", None, "executor 0 going on: step: got nothing, expected int64 of shape (2,)"),
        ("step", np.zeros(3, np.int64), "step: got int64 of shape (3,), expected int64 of shape (2,)"),
        ("step", np.zeros(2), "step: got float64 of shape (2,), expected int64"),
        ("obs", np.zeros((2, 3), np.int8), "obs: got int8 of shape (2, 3), expected float32 of shape (2, 3)"),
        ("running", np.zeros(2, np.uint8), "running: got uint8 of shape (2,), expected bool"),
    ],
)
def test_what_is_of_another_shape_or_kind_is_named(name, saved, words):
    state = {key: array for key, array in {**NOW, name: saved}.items() if array is not None}
    with pytest.raises(MlxeError) as caught:
        expect_like("executor 0", state, NOW)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "saved", [np.array([-1]), np.array([2**60]), np.array(2**63, np.uint64), np.array([1.0]), None]
)
def test_what_is_no_count_is_named(saved):
    with pytest.raises(MlxeError, match=r"learner going on: roll_backs: got .*, expected whole numbers from 0"):
        expect_counts("learner", {} if saved is None else {"roll_backs": saved}, ["roll_backs"])
    expect_counts("learner", {"roll_backs": np.array(3)}, ["roll_backs"])


def test_numbers_of_an_algorithm_that_are_none_are_named():
    good = {"algorithm.moments": np.array([np.inf, 1.0]), "chance.gauss": np.array(np.nan)}
    expect_numbers("learner", good)
    with pytest.raises(MlxeError, match=r"learner going on: algorithm\.mean: got NaN, expected numbers"):
        expect_numbers("learner", {**good, "algorithm.mean": np.array([0.0, np.nan], np.float32)})


@pytest.mark.parametrize("saved", [np.zeros(5, np.float32), np.zeros(4, np.int32)])
def test_a_state_of_another_shape_or_kind_is_not_taken_up(saved):
    learner = Learner()
    with pytest.raises(MlxeError, match=r"Learner going on: its saved state has others than expected of \['moments'\]"):
        take_up(learner, {"algorithm.moments": saved})
    assert not hasattr(learner, "taken")
    assert take_up(learner, {"algorithm.moments": np.ones(4, np.float32)})
