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


def test_each_row_gives_the_entry_of_its_action():
    assert categorical.of_action(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 0])).tolist() == [2.0, 3.0]
    with pytest.raises(ValueError, match="shape"):
        categorical.of_action(np.zeros((2, 2)), np.array([[1], [0]]))
