"""Networks side by side: outputs and gradients are those of torch, one network at a time."""

import numpy as np
import pytest
import torch
from torch import nn

from mlxe_async.fast.stacked import Scratch, Stacked
from mlxe_async.networks.dense import dense
from mlxe_async.optimisers import as_one

SIZES = [((5, 4), 1), ((7,), 3), ((), 2), ((1, 6), 2)]


def made(copies, sizes, outputs, activation=nn.ReLU, inputs=3):
    """Networks, their weights and gradient on one vector each, and the stack."""
    torch.manual_seed(copies)
    networks = [dense(inputs, sizes, outputs, activation) for _ in range(copies)]
    weights, gradient = as_one([one for network in networks for one in network.parameters()])
    return networks, gradient, Stacked(networks, weights, gradient)


def autograd(networks, x, by_outputs):
    """Outputs (C, M, n), and the gradient by all weights of their sum weighted by `by_outputs`, of the first rows."""
    outputs = torch.stack([network(x) for network in networks])
    parameters = [one for network in networks for one in network.parameters()]
    rows = by_outputs.shape[1]
    return outputs, torch.autograd.grad((outputs[:, :rows] * by_outputs).sum(), parameters)


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize(("sizes", "outputs"), SIZES)
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("rows", [9, 4])
def test_outputs_and_gradients_are_torchs_also_of_fewer_rows(copies, sizes, outputs, activation, rows):
    networks, gradient, stack = made(copies, sizes, outputs, activation)
    x, by_outputs = torch.randn(9, 3), torch.randn(copies, rows, outputs)
    expected, slopes = autograd(networks, x, by_outputs)
    torch.testing.assert_close(torch.from_numpy(stack.forward(x.numpy())), expected)
    gradient.fill_(7.0)  # it is overwritten
    stack.backward(by_outputs.numpy())
    for one, slope in zip([one for network in networks for one in network.parameters()], slopes, strict=True):
        torch.testing.assert_close(one.grad, slope)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize(("sizes", "outputs"), SIZES)
@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_gradient_by_some_inputs_is_torchs(sizes, outputs, activation, first):
    networks, gradient, stack = made(2, sizes, outputs, activation)
    x, by_outputs = torch.randn(8, 3, requires_grad=True), torch.randn(2, 8, outputs)
    given = torch.stack([network(x) for network in networks])
    (expected,) = torch.autograd.grad((given * by_outputs).sum(), x)
    stack.forward(x.detach().numpy())
    before = gradient.clone()
    found = stack.by_input(by_outputs.numpy(), first)
    torch.testing.assert_close(torch.from_numpy(found), expected[:, first:])
    assert torch.equal(gradient, before)


@pytest.mark.parametrize("rows", [(9, 9), (4, 9), (9, 4)])
def test_networks_that_take_turns_may_share_the_memory_of_their_hidden_layers(rows):
    scratch, (networks, _, _), (others, _, _) = Scratch(), made(2, (5, 4), 1), made(1, (6, 4), 2)
    parameters = [one for network in networks for one in network.parameters()]
    stack, other = (
        Stacked(networks, *as_one(parameters), scratch),
        Stacked(others, as_one([*others[0].parameters()])[0]),
    )
    sharing = Stacked(others, other.weights, None, scratch)
    for own_rows, other_rows in zip(rows, reversed(rows), strict=True):
        x, y, by_outputs = torch.randn(own_rows, 3), torch.randn(other_rows, 3).numpy(), torch.randn(2, own_rows, 1)
        expected, slopes = autograd(networks, x, by_outputs)
        beside = sharing.forward(y)
        torch.testing.assert_close(torch.from_numpy(stack.forward(x.numpy())), expected)
        stack.backward(by_outputs.numpy())
        for one, slope in zip(parameters, slopes, strict=True):
            torch.testing.assert_close(one.grad, slope)
        np.testing.assert_array_equal(beside, other.forward(y))  # outputs stay, although hidden layers went
    written = scratch.tensor(0, (24,)).clone()
    sharing.forward(y + 1)
    assert not torch.equal(scratch.tensor(0, (24,)), written)


def test_weights_are_read_where_they_lie_now_and_batches_may_change_their_size():
    networks, _, stack = made(2, (5,), 1)
    for rows in (3, 8, 2, 0):
        with torch.no_grad():
            networks[1][0].weight += 1
        x = torch.randn(rows, 3)
        torch.testing.assert_close(
            torch.from_numpy(stack.forward(x.numpy())), torch.stack([network(x) for network in networks])
        )


def test_torchs_own_order_of_weights_is_as_good():
    torch.manual_seed(0)
    networks = [nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)) for _ in range(2)]
    weights, gradient = as_one([one for network in networks for one in network.parameters()])
    stack, x, by_outputs = Stacked(networks, weights, gradient), torch.randn(6, 3), torch.randn(2, 6, 2)
    expected, slopes = autograd(networks, x, by_outputs)
    torch.testing.assert_close(torch.from_numpy(stack.forward(x.numpy())), expected)
    stack.backward(by_outputs.numpy())
    for one, slope in zip([one for network in networks for one in network.parameters()], slopes, strict=True):
        torch.testing.assert_close(one.grad, slope)


def test_a_target_has_outputs_alone():
    networks = [dense(3, (5,), 1) for _ in range(2)]
    weights, _ = as_one([one for network in networks for one in network.parameters()])
    x = torch.randn(4, 3)
    found = torch.from_numpy(Stacked(networks, weights).forward(x.numpy()))
    torch.testing.assert_close(found, torch.stack([network(x) for network in networks]))


def test_memory_is_kept_from_call_to_call():
    _, _, stack = made(2, (5, 4), 1)
    first = stack.forward(np.ones((6, 3), np.float32)).ctypes.data
    assert stack.forward(np.zeros((6, 2), np.float32), np.ones((6, 1), np.float32)).ctypes.data == first
    assert np.isfinite(stack.forward(np.ones((6, 3), np.float32))).all()
