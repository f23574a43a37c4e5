"""Dense networks: numpy and torch agree, gradients by hand are those of autograd, flat vectors have names."""

import numpy as np
import pytest
import torch
from torch import nn

from mlxe_async.fast.dense import NumpyGradients
from mlxe_async.networks import flatten, parameter_count, unflatten
from mlxe_async.networks.dense import Dense, dense, glorot, orthogonal
from mlxe_async.networks.seen import dense_parameters
from mlxe_async.networks.tensors import moved, tensor_type

OBS = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
KINDS = [
    {"sizes": (64, 64), "outputs": 2, "activation": nn.Tanh},
    {"sizes": (8,), "outputs": 3},
    {"sizes": (8, 6), "outputs": 4, "layer_norm": True},
    {"sizes": (8,), "activation": nn.Tanh, "layer_norm": True},
    {"sizes": (), "outputs": 5},
    {"sizes": ()},
]


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_come_to_what_tensors_come_to(kind):
    net = dense(4, **kind)
    expected, given = net(torch.from_numpy(OBS)).detach().numpy(), OBS.copy()
    np.testing.assert_allclose(net(OBS), expected, atol=2e-6)
    np.testing.assert_allclose(net(OBS.reshape(5, 10, 4)), expected.reshape(5, 10, -1), atol=2e-6)
    np.testing.assert_array_equal(OBS, given)  # what is given stays
    assert net.outputs == expected.shape[-1]


