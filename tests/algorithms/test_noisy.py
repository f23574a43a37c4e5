"""Noisy networks: where noise is, where it is not, and that its size is learned."""

import itertools

import numpy as np
import pytest
import torch

from mlxe_async.algorithms import Acting, Clock
from mlxe_async.algorithms.mlxe.paper import MLxE, MLxESettings
from mlxe_async.networks.dense import Dense, dense
from mlxe_async.networks.noisy import NoisyLinear, draw, noisy_layers, quiet, without_noise
from mlxe_async.rows import Spaces

OBS = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)


def agent(learns=False, **settings):
    return MLxE(
        MLxESettings(noisy=True, policy=(16,), value=(16,), **settings), Spaces((4,), actions=3), seed=1, learns=learns
    )


def batch(algorithm, length=40):
    rng = np.random.default_rng(0)
    rows = {"obs": OBS[:length], "next_obs": OBS[:length] + 1, "action": rng.integers(0, 3, length)}
    rows |= {"log_prob": np.full(length, -1.1, np.float32), "reward": np.ones(length, np.float32)}
    rows |= {"terminated": np.zeros(length, np.uint8), "truncated": np.zeros(length, np.uint8)}
    return rows | algorithm.derive(rows)


def network():
    return dense(4, (16, 8), 3, torch.nn.Tanh, linear=NoisyLinear)


def epsilons(layer, rng):
    """Of weights (out, in) and biases (out,); Fortunato et al. 2018, eq. 10 and 11."""
    sizes = (layer.in_features, layer.out_features)
    ins, outs = (np.sign(x) * np.sqrt(np.abs(x)) for x in (rng.standard_normal(size, np.float32) for size in sizes))
    return np.outer(outs, ins), outs


def test_a_noisy_layer_begins_with_the_published_means_and_sigmas():
    torch.manual_seed(0)
    layer = NoisyLinear(100, 400)
    assert 0.099 < float(layer.weight.detach().abs().max()) <= 0.1
    assert 0.09 < float(layer.bias.detach().abs().max()) <= 0.1
    for sigmas in (layer.weight_sigma, layer.bias_sigma):
        np.testing.assert_allclose(sigmas.detach(), 0.05, rtol=1e-6)
    np.testing.assert_allclose(NoisyLinear(25, 3, 0.9).weight_sigma.detach(), 0.18, rtol=1e-6)
    assert sum(one.numel() for one in layer.parameters()) == 2 * 101 * 400


def test_noise_is_factorised_and_of_signed_roots_of_normal_numbers():
    layer = NoisyLinear(1, 100_000)
    layer.draw(np.random.default_rng(0))
    _, outs = layer.noise.drawn
    assert np.square(outs).mean() == pytest.approx(np.sqrt(2 / np.pi), abs=0.01)  # E f(x)^2 = E |x|
    assert outs.mean() == pytest.approx(0, abs=0.01)
    layer = NoisyLinear(5, 3)
    layer.draw(np.random.default_rng(3))
    of_weight, of_bias = epsilons(layer, np.random.default_rng(3))
    weight, bias = layer.by_numpy()
    sigmas = layer.weight_sigma.detach().numpy()
    np.testing.assert_allclose(weight.T, layer.weight.detach().numpy() + sigmas * of_weight, rtol=1e-6)
    np.testing.assert_allclose(bias, (layer.bias + layer.bias_sigma * torch.from_numpy(of_bias)).detach(), rtol=1e-6)


def test_numpy_and_torch_put_the_same_weights_together_and_keep_the_non_linearities():
    net = network()
    still = net(torch.tensor(OBS)).detach().numpy()
    np.testing.assert_allclose(net(OBS), still, atol=1e-6)
    draw(net, np.random.default_rng(7))
    loud = net(torch.tensor(OBS)).detach().numpy()
    np.testing.assert_allclose(net(OBS), loud, atol=1e-6)
    x, rng = OBS, np.random.default_rng(7)
    for number, layer in enumerate(noisy_layers(net)):
        of_weight, of_bias = epsilons(layer, rng)
        weight = layer.weight.detach().numpy() + layer.weight_sigma.detach().numpy() * of_weight
        x = x @ weight.T + layer.bias.detach().numpy() + layer.bias_sigma.detach().numpy() * of_bias
        x = np.tanh(x) if number < 2 else x
    np.testing.assert_allclose(loud, x, atol=1e-5)
    assert np.abs(loud - still).max() > 0.05
    with without_noise(net, noisy=True):
        np.testing.assert_allclose(net(OBS), still, atol=1e-6)
    np.testing.assert_allclose(net(OBS), loud, atol=1e-6)
    np.testing.assert_allclose(quiet(net)(OBS), still, atol=1e-6)


