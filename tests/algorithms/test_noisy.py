"""Noisy networks: where noise is, where it is not, and that its size is learned."""

import itertools

import numpy as np
import pytest
import torch

from mlxe_async.algorithms import Acting, Clock
from mlxe_async.algorithms.mlxe.paper import MLxE, MLxESettings
from mlxe_async.networks import Network, NumpyNetwork, TorchNetwork, parameter_count, unflatten
from mlxe_async.rows import Spaces

NETWORK = Network(4, (16,), {"policy": (8, 3), "value": (1,)}, noisy=True)
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


def test_a_noisy_network_begins_with_the_published_means_and_sigmas():
    network = Network(100, (), {"policy": (400, 2)}, noisy=True)
    arrays = unflatten(network.initial(0), network.parameters)
    assert 0.099 < np.abs(arrays["policy.0.weight"]).max() <= 0.1
    assert 0.09 < np.abs(arrays["policy.0.bias"]).max() <= 0.1
    assert 0.049 < np.abs(arrays["policy.1.weight"]).max() <= 0.05
    for name in ("weight.sigma", "bias.sigma"):
        np.testing.assert_allclose(arrays[f"policy.0.{name}"], 0.05, rtol=1e-6)
        np.testing.assert_allclose(arrays[f"policy.1.{name}"], 0.025, rtol=1e-6)
    assert parameter_count(network.parameters) == 2 * parameter_count(network.means)


def test_noise_is_factorised_and_signed_roots_of_normal_numbers():
    noise = NETWORK.noise(np.random.default_rng(0))
    assert list(noise) == [name for name, _ in NETWORK.means]
    outputs = noise["common.0.bias"]
    inputs = noise["common.0.weight"][:, 0] / outputs[0]
    np.testing.assert_allclose(noise["common.0.weight"], inputs[:, None] * outputs, rtol=1e-5)
    drawn = Network(1, (), {"value": (100_000,)}, noisy=True).noise(np.random.default_rng(0))["value.0.bias"]
    assert np.square(drawn).mean() == pytest.approx(np.sqrt(2 / np.pi), abs=0.01)  # E f(x)^2 = E |x|
    assert drawn.mean() == pytest.approx(0, abs=0.01)


def test_numpy_and_torch_put_the_same_weights_together_and_keep_the_non_linearities():
    flat, noise = NETWORK.initial(1), NETWORK.noise(np.random.default_rng(7))
    learned = TorchNetwork(NETWORK, flat)
    quiet = learned(torch.tensor(OBS), "policy")[0]
    np.testing.assert_allclose(quiet.detach().numpy(), NumpyNetwork(NETWORK, flat)(OBS, "policy")[0], atol=1e-6)
    learned.resample(np.random.default_rng(7))
    loud = learned(torch.tensor(OBS), "policy")[0].detach().numpy()
    np.testing.assert_allclose(loud, NumpyNetwork(NETWORK, flat, noise)(OBS, "policy")[0], atol=1e-6)
    arrays = unflatten(flat, NETWORK.parameters)
    layers = [(f"{layer}.weight", f"{layer}.bias") for layer in ("common.0", "policy.0", "policy.1")]
    x = OBS
    for number, names in enumerate(layers):
        weight, bias = (arrays[name] + arrays[f"{name}.sigma"] * noise[name] for name in names)
        x = x @ weight + bias
        x = np.tanh(x) if number < 2 else x
    np.testing.assert_allclose(loud, x, atol=1e-5)
    assert np.abs(loud - quiet.detach().numpy()).max() > 0.05


def test_gradients_reach_the_means_and_by_the_noise_the_sigmas():
    learned = TorchNetwork(NETWORK, NETWORK.initial(1))
    learned.resample(np.random.default_rng(3))
    learned(torch.tensor(OBS), "value")[0].mean().backward()
    gradient = unflatten(learned.gradient, NETWORK.parameters)
    noise = NETWORK.noise(np.random.default_rng(3))
    for name in ("common.0.weight", "common.0.bias", "value.0.weight", "value.0.bias"):
        assert gradient[name].abs().max() > 0
        np.testing.assert_allclose(
            gradient[f"{name}.sigma"].numpy(), gradient[name].numpy() * noise[name], rtol=1e-4, atol=1e-7
        )


