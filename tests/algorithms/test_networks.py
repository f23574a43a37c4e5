"""Networks on flat weights: numpy and torch agree, views are views, gradients are right."""

import numpy as np
import pytest
import torch

from mlxe_async.networks import (
    Network,
    NumpyGradients,
    NumpyNetwork,
    QuickNetwork,
    TorchNetwork,
    flatten,
    learnable,
    parameter_count,
    unflatten,
)
from mlxe_async.networks.learning import moved

SHAPES = [
    Network(4, (), {"policy": (64, 64, 2), "value": (64, 64, 1)}, input_scale=(0.5, 0.5, 5.0, 0.5)),
    Network(5, (16, 8), {"policy": (8, 3), "value": (1,)}, activation="relu"),
    Network(3, (8,), {"q": (4,)}, layer_norm=True),
]


@pytest.mark.parametrize("network", SHAPES)
def test_numpy_and_torch_compute_the_same(network):
    flat = network.initial(3)
    obs = np.random.default_rng(0).normal(size=(50, network.inputs)).astype(np.float32)
    acting, learned = NumpyNetwork(network, flat), TorchNetwork(network, flat)
    outputs = learned(torch.tensor(obs), *network.heads)
    for head, output in zip(network.heads, outputs, strict=True):
        np.testing.assert_allclose(acting(head, obs), output.detach().numpy(), atol=2e-6)


@pytest.mark.parametrize("network", SHAPES)
def test_several_versions_side_by_side_equal_each_alone(network):
    flats = np.stack([network.initial(seed) for seed in range(3)])
    obs = np.random.default_rng(0).normal(size=(3, 7, network.inputs)).astype(np.float32)
    together = NumpyNetwork(network, flats)
    for head in network.heads:
        alone = [NumpyNetwork(network, flat)(head, x) for flat, x in zip(flats, obs, strict=True)]
        np.testing.assert_allclose(together(head, obs), np.stack(alone), atol=1e-6)


@pytest.mark.parametrize("network", SHAPES)
def test_the_flat_gradient_is_the_slope_of_the_loss(network):
    learned = TorchNetwork(network, network.initial(1))
    obs = torch.tensor(np.random.default_rng(0).normal(size=(20, network.inputs)), dtype=torch.float32)

    def loss():
        return sum(output.square().mean() for output in learned(obs, *network.heads))

    loss().backward()
    gradient = learned.gradient.clone()
    direction = gradient / gradient.norm()
    step = 1e-2
    with torch.no_grad():
        learned.flat.add_(direction, alpha=step)
        above = float(loss())
        learned.flat.sub_(direction, alpha=2 * step)
        below = float(loss())
    assert (above - below) / (2 * step) == pytest.approx(float(gradient.norm()), rel=0.02)


def test_a_step_on_the_flat_weights_is_one_that_the_layers_see():
    network = SHAPES[0]
    learned = TorchNetwork(network, network.initial(1))
    before = learned.flat.clone()
    obs = torch.ones(4, 4)
    learned(obs, "value")[0].mean().backward()
    with torch.no_grad():
        learned.flat.sub_(learned.gradient, alpha=0.5)
    assert torch.equal(learned.flat, before - 0.5 * learned.gradient)
    outputs = NumpyNetwork(network, learned.flat.numpy())("value", obs.numpy())
    np.testing.assert_allclose(learned(obs, "value")[0].detach().numpy(), outputs, atol=1e-6)


def test_flat_weights_and_named_arrays_are_inverse():
    network = SHAPES[1]
    flat = network.initial(5)
    arrays = unflatten(flat, network.parameters)
    assert [array.shape for array in arrays.values()] == [shape for _, shape in network.parameters]
    np.testing.assert_array_equal(flatten(arrays, network.parameters), flat)
    assert len(flat) == parameter_count(network.parameters)
    arrays["value.0.bias"][0] = 42.0
    assert flat[-1] == 42.0


def test_a_vector_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="numbers, got 3"):
        unflatten(np.zeros(3, np.float32), SHAPES[0].parameters)


def test_the_original_shape_has_the_published_number_of_weights():
    network = Network(5, (128, 256, 128), {"policy": (64, 128, 64, 2), "value": (64, 128, 64, 1)}, activation="relu")
    assert parameter_count(network.parameters) == 116_547


def test_initial_weights_are_glorot_uniform_with_zero_biases_and_depend_on_the_seed():
    network = Network(100, (), {"policy": (200, 2)})
    arrays = unflatten(network.initial(0, {"policy": 0.01}), network.parameters)
    weight, last = arrays["policy.0.weight"], arrays["policy.1.weight"]
    assert 0.99 * np.sqrt(6 / 300) < np.abs(weight).max() <= np.sqrt(6 / 300)
    assert np.abs(last).max() <= 0.01 * np.sqrt(6 / 202)
    assert not arrays["policy.0.bias"].any()
    assert not np.array_equal(network.initial(0), network.initial(1))
    np.testing.assert_array_equal(network.initial([7, 1]), network.initial([7, 1]))


