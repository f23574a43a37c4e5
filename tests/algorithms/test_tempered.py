"""A distribution at a temperature is p^(1 / temperature), told with the log-probability of what is drawn."""

import numpy as np
import pytest

from mlxe_async.algorithms import Acting
from mlxe_async.algorithms.distributions import Categorical, Gaussian, MultiCategorical, TanhGaussian
from mlxe_async.algorithms.mlxe.exploration import ExplorationFields, epsilon
from mlxe_async.maths.categorical import log_softmax
from mlxe_async.rows import Spaces

TEMPERATURES = [0.25, 1.0, 3.0]
LOGITS = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


BOX = Spaces((3,), action_shape=(2,), action_low=(-2.0, -2.0), action_high=(2.0, 2.0))


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_logits_are_divided(temperature):
    found = Categorical(LOGITS).tempered(temperature)
    assert found.log_probs == pytest.approx(log_softmax(LOGITS / temperature), abs=1e-6)
    drawn = found.act(np.random.default_rng(1))
    chosen = log_softmax(LOGITS / temperature)[np.arange(5), drawn["action"]]
    assert drawn["log_prob"] == pytest.approx(chosen, abs=1e-6)
    assert (found.mode() == Categorical(LOGITS).mode()).all()


def test_tensors_are_tempered_as_arrays_are():
    import torch

    found = Categorical(torch.from_numpy(LOGITS)).tempered(2.0)
    assert found.log_probs.numpy() == pytest.approx(Categorical(LOGITS).tempered(2.0).log_probs, abs=1e-6)


def test_what_is_masked_stays_impossible_at_any_temperature():
    mask = np.array([[1, 0, 1, 0]] * 5, bool)
    found = Categorical(LOGITS, mask).tempered(1e6)
    assert np.exp(found.log_probs) == pytest.approx(np.where(mask, 0.5, 0.0), abs=1e-4)
    drawn = [found.act(np.random.default_rng(seed))["action"] for seed in range(20)]
    assert set(np.unique(drawn)) == {0, 2}


def test_each_choice_of_several_is_tempered():
    found = MultiCategorical(LOGITS, (2, 2)).tempered(2.0)
    drawn = found.act(np.random.default_rng(0))
    expected = sum(log_softmax(LOGITS[:, 2 * k : 2 * k + 2] / 2)[np.arange(5), drawn["action"][:, k]] for k in range(2))
    assert drawn["log_prob"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", [Gaussian, TanhGaussian])
def test_the_variance_of_normal_numbers_is_multiplied(kind):
    mean, log_std = np.zeros((20_000, 2), np.float32), np.full(2, -0.5, np.float32)
    found = kind(mean, log_std, BOX).tempered(4.0)
    drawn = found.act(np.random.default_rng(0))
    assert drawn["raw_action"].std() == pytest.approx(2 * np.exp(-0.5), rel=0.02)
    import torch

    raw = torch.from_numpy(drawn["raw_action"])
    wider = kind(torch.from_numpy(mean), torch.full((2,), float(np.log(2) - 0.5)), BOX)
    assert drawn["log_prob"] == pytest.approx(wider.log_prob(raw).numpy(), abs=1e-4)


def test_an_executor_tells_what_was_asked_for():
    plain = Acting()
    one = Categorical(LOGITS)
    assert plain.tempered(one) is one
    assert plain.share(0.3) == 0.3
    assert plain.asked == {"temperature", "epsilon"}
    own = Acting(temperature=2.0, epsilon=0.7)
    assert own.tempered(one) is not one
    assert own.share(0.3) == 0.7
    assert epsilon(ExplorationFields(behaviour="reversed"), own) == 0.7