def test_the_stored_log_probability_is_that_under_the_noise_in_use():
    algorithm, rng = agent(), np.random.default_rng(0)
    acted = algorithm.act(OBS, rng, Acting())
    stored = acted["log_prob"]
    np.testing.assert_allclose(algorithm.behaviour_log_prob(OBS, acted["action"]), stored, atol=1e-6)
    logits = NumpyNetwork(algorithm.shape, algorithm._flat, algorithm.shape.noise(np.random.default_rng(0)))
    scores = logits(OBS, "policy")[0]
    expected = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    np.testing.assert_allclose(stored, expected[np.arange(50), acted["action"]], atol=1e-5)
    algorithm.load(algorithm._flat)  # without noise again
    assert np.abs(algorithm.behaviour_log_prob(OBS, acted["action"]) - stored).max() > 1e-3


def logits_at(algorithm, rng, clock):
    algorithm.act(OBS[:1], rng, clock)
    return algorithm._behaving(OBS, "policy")[0]


@pytest.mark.parametrize("every", [0, 3])
def test_noise_is_drawn_at_a_rollouts_start_with_new_weights_and_every_so_many_steps(every):
    algorithm, rng = agent(noise_every=every), np.random.default_rng(0)
    clock, seen = Acting(steps=40), []
    for _ in range(7):
        seen.append(logits_at(algorithm, rng, clock))
        clock.steps += 1
    changes = [bool((a != b).any()) for a, b in itertools.pairwise(seen)]
    assert changes == ([False] * 6 if every == 0 else [False, False, True, False, False, True])
    clock.rollouts += 1
    assert (logits_at(algorithm, rng, clock) != seen[-1]).any()
    before = logits_at(algorithm, rng, clock)
    algorithm.load(algorithm._flat)
    after = logits_at(algorithm, rng, clock)
    assert (after != before).any()
    assert (after != algorithm.outputs(OBS, "policy")[0]).any()


def test_weights_that_were_loaded_are_acted_by_though_their_memory_is_written_to():
    """A reader's buffer is the next version's: noise that is drawn later belongs to the weights of now."""
    algorithm = agent(noise_every=1)
    buffer = algorithm._flat.copy()
    algorithm.load(buffer)
    expected = [logits_at(algorithm, np.random.default_rng(3), Acting(steps=step)) for step in range(3)]
    algorithm.load(buffer)
    buffer[:] = 0
    found = [logits_at(algorithm, np.random.default_rng(3), Acting(steps=step)) for step in range(3)]
    np.testing.assert_array_equal(found, expected)


def test_the_same_rollout_begun_again_meets_the_same_noise():
    actions = [agent(noise_every=2).act(OBS, np.random.default_rng(4), Acting(9))["action"] for _ in range(2)]
    np.testing.assert_array_equal(*actions)


def test_tests_and_appraisals_know_no_noise():
    algorithm = agent()
    rows = batch(algorithm)
    quiet, judged = algorithm.greedy(OBS), algorithm.appraise(rows)
    plain = NumpyNetwork(algorithm.shape, algorithm._flat)(OBS, "policy")[0].argmax(-1)
    for number in range(20):
        algorithm.act(OBS, np.random.default_rng(number), Acting(rollouts=number))
        np.testing.assert_array_equal(algorithm.greedy(OBS), quiet)
        np.testing.assert_array_equal(algorithm.appraise(rows)["return"], judged["return"])
    np.testing.assert_array_equal(quiet, plain)
    flats = np.stack([algorithm._flat] * 2)
    np.testing.assert_array_equal(algorithm.greedy_many(flats, np.stack([OBS, OBS])), [plain, plain])


def test_an_update_draws_noise_for_both_networks_and_learns_the_sigmas():
    algorithm = agent(learns=True, target="per_iteration", correction="none", learning_rate=0.01, optimiser="adam")
    drawn = []
    for network in (algorithm.network, algorithm.target):
        network.resample = lambda rng, network=network: (
            TorchNetwork.resample(network, rng),
            drawn.append(network._noise["policy.0.bias"]),
        )
    before = algorithm.weights()
    for number in range(3):
        algorithm.update(batch(algorithm), Clock(updates=number))
    assert len({tuple(noise.tolist()) for noise in drawn}) == len(drawn) == 6
    sigmas = slice(algorithm._weights // 2, None)
    assert np.abs(algorithm.weights()[sigmas] - before[sigmas]).max() > 1e-3


def test_a_target_of_its_own_has_noise_of_its_own_anew_in_each_update():
    algorithm, seen = agent(learns=True, target="every_k", target_every=100), []
    for number in range(3):
        algorithm.update(batch(algorithm), Clock(updates=number))
        seen += [one._noise["value.0.bias"].numpy().copy() for one in (algorithm.target, algorithm.network)]
    for one, other in itertools.combinations(seen, 2):
        assert (one != other).any()
