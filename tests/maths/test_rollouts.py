"""Where the rows of a rollout belong together."""

import numpy as np
import torch
from groups import Others

from mlxe_async.maths import rollouts, together
from mlxe_async.maths.rollouts import columns, ends, following, unknown


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


def test_a_value_is_unknown_after_ends_that_are_no_failures_and_never_after_padding():
    rows = rollout(
        8, terminated=[0, 1, 0, 0, 0, 0, 0, 0], truncated=[0, 0, 1, 0, 0, 0, 0, 0], valid=[1, 1, 1, 1, 1, 1, 0, 0]
    )
    stop, ended, missing = unknown(rows)
    assert stop[:, 0].tolist() == [False, True, True, False, False, True, True, True]
    assert ended[:, 0].tolist() == [False, True] + [False] * 6
    assert missing[:, 0].tolist() == [False, False, True, False, False, True, False, False]


def test_a_row_that_both_failed_and_was_truncated_has_failed():
    _, ended, missing = unknown(rollout(3, terminated=[0, 1, 0], truncated=[0, 1, 0]))
    assert ended[:, 0].tolist() == [False, True, False]
    assert missing[:, 0].tolist() == [False, False, True]


def test_what_follows_a_row_is_the_next_rows_value_or_the_one_that_was_missing():
    value, missing = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]), np.zeros((3, 2), bool)
    missing[1, 0] = missing[2, 0] = missing[2, 1] = True
    found = following(value, np.array([7.0, 8.0, 9.0]), missing)
    assert found.tolist() == [[2.0, 20.0], [7.0, 30.0], [8.0, 9.0]]
    missing[2, 1] = False
    assert following(value, np.array([7.0, 8.0]), missing)[2, 1] == 0


def test_pieces_are_whole_sequences_of_about_so_many_valid_rows():
    rows = {"valid": np.ones((4, 6), bool), "number": np.arange(24).reshape(4, 6)}
    rows["valid"][1:, 5] = False  # 21 valid rows
    for asked, widths in ((1000, [6]), (21, [6]), (11, [3, 3]), (7, [2, 2, 2]), (5, [2, 2, 1, 1]), (1, [1] * 6)):
        pieces = list(columns(rows, asked))
        assert [piece["number"].shape for piece in pieces] == [(4, width) for width in widths]
        np.testing.assert_array_equal(np.concatenate([piece["number"] for piece in pieces], 1), rows["number"])
        assert all(piece["valid"].shape == piece["number"].shape for piece in pieces)


def test_shuffled_rows_come_once_an_epoch_in_another_order_and_belong_together():
    rows = {"a": torch.arange(10), "b": 10.0 * torch.arange(10)[:, None]}
    pieces = list(rollouts.shuffled(rows, 4, 3, np.random.default_rng(0)))
    assert [len(piece["a"]) for piece in pieces] == [5, 5] * 3
    assert all((piece["b"][:, 0] == 10 * piece["a"]).all() for piece in pieces)
    orders = [torch.cat([one["a"], other["a"]]).tolist() for one, other in zip(pieces[::2], pieces[1::2], strict=True)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    whole = np.random.default_rng(0).permutation(10).tolist()
    assert orders[0] == whole


def rows_of_gradients(pieces):
    """By how much the gradient of each piece counts where several workers learn together."""
    with together.learning_in(group := Others()):
        for _ in pieces:
            together.gradient(np.zeros(1))
    return [numbers[0] for kind, numbers in group.given if kind == together.GRADIENT]


def test_a_gradient_counts_by_the_valid_rows_of_its_piece():
    valid = np.ones((4, 6), bool)
    valid[1:, 5] = False
    assert rows_of_gradients(columns({"valid": valid}, 11)) == [12, 9]
    rows = {"a": torch.arange(10), "b": torch.zeros(10, 3)}
    assert rows_of_gradients(rollouts.shuffled(rows, 4, 2, np.random.default_rng(0))) == [5, 5, 5, 5]


def test_a_column_is_spread_without_its_gradient():
    column = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    found = rollouts.spread({"valid": np.array([[True, False], [True, True]])}, column, elsewhere=-7.0)
    assert found.tolist() == [[1, -7], [2, 3]]
    assert found.dtype == np.float64


def test_fewer_rows_than_a_minibatch_are_one():
    (only,) = rollouts.shuffled({"a": torch.arange(3)}, 64, 1, np.random.default_rng(0))
    assert sorted(only["a"].tolist()) == [0, 1, 2]
