"""Distributions of actions: what is drawn has the density that is told, in numpy as in torch."""

import itertools

import numpy as np
import pytest
import torch
from torch import distributions as theirs

from mlxe_async.algorithms.distributions import (
    Categorical,
    Gaussian,
    MultiCategorical,
    TanhGaussian,
    raw_action,
    to_unit,
)
from mlxe_async.rows import Spaces

BOX = Spaces((3,), action_shape=(2,), action_low=(-2.0, 0.0), action_high=(2.0, 5.0))
OPEN = Spaces((3,), action_shape=(2,), action_low=(-3.4e38, -3.4e38), action_high=(3.4e38, 3.4e38))
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(6, 5)).astype(np.float32)
MEAN, LOG_STD = (RNG.normal(size=(6, 2)).astype(np.float32) for _ in range(2))


def both(values):
    return values, torch.from_numpy(values)


@pytest.mark.parametrize("logits", both(LOGITS), ids=["numpy", "torch"])
def test_a_choice_is_drawn_as_often_as_it_is_probable(logits):
    many = logits[:1].repeat(20_000, 0) if isinstance(logits, np.ndarray) else logits[:1].repeat(20_000, 1)
    drawn = Categorical(many).act(np.random.default_rng(1))
    expected = torch.from_numpy(LOGITS[0]).softmax(-1).numpy()
    np.testing.assert_allclose(np.bincount(drawn["action"], minlength=5) / 20_000, expected, atol=0.012)
    np.testing.assert_allclose(drawn["log_prob"], np.log(expected)[drawn["action"]], rtol=1e-5)


def test_a_choice_has_the_log_probability_entropy_and_divergence_that_torch_gives():
    one, two = torch.from_numpy(LOGITS), torch.from_numpy(LOGITS[::-1].copy())
    ours, reference, action = Categorical(one), theirs.Categorical(logits=one), torch.arange(6) % 5
    torch.testing.assert_close(ours.log_prob(action), reference.log_prob(action))
    torch.testing.assert_close(ours.entropy(), reference.entropy())
    torch.testing.assert_close(
        ours.kl(Categorical(two)), theirs.kl_divergence(reference, theirs.Categorical(logits=two))
    )
    assert ours.mode().tolist() == LOGITS.argmax(-1).tolist()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_what_is_not_allowed_is_never_drawn_and_moves_no_gradient(kind):
    mask = np.zeros((6, 5), bool)
    mask[:, [1, 3]] = True
    logits = LOGITS if kind == "numpy" else torch.from_numpy(LOGITS)
    policy = Categorical(logits, mask)
    drawn = np.concatenate([policy.act(np.random.default_rng(seed))["action"] for seed in range(200)])
    assert set(drawn) == {1, 3}
    assert set(policy.mode()) <= {1, 3}
    leaf = torch.from_numpy(LOGITS).requires_grad_()
    policy = Categorical(leaf, torch.from_numpy(mask))
    (policy.entropy().sum() + policy.log_prob(torch.full((6,), 3)).sum()).backward()
    assert torch.isfinite(leaf.grad).all()
    assert not leaf.grad[~torch.from_numpy(mask)].any()
    torch.testing.assert_close(policy.log_probs.exp().sum(-1), torch.ones(6))


def test_several_choices_are_independent():
    policy = MultiCategorical(torch.from_numpy(LOGITS), (2, 3))
    actions = torch.tensor(list(itertools.product(range(2), range(3))))
    one = MultiCategorical(torch.from_numpy(LOGITS[:1]).expand(6, -1), (2, 3))
    assert one.log_prob(actions).exp().sum().item() == pytest.approx(1.0, abs=1e-6)
    drawn = policy.act(np.random.default_rng(0))
    assert drawn["action"].shape == (6, 2)
    torch.testing.assert_close(torch.from_numpy(drawn["log_prob"]), policy.log_prob(torch.from_numpy(drawn["action"])))
    parts = [theirs.Categorical(logits=part) for part in torch.from_numpy(LOGITS).split([2, 3], -1)]
    torch.testing.assert_close(policy.entropy(), sum(part.entropy() for part in parts))
    assert policy.kl(policy).abs().max().item() == pytest.approx(0.0, abs=1e-6)
    shaped = MultiCategorical(LOGITS[:, :4], (2, 2), (1, 2))
    assert shaped.act(np.random.default_rng(0))["action"].shape == shaped.mode().shape == (6, 1, 2)
    with pytest.raises(ValueError, match="expected 6 logits, got 5"):
        MultiCategorical(LOGITS, (3, 3))


