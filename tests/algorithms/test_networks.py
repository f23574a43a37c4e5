"""Networks on flat weights: numpy and torch agree, views are views, gradients are right."""

import copy

import numpy as np
import pytest
import torch

from mlxe_async.fast.dense import NumpyGradients
from mlxe_async.networks import (
    Network,
    NumpyNetwork,
    TorchNetwork,
    flatten,
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
        np.testing.assert_allclose(acting(obs, head)[0], output.detach().numpy(), atol=2e-6)


@pytest.mark.parametrize("network", SHAPES)
def test_several_versions_side_by_side_equal_each_alone(network):
    flats = np.stack([network.initial(seed) for seed in range(3)])
    obs = np.random.default_rng(0).normal(size=(3, 7, network.inputs)).astype(np.float32)
    together = NumpyNetwork(network, flats)
    for head in network.heads:
        alone = [NumpyNetwork(network, flat)(x, head)[0] for flat, x in zip(flats, obs, strict=True)]
        np.testing.assert_allclose(together(obs, head)[0], np.stack(alone), atol=1e-6)


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
    outputs = NumpyNetwork(network, learned.flat.numpy())(obs.numpy(), "value")[0]
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
    before = acting(obs, "policy")[0]
    buffer[:] = 0
    np.testing.assert_array_equal(acting(obs, "policy")[0], before)


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


def test_types_follow_the_column():
    """Continuous actions 0.9 and -0.7 stay what they are; whole numbers stay whole, whatever their name."""
    learned = TorchNetwork(SHAPES[0], SHAPES[0].initial(0))
    columns = {
        "action": (np.array([0.9, -0.7], np.float32), torch.float32),
        "reward": (np.array([0.5, 1.0]), torch.float32),
        "order": (np.array([3, 1], np.int32), torch.int64),
        "valid": (np.array([True, False]), torch.bool),
        "pixels": (np.array([[0, 255]], np.uint8), torch.uint8),
        "episode": (np.array([2, 2**31], np.uint32), torch.int64),
    }
    found = learned.tensors({name: column for name, (column, _) in columns.items()})
    for name, (column, dtype) in columns.items():
        assert found[name].dtype == dtype, name
        np.testing.assert_array_equal(found[name].numpy(), column.astype(found[name].numpy().dtype))
    with pytest.raises(TypeError, match="column words: expected numbers"):
        learned.tensors({"words": np.array(["a"])})


def test_weights_that_are_frozen_stay():
    learned = TorchNetwork(SHAPES[0], SHAPES[0].initial(0))
    name = next(iter(learned.leaves))
    learned.leaves[name].requires_grad_(False)
    loss = learned(torch.ones(3, 4), "policy")[0].square().sum()
    loss.backward()
    assert not learned.leaves[name].grad.any()
    assert learned.gradient.any()


def test_columns_stay_where_they_are_on_the_cpu():
    column = np.arange(3)
    here = moved({"a": (column, torch.int64), "b": (column, torch.float32)}, torch.device("cpu"))
    column[0] = 7
    assert here["a"].tolist() == [7, 1, 2]  # the very memory
    assert here["b"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (
            lambda: Network(10**8, (64,), {"q": (2,)}),
            "common: expected at most 268,435,456 weights in a layer, got 100000000 x 64",
        ),
        (lambda: Network(10**8, (), {"q": (64, 2)}), "q: expected at most"),
        (
            lambda: Network(10**8, (512,), {"q": (2,)}, body="nature", image=(4, 5000, 5000)),
            "common: expected at most .* show smaller observations, or take smaller layers",
        ),
    ],
)
def test_a_layer_that_is_too_large_is_refused_before_it_is_made(network, words):
    with pytest.raises(ValueError, match=words):
        network()


def module():
    network = SHAPES[0]
    return TorchNetwork(network, network.initial(3)), torch.randn(6, network.inputs), next(iter(network.heads))


def test_a_learned_network_is_a_module_whose_parameters_are_its_flat_weights():
    learned, obs, head = module()
    assert sum(one.numel() for one in learned.parameters()) == len(learned.flat)
    learned(obs, head)[0].square().mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(learned.parameters(), 1e9)
    torch.testing.assert_close(norm, learned.gradient.norm())
    before = learned.flat.clone()
    torch.optim.SGD(learned.parameters(), 0.5).step()
    torch.testing.assert_close(learned.flat, before - 0.5 * learned.gradient)


@pytest.mark.parametrize("clear", [lambda one: one.zero_grad(), lambda one: one.zero_grad(set_to_none=True)])
def test_a_new_gradient_lies_in_the_flat_one_again(clear):
    learned, obs, head = module()
    learned(obs, head)[0].sum().backward()
    first = learned.gradient.clone()
    clear(learned)
    assert not learned.gradient.any()
    learned(obs, head)[0].sum().backward()
    torch.testing.assert_close(learned.gradient, first)


def test_a_copy_of_a_learned_network_goes_its_own_way_and_keeps_what_is_frozen():
    learned, obs, head = module()
    next(learned.parameters()).requires_grad_(False)
    copied = copy.deepcopy(learned)
    assert [one.requires_grad for one in copied.parameters()] == [one.requires_grad for one in learned.parameters()]
    copied(obs, head)[0].sum().backward()
    assert copied.gradient.any()
    assert not learned.gradient.any()
    copied.put(np.zeros(len(learned.flat), np.float32))
    assert learned.flat.any()
    copied.follow(learned, 0.25)
    torch.testing.assert_close(copied.flat, 0.25 * learned.flat)


def test_a_learned_network_of_another_type_is_still_one_vector():
    learned, obs, head = module()
    expected = learned(obs, head)[0].detach()
    assert learned.double() is learned
    torch.testing.assert_close(learned(obs.double(), head)[0].detach(), expected.double(), atol=1e-5, rtol=1e-5)
    learned(obs.double(), head)[0].sum().backward()
    assert learned.gradient.dtype == torch.float64
    assert learned.gradient.any()


def test_a_parameter_that_is_no_view_is_refused_and_another_name_of_one_is_not():
    learned, _, _ = module()
    name, leaf = next(iter(learned.named_parameters()))
    with pytest.raises(AttributeError, match="views on one vector"):
        setattr(learned, name, torch.nn.Parameter(torch.zeros_like(leaf)))
    learned.shared = leaf
    assert len(list(learned.parameters())) == len(learned.leaves)


def test_the_state_of_a_learned_network_goes_into_another():
    learned, _, _ = module()
    other = TorchNetwork(SHAPES[0], SHAPES[0].initial(4))
    other.load_state_dict(learned.state_dict())
    torch.testing.assert_close(other.flat, learned.flat, rtol=0, atol=0)