def test_gradients_reach_the_means_and_by_the_noise_the_sigmas():
    net = network()
    draw(net, np.random.default_rng(3))
    net(torch.tensor(OBS)).mean().backward()
    rng = np.random.default_rng(3)
    for layer in noisy_layers(net):
        of_weight, of_bias = epsilons(layer, rng)
        assert layer.weight.grad.abs().max() > 0
        np.testing.assert_allclose(layer.weight_sigma.grad, layer.weight.grad.numpy() * of_weight, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(layer.bias_sigma.grad, layer.bias.grad.numpy() * of_bias, rtol=1e-4, atol=1e-7)


def test_the_stored_log_probability_is_that_under_the_noise_in_use():
    algorithm = agent()
    acted = algorithm.act(OBS, np.random.default_rng(0), Acting())
    stored = acted["log_prob"]
    np.testing.assert_allclose(algorithm.policy(OBS).log_prob(acted["action"]), stored, atol=1e-6)
    other = agent()
    draw(other.network, np.random.default_rng(0))
    scores = other.network.scores(torch.from_numpy(OBS)).detach().numpy()
    expected = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    np.testing.assert_allclose(stored, expected[np.arange(50), acted["action"]], atol=1e-5)
    quiet(algorithm.network)
    assert np.abs(algorithm.policy(OBS).log_prob(acted["action"]) - stored).max() > 1e-3


def logits_at(algorithm, rng, clock):
    algorithm.act(OBS[:1], rng, clock)
    return algorithm.network.scores(OBS)


@pytest.mark.parametrize("every", [0, 3])
def test_noise_is_drawn_at_a_rollouts_start_and_every_so_many_steps(every):
    algorithm, rng = agent(noise_every=every), np.random.default_rng(0)
    clock, seen = Acting(steps=40), []
    for _ in range(7):
        seen.append(logits_at(algorithm, rng, clock))
        clock.steps += 1
    changes = [bool((a != b).any()) for a, b in itertools.pairwise(seen)]
    assert changes == ([False] * 6 if every == 0 else [False, False, True, False, False, True])
    clock.rollouts += 1
    assert (logits_at(algorithm, rng, clock) != seen[-1]).any()


def test_weights_that_were_loaded_are_acted_by_though_their_memory_is_written_to():
    """A reader's buffer is the next version's: noise that is drawn later belongs to the weights of now."""
    found = []
    for junk in (False, True):
        algorithm = agent(noise_every=1)
        buffer = algorithm.weights()
        algorithm.load(buffer)
        if junk:
            buffer[:] = 0
        found.append([logits_at(algorithm, np.random.default_rng(3), Acting(steps=step)) for step in range(3)])
    np.testing.assert_array_equal(*found)


def test_the_same_rollout_begun_again_meets_the_same_noise():
    actions = [agent(noise_every=2).act(OBS, np.random.default_rng(4), Acting(9))["action"] for _ in range(2)]
    np.testing.assert_array_equal(*actions)
    first, second = agent(noise_every=2), agent(noise_every=2)
    first.act(OBS, np.random.default_rng(4), Acting(9, rollouts=3))
    second.restore(first.state())  # a successor begins the rollout again
    again = second.act(OBS, np.random.default_rng(4), Acting(9, rollouts=3))["action"]
    np.testing.assert_array_equal(again, actions[0])


def test_tests_and_appraisals_know_no_noise():
    algorithm = agent()
    rows = batch(algorithm)
    still, judged = algorithm.greedy(OBS), algorithm.appraise(rows)
    plain = algorithm.network.scores(OBS).argmax(-1)
    for number in range(20):
        algorithm.act(OBS, np.random.default_rng(number), Acting(rollouts=number))
        np.testing.assert_array_equal(algorithm.greedy(OBS), still)
        np.testing.assert_array_equal(algorithm.appraise(rows)["return"], judged["return"])
        np.testing.assert_array_equal(algorithm.module()(torch.from_numpy(OBS))["actor"].argmax(-1), still)
    np.testing.assert_array_equal(still, plain)
    flats = np.stack([algorithm.weights()] * 2)
    np.testing.assert_array_equal(algorithm.greedy_many(flats, np.stack([OBS, OBS])), [plain, plain])


def test_an_update_draws_noise_for_both_networks_and_learns_the_sigmas(monkeypatch):
    algorithm = agent(learns=True, target="per_iteration", correction="none", learning_rate=0.01, optimiser="adam")
    drawn, own = [], NoisyLinear.draw
    monkeypatch.setattr(NoisyLinear, "draw", lambda self, rng: (own(self, rng), drawn.append(self.noise.drawn[1]))[0])
    before = [layer.weight_sigma.detach().clone() for layer in noisy_layers(algorithm.learned)]
    for number in range(3):
        algorithm.update(batch(algorithm), Clock(updates=number))
    layers = len(before)
    assert len({tuple(noise.tolist()) for noise in drawn}) == len(drawn) == 3 * 2 * layers
    after = [layer.weight_sigma.detach() for layer in noisy_layers(algorithm.learned)]
    assert max(float((one - other).abs().max()) for one, other in zip(before, after, strict=True)) > 1e-3


def test_a_target_of_its_own_has_noise_of_its_own_anew_in_each_update():
    algorithm, seen = agent(learns=True, target="every_k", target_every=100), []
    for number in range(3):
        algorithm.update(batch(algorithm), Clock(updates=number))
        seen += [noisy_layers(one.critic)[0].noise.drawn[1].copy() for one in (algorithm.target, algorithm.learned)]
    for one, other in itertools.combinations(seen, 2):
        assert (one != other).any()


def test_noise_is_no_state_of_a_network():
    net = network()
    before = {name: one.clone() for name, one in net.state_dict().items()}
    draw(net, np.random.default_rng(0))
    assert {name: tuple(one.shape) for name, one in net.state_dict().items()} == {
        n: tuple(o.shape) for n, o in before.items()
    }
    assert isinstance(net, Dense)