@pytest.mark.parametrize("spaces", [BOX, OPEN], ids=["bounds", "no bounds"])
def test_normal_numbers_are_stored_as_drawn_and_acted_on_within_bounds(spaces):
    drawn = Gaussian(MEAN, LOG_STD, spaces).act(np.random.default_rng(3))
    reference = theirs.Normal(torch.from_numpy(MEAN), torch.from_numpy(LOG_STD).exp())
    expected = reference.log_prob(torch.from_numpy(drawn["raw_action"])).sum(-1)
    np.testing.assert_allclose(drawn["log_prob"], expected, rtol=1e-4, atol=1e-5)
    low, high = spaces.bounds
    np.testing.assert_array_equal(drawn["action"], np.clip(drawn["raw_action"], low, high))
    ours = Gaussian(torch.from_numpy(MEAN), torch.from_numpy(LOG_STD), spaces)
    torch.testing.assert_close(ours.log_prob(torch.from_numpy(drawn["raw_action"])), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.entropy(), reference.entropy().sum(-1))
    other = Gaussian(torch.from_numpy(LOG_STD), torch.from_numpy(MEAN), spaces)
    theirs_other = theirs.Normal(torch.from_numpy(LOG_STD), torch.from_numpy(MEAN).exp())
    torch.testing.assert_close(ours.kl(other), theirs.kl_divergence(reference, theirs_other).sum(-1))
    shared = Gaussian(torch.from_numpy(MEAN), torch.from_numpy(LOG_STD[0]), spaces)
    assert shared.entropy().shape == shared.kl(shared).shape == (6,)
    assert raw_action(spaces).shape == (2,)


def test_squashed_numbers_have_the_density_of_the_change_of_variables():
    drawn = TanhGaussian(MEAN, LOG_STD, BOX).act(np.random.default_rng(3))
    base = theirs.Normal(torch.from_numpy(MEAN), torch.from_numpy(LOG_STD).exp())
    raw = torch.from_numpy(drawn["raw_action"])
    expected = (base.log_prob(raw) - (1 - raw.double().tanh().square()).log()).sum(-1).float()
    np.testing.assert_allclose(drawn["log_prob"], expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(to_unit(drawn["action"], BOX), raw.tanh(), atol=1e-5)
    np.testing.assert_allclose(to_unit(torch.from_numpy(drawn["action"]), BOX), raw.tanh(), atol=1e-5)
    ours = TanhGaussian(torch.from_numpy(MEAN), torch.from_numpy(LOG_STD), BOX)
    torch.testing.assert_close(ours.log_prob(raw), expected, rtol=1e-3, atol=1e-3)
    torch.manual_seed(0)
    near = theirs.Normal(0.1 * torch.from_numpy(MEAN), torch.full((6, 2), 0.3))
    reference = theirs.TransformedDistribution(near, theirs.TanhTransform(cache_size=1))
    action, log_prob = TanhGaussian(near.loc, near.scale.log(), BOX).rsample()
    torch.testing.assert_close(log_prob, reference.log_prob(action).sum(-1), rtol=1e-2, atol=1e-2)
    far = TanhGaussian(torch.full((1, 2), 50.0), torch.zeros(1, 2), BOX)
    assert torch.isfinite(far.log_prob(torch.full((1, 2), 50.0))).all()
    np.testing.assert_allclose(far.mode(), [[2.0, 5.0]])
    with pytest.raises(ValueError, match="finite bounds"):
        TanhGaussian(MEAN, LOG_STD, OPEN)
    with pytest.raises(NotImplementedError, match="rsample"):
        ours.entropy()


def test_gradients_go_through_a_squashed_draw():
    mean = torch.zeros(4, 2, requires_grad=True)
    action, log_prob = TanhGaussian(mean, torch.zeros(2), BOX).rsample()
    (action.sum() + log_prob.sum()).backward()
    assert mean.grad.abs().min() > 0


@pytest.mark.parametrize("shape", [(2,), (5, 2)], ids=["shared", "computed"])
def test_the_entropy_of_normal_numbers_grows_with_each_logarithm_of_a_deviation(shape):
    log_std = torch.zeros(shape, requires_grad=True)
    spaces = Spaces((3,), action_shape=(2,))
    entropy = Gaussian(torch.zeros(5, 2), log_std, spaces).entropy()
    assert entropy.tolist() == pytest.approx([2 * (0.5 + 0.5 * np.log(2 * np.pi))] * 5)
    entropy.mean().backward()
    torch.testing.assert_close(log_std.grad, torch.full(shape, 1.0 if len(shape) == 1 else 1 / 5))