LAYERS = {
    "affine norm": lambda: (nn.Linear(4, 8), nn.LayerNorm(8, eps=0.1), nn.Sigmoid()),
    "elu": lambda: (nn.Linear(4, 8, bias=False), nn.ELU(0.5), nn.Linear(8, 2)),
    "networks within": lambda: (nn.Sequential(nn.Linear(4, 8), nn.Tanh()), Dense(nn.Linear(8, 2))),
    "flattened": lambda: (nn.Identity(), nn.Flatten(), nn.Linear(4, 3)),
    "no layers known": lambda: (nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_any_layers_take_arrays_as_well_as_tensors(name):
    torch.manual_seed(0)
    net = Dense(*LAYERS[name]())
    np.testing.assert_allclose(net(OBS), net(torch.from_numpy(OBS)).detach().numpy(), atol=2e-6)
    assert (vars(net)["_views"].steps is None) == (name == "no layers known")


def test_options_of_layers_that_change_are_heeded():
    net = Dense(nn.Linear(4, 8), nn.LayerNorm(8), nn.ELU())
    for change in (lambda: setattr(net[1], "eps", 3.0), lambda: setattr(net[2], "alpha", 0.1)):
        before = net(OBS)
        change()
        np.testing.assert_allclose(net(OBS), net(torch.from_numpy(OBS)).detach().numpy(), atol=2e-6)
        assert np.abs(net(OBS) - before).max() > 1e-2


def test_arrays_that_do_not_fit_are_refused_in_torchs_words():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        dense(4, (8,), 2)(OBS[:, :3])


def test_weights_that_change_in_place_or_are_others_are_evaluated():
    net = dense(4, (8,), 2)
    for change in (
        lambda: net[0].weight.data.mul_(2),
        lambda: setattr(net[2], "weight", nn.Parameter(torch.randn(2, 8))),
        lambda: setattr(net[0].bias, "data", torch.randn(8)),
        lambda: net.__setitem__(1, nn.Tanh()),
        lambda: net.register_forward_hook(lambda _module, _given, found: 3 * found),
        lambda: net[0].register_forward_pre_hook(lambda _module, given: (given[0] + 1,)),
        lambda: setattr(net[1], "forward", lambda x: x.sin()),
        lambda: net.append(nn.Softplus()),
    ):
        before = net(OBS)
        change()
        np.testing.assert_allclose(net(OBS), net(torch.from_numpy(OBS)).detach().numpy(), atol=2e-6)
        assert np.abs(net(OBS) - before).max() > 1e-3


def test_a_hook_on_all_modules_and_another_way_of_a_type_are_evaluated(monkeypatch):
    net = dense(4, (8,), 2)
    before = net(OBS)
    hook = nn.modules.module.register_module_forward_hook(lambda _module, _given, found: 2 * found)
    try:
        np.testing.assert_allclose(net(OBS), net(torch.from_numpy(OBS)).detach().numpy(), atol=2e-6)
        assert np.abs(net(OBS) - before).max() > 1e-3
    finally:
        hook.remove()
    np.testing.assert_array_equal(net(OBS), before)
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: x.cos())
    assert np.abs(net(OBS) - before).max() > 1e-3


def test_what_takes_no_hook_any_more_is_evaluated_by_numpy_again():
    net = dense(4, (8,), 2)
    hook = net.register_forward_hook(lambda _module, _given, found: 3 * found)
    net(OBS)
    assert vars(net)["_views"].steps is None
    hook.remove()
    net(OBS)
    assert vars(net)["_views"].steps is not None


def test_layers_of_bfloat16_say_the_same_whatever_they_are_given():
    net = dense(4, (64,), 2)
    exact = net(OBS)
    net.precision = "bfloat16"
    coarse = net(OBS)
    assert coarse.dtype == np.float32
    assert 0 < np.abs(coarse - exact).max() < 0.05 * np.abs(exact).max() + 0.02
    np.testing.assert_array_equal(coarse, net(torch.from_numpy(OBS)).detach().numpy())


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_what_layers_hold_is_told_without_torch(layer_norm, noisy):
    from mlxe_async.networks.noisy import NoisyLinear

    net = dense(4, (8, 6), 2, layer_norm=layer_norm, linear=NoisyLinear if noisy else None)
    told = dense_parameters("net", 4, (8, 6), 2, layer_norm=layer_norm, noisy=noisy)
    assert told == tuple((f"net.{name}", tuple(one.shape)) for name, one in net.named_parameters())


def test_a_layer_that_is_too_large_is_refused_before_it_is_made():
    told = "common: expected at most 268,435,456 weights in a layer, got 100000000 x 64; show smaller observations"
    with pytest.raises(ValueError, match=told):
        dense_parameters("common", 10**8, (64,))


def test_flat_vectors_and_named_arrays_are_inverse():
    parameters = (("a", (2, 3)), ("b", (3,)))
    flat = np.arange(9, dtype=np.float32)
    arrays = unflatten(flat, parameters)
    assert [array.shape for array in arrays.values()] == [(2, 3), (3,)]
    np.testing.assert_array_equal(flatten(arrays, parameters), flat)
    assert parameter_count(parameters) == 9
    arrays["b"][2] = 42.0
    assert flat[-1] == 42.0
    with pytest.raises(ValueError, match="numbers, got 3"):
        unflatten(np.zeros(3, np.float32), parameters)


def test_first_weights_are_glorot_uniform_or_orthogonal_with_zero_biases():
    net = glorot(dense(100, (200,), 2), 0.01)
    first, last = net[0].weight.detach(), net[2].weight.detach()
    assert 0.99 * np.sqrt(6 / 300) < float(first.abs().max()) <= np.sqrt(6 / 300)
    assert float(last.abs().max()) <= 0.01 * np.sqrt(6 / 202)
    assert not net[0].bias.detach().any()
    last = orthogonal(dense(16, (8,), 3), last=0.1)[2].weight.detach()
    torch.testing.assert_close(last @ last.T, 0.01 * torch.eye(3), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize(("common", "heads"), [((8, 6), ((), ())), ((), ((5,), ())), ((7,), ((), (4,)))])
def test_gradients_by_blocks_of_numpy_are_those_of_autograd(activation, common, heads, layer_norm, monkeypatch):
    monkeypatch.setattr(NumpyGradients, "BLOCK", 16)
    more, width = {"activation": activation, "layer_norm": layer_norm}, common[-1] if common else 3
    shared = dense(3, common, **more)
    nets = {"policy": dense(width, heads[0], 2, **more), "value": dense(width, heads[1], 1, **more)}
    leaves = [leaf for one in (shared, *nets.values()) for leaf in one.parameters()]
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((53, 3)).astype(np.float32)
    slopes = {name: rng.standard_normal((50, one.outputs)).astype(np.float32) for name, one in nets.items()}
    outputs = {name: one(shared(torch.from_numpy(obs))) for name, one in nets.items()}
    # The last three rows are evaluated alone: nothing flows back into them.
    torch.autograd.backward([out[:50] for out in outputs.values()], [torch.from_numpy(slopes[name]) for name in nets])
    expected = [leaf.grad.clone() for leaf in leaves]
    quick = NumpyGradients(nets, shared)
    for fresh in (False, True):  # a second time in the memory of the first
        for leaf in leaves:
            leaf.grad.fill_(7.0 if fresh else 0.0)
        mine = quick.forward(obs)
        quick.backward(slopes, fresh=fresh)
        for name, out in outputs.items():
            np.testing.assert_allclose(mine[name], out.detach(), atol=1e-5)
        for leaf, slope in zip(leaves, expected, strict=True):
            torch.testing.assert_close(leaf.grad, slope, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("widths", [((8, 6), ((), ())), ((), ((5,), ()))])
@pytest.mark.parametrize("fresh", [False, True])
def test_ways_through_a_network_are_kept_for_some_numbers_of_rows_and_laid_down_anew_for_others(
    widths, fresh, monkeypatch
):
    monkeypatch.setattr(NumpyGradients, "BLOCK", 16)
    monkeypatch.setattr(NumpyGradients, "WAYS", 5)
    common, heads = widths
    shared = dense(3, common, activation=nn.Tanh)
    nets = {name: dense(common[-1] if common else 3, heads[k], 2 - k) for k, name in enumerate(("policy", "value"))}
    leaves = [leaf for one in (shared, *nets.values()) for leaf in one.parameters()]
    for leaf in leaves:
        leaf.grad = torch.zeros_like(leaf)
    quick, rng = NumpyGradients(nets, shared), np.random.default_rng(0)
    for rows, names in ((20, ["policy", "value"]), (50, ["value"]), (9, ["policy"]), (0, ["policy", "value"])) * 2:
        obs = rng.standard_normal((rows, 3)).astype(np.float32)
        slopes = {name: rng.standard_normal((rows, nets[name].outputs)).astype(np.float32) for name in names}
        found = [nets[name](shared(torch.from_numpy(obs))) for name in names]
        expected = torch.autograd.grad(
            found, leaves, [torch.from_numpy(slopes[name]) for name in names], allow_unused=True
        )
        for leaf in leaves:
            leaf.grad.fill_(3.0)
        outputs = quick.forward(obs)
        quick.backward(slopes, fresh=fresh)
        assert len(quick._ways) <= NumpyGradients.WAYS
        for name, output in zip(names, found, strict=True):
            np.testing.assert_allclose(outputs[name], output.detach(), atol=1e-5)
        for leaf, slope in zip(leaves, expected, strict=True):
            added = torch.zeros_like(leaf) if slope is None else slope
            torch.testing.assert_close(leaf.grad, added if fresh else added + 3, rtol=1e-4, atol=1e-4)


def test_types_follow_the_column():
    """Continuous actions 0.9 and -0.7 stay what they are; whole numbers stay whole, whatever their name."""
    columns = {
        "action": (np.array([0.9, -0.7], np.float32), torch.float32),
        "reward": (np.array([0.5, 1.0]), torch.float32),
        "order": (np.array([3, 1], np.int32), torch.int64),
        "valid": (np.array([True, False]), torch.bool),
        "pixels": (np.array([[0, 255]], np.uint8), torch.uint8),
        "episode": (np.array([2, 2**31], np.uint32), torch.int64),
    }
    for name, (column, dtype) in columns.items():
        assert tensor_type(name, column) == dtype, name
    with pytest.raises(TypeError, match="column words: expected numbers"):
        tensor_type("words", np.array(["a"]))


def test_columns_stay_where_they_are_on_the_cpu():
    column = np.arange(3)
    here = moved({"a": (column, torch.int64), "b": (column, torch.float32)}, torch.device("cpu"))
    column[0] = 7
    assert here["a"].tolist() == [7, 1, 2]  # the very memory
    assert here["b"].tolist() == [0.0, 1.0, 2.0]