def test_loaded_weights_do_not_change_with_the_callers_buffer():
    network, buffer = SHAPES[0], SHAPES[0].initial(0)
    acting, obs = NumpyNetwork(network, buffer), np.ones((1, 4), np.float32)
    before = acting("policy", obs)
    buffer[:] = 0
    np.testing.assert_array_equal(acting("policy", obs), before)


def test_input_scales_must_fit_the_observation():
    with pytest.raises(ValueError, match="expected 1 or 4 factors, got 3"):
        Network(4, (), {"value": (1,)}, input_scale=(1.0, 2.0, 3.0))


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("common", "heads"), [((8, 6), ((2,), (1,))), ((), ((5, 2), (1,))), ((7,), ((2,), (4, 1)))])
def test_gradients_by_blocks_of_numpy_are_those_of_autograd(activation, common, heads, layer_norm, monkeypatch):
    monkeypatch.setattr(NumpyGradients, "BLOCK", 16)
    network = Network(
        3, common, dict(zip(("policy", "value"), heads, strict=True)), activation, (0.5, 1.0, 2.0), layer_norm
    )
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((53, 3)).astype(np.float32)
    slopes = {head: rng.standard_normal((50, network.heads[head][-1])).astype(np.float32) for head in network.heads}
    expected, found = (TorchNetwork(network, network.initial(1)) for _ in range(2))
    outputs = expected(torch.from_numpy(obs), "policy", "value")
    # The last three rows are evaluated alone: nothing flows back into them.
    torch.autograd.backward([out[:50] for out in outputs], [torch.from_numpy(slopes[head]) for head in network.heads])
    quick = NumpyGradients(found)
    for _ in range(2):  # a second time in the memory of the first, with one row less
        found.gradient.zero_()
        mine = quick.forward(obs)
        quick.backward(slopes)
        assert np.allclose(mine["policy"], outputs[0].detach(), atol=1e-5)
        assert np.allclose(mine["value"], outputs[1].detach(), atol=1e-5)
        assert np.allclose(found.gradient, expected.gradient, rtol=1e-4, atol=1e-4)


QUICK = Network(3, (8,), {"policy": (5, 2), "value": (1,)}, "tanh", (0.5, 1.0, 2.0))


def test_a_quick_network_is_to_a_loss_what_torchs_own_is(monkeypatch):
    """Two calls before the first way back, one of them of one head, and one in between that nobody goes back from."""
    monkeypatch.setattr(NumpyGradients, "BLOCK", 16)
    obs, other = (torch.from_numpy(np.random.default_rng(n).normal(size=(40, 3)).astype(np.float32)) for n in (0, 1))
    found = []
    for kind in (TorchNetwork, QuickNetwork):
        learned = kind(QUICK, QUICK.initial(1))
        for _ in range(2):
            learned.gradient.zero_()
            policy, value = learned(obs, "policy", "value")
            (again,) = learned(other, "value")
            with torch.no_grad():
                (judged,) = learned(other, "value")
            loss = policy.log_softmax(-1).square().mean() + (value - judged).square().mean() + again.mean() * 3
            torch.autograd.backward(loss)
        found.append((policy.detach(), value.detach(), judged, learned.gradient.clone()))
    for mine, torchs in zip(*found, strict=True):
        torch.testing.assert_close(mine, torchs, rtol=1e-4, atol=1e-5)


def test_a_quick_networks_outputs_stay_as_they_were():
    learned, obs = QuickNetwork(QUICK, QUICK.initial(1)), torch.ones(4, 3)
    (kept,) = learned(obs, "value")
    before = kept.detach().clone()
    torch.autograd.backward(kept.sum())
    learned(obs * 2, "value")
    assert torch.equal(kept.detach(), before)


def test_what_a_quick_network_cannot_is_refused_or_left_to_autograd():
    learned, plain = (kind(QUICK, QUICK.initial(1)) for kind in (QuickNetwork, TorchNetwork))
    (value,) = learned(torch.ones(4, 3), "value")
    torch.autograd.backward(value.sum(), retain_graph=True)
    with pytest.raises(RuntimeError, match=r"one backward\(\) for each call"):
        torch.autograd.backward(value.sum())
    slopes = []
    for one in (learned, plain):
        obs = torch.ones(4, 3, requires_grad=True)
        slopes += torch.autograd.grad(one(obs, "value")[0].sum(), obs)
    torch.testing.assert_close(*slopes)


def test_the_quickest_network_is_taken_that_fits():
    noisy = Network(3, (8,), {"value": (1,)}, noisy=True)
    assert type(learnable(QUICK, QUICK.initial(1))) is QuickNetwork
    assert type(learnable(noisy, noisy.initial(1))) is TorchNetwork
    kept = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert type(learnable(QUICK, QUICK.initial(1))) is TorchNetwork
    finally:
        torch.set_num_threads(kept)


def test_columns_stay_where_they_are_on_the_cpu():
    column = np.arange(3)
    here = moved({"a": (column, torch.int64), "b": (column, torch.float32)}, torch.device("cpu"))
    column[0] = 7
    assert here["a"].tolist() == [7, 1, 2]  # the very memory
    assert here["b"].tolist() == [0.0, 1.0, 2.0]
