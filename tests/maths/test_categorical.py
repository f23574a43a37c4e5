"""Log-probabilities and draws of discrete actions."""

import numpy as np
import pytest

from mlxe_async.maths import categorical


def test_log_probabilities_are_normalised_for_any_finite_logits():
    log_probs = categorical.log_softmax(np.array([[0.0, 0.0], [1e4, -1e4], [3.0, 1.0]]))
    np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1.0)
    np.testing.assert_allclose(log_probs[0], np.log(0.5))
    assert np.isfinite(log_probs).all()


def test_draws_have_the_given_frequencies():
    probability = np.array([0.1, 0.0, 0.6, 0.3])
    with np.errstate(divide="ignore"):
        log_probs = np.broadcast_to(np.log(probability), (40_000, 4))
    actions = categorical.sample(log_probs, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / 40_000, probability, atol=0.01)
    assert not (actions == 1).any()


class Extreme:
    """A generator that returns its smallest or largest number."""

    def __init__(self, number):
        self.number = number

    def random(self, shape):
        return np.full(shape, self.number)


@pytest.mark.parametrize("number", [0.0, np.nextafter(1.0, 0.0)])
def test_the_extreme_random_numbers_still_give_possible_actions(number):
    log_probs = categorical.log_softmax(np.random.default_rng(0).normal(size=(1000, 7)).astype(np.float32) * 5)
    actions = categorical.sample(log_probs, Extreme(number))
    assert actions.min() >= 0
    assert actions.max() <= 6


@pytest.mark.parametrize("rows", [1, 64])
def test_an_action_without_probability_is_not_drawn_even_by_the_smallest_number(rows):
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.tile([0.0, 0.5, 0.5], (rows, 1)))
    assert (categorical.sample(log_probs, Extreme(0.0)) == 1).all()


@pytest.mark.parametrize("rows", [1, 64])
def test_probabilities_whose_sum_is_not_one_count_by_their_share(rows):
    log_probs = np.log(np.tile([0.25, 0.25], (rows, 1)))
    for number, action in [(0.4, 0), (0.6, 1), (0.9, 1)]:
        assert (categorical.sample(log_probs, Extreme(number)) == action).all()


@pytest.mark.parametrize(
    ("shape", "is_by_action"),
    [((64, 16), True), ((63, 16), False), ((64, 17), False), ((65, 2), True), ((3, 64, 2), False), ((70,), False)],
)
def test_many_rows_of_few_actions_are_taken_action_by_action_and_all_others_row_by_row(shape, is_by_action):
    logits = np.random.default_rng(0).normal(size=shape)
    expected = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    found = categorical.log_softmax(logits)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    same = categorical.by_action(logits)[0].T if is_by_action else expected
    np.testing.assert_array_equal(found, same)
    assert not is_by_action or (found != expected).any()


@pytest.mark.parametrize(("rows", "actions"), [(64, 16), (63, 16), (64, 17)])
def test_a_draw_has_the_action_at_which_the_sum_of_probabilities_passes_the_random_number(rows, actions):
    log_probs = categorical.log_softmax(np.random.default_rng(0).normal(size=(rows, actions)))
    numbers = np.random.default_rng(5).random(rows)
    expected = [int(np.searchsorted(np.exp(row).cumsum(), n)) for row, n in zip(log_probs, numbers, strict=True)]
    assert categorical.sample(log_probs, np.random.default_rng(5)).tolist() == expected


def test_each_row_gives_the_entry_of_its_action():
    assert categorical.of_action(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 0])).tolist() == [2.0, 3.0]
    with pytest.raises(ValueError, match="shape"):
        categorical.of_action(np.zeros((2, 2)), np.array([[1], [0]]))


def test_log_probabilities_of_several_versions_are_those_of_each():
    logits = np.random.default_rng(0).normal(size=(2, 5, 3))
    together = categorical.log_softmax(logits)
    np.testing.assert_allclose(np.exp(together).sum(-1), 1.0)
    np.testing.assert_allclose(together[1], categorical.log_softmax(logits[1]))


def test_an_action_of_probability_zero_is_not_drawn_by_the_smallest_number():
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.array([[0.0, 0.25, 0.75]]))
    assert categorical.sample(log_probs, Extreme(0.0)).tolist() == [1]
    assert categorical.sample(log_probs, Extreme(0.25)).tolist() == [2]


def test_probabilities_with_actions_first_are_those_of_the_softmax():
    logits = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    logits[0] = [90.0, -90.0, 0.0]
    log_probs, probs = categorical.by_action(logits)
    expected = logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
    np.testing.assert_allclose(log_probs, expected.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(probs, np.exp(expected).T, rtol=1e-5, atol=1e-6)
    logits[0] = [1e4, 0.0, -1e4]  # far beyond what an exponential holds
    assert np.isfinite(categorical.by_action(logits)[0]).all()


@pytest.mark.parametrize("actions", [2, 5, 16])
def test_many_rows_have_the_log_probabilities_of_each_alone(actions):
    logits = np.random.default_rng(3).normal(size=(100, actions)).astype(np.float32) * 20
    many = categorical.log_softmax(logits)
    alone = np.concatenate([categorical.log_softmax(row[None]) for row in logits])
    np.testing.assert_allclose(many, alone, rtol=1e-5, atol=1e-5)
    assert many.dtype == np.float32


def test_many_rows_draw_what_few_rows_draw_from_the_same_numbers():
    log_probs = categorical.log_softmax(np.random.default_rng(3).normal(size=(100, 4)).astype(np.float32))
    many, rng = categorical.sample(log_probs, np.random.default_rng(5)), np.random.default_rng(5)
    few = np.concatenate([categorical.sample(piece, rng) for piece in np.split(log_probs, 10)])
    np.testing.assert_array_equal(many, few)
    assert len(set(many.tolist())) == 4


def test_logits_that_differ_without_measure_stay_finite_in_many_rows():
    log_probs = categorical.log_softmax(np.tile(np.array([[1e30, -1e30]], np.float32), (80, 1)))
    assert log_probs[:, 0].tolist() == [0.0] * 80
    assert np.isfinite(log_probs).all()
