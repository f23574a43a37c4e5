"""The layers that authors put networks together from."""

import numpy as np
import pytest
import torch
from torch import nn

from mlxe_async.networks.bodies import Normaliser, body, dense, elu_stack, nature, orthogonal, small
from mlxe_async.parts import Part
from mlxe_async.rows import Spaces

RNG = np.random.default_rng(0)


def test_dense_layers_end_with_or_without_a_linear_one():
    net = dense(4, (8, 6), 2, nn.Tanh)
    assert [type(layer).__name__ for layer in net] == ["Linear", "Tanh", "Linear", "Tanh", "Linear"]
    assert net(torch.zeros(3, 4)).shape == (3, 2)
    assert dense(4, (8,))(torch.zeros(3, 4)).shape == (3, 8)


def test_orthogonal_weights_have_their_gain():
    net = orthogonal(dense(6, (6,), 6), last=0.01)
    for layer, gain in ((net[0], 2**0.5), (net[2], 0.01)):
        torch.testing.assert_close(layer.weight @ layer.weight.T, gain**2 * torch.eye(6), atol=1e-5, rtol=1e-4)
        assert not layer.bias.any()


@pytest.mark.parametrize(
    ("make", "image", "outputs"),
    [(nature, (4, 84, 84), 3136), (small, (4, 10, 10), 16 * 64), (elu_stack, (3, 42, 42), 32 * 9)],
)
def test_pictures_of_bytes_are_numbers_from_0_to_1(make, image, outputs):
    net = make(image)
    assert net.outputs == outputs
    pictures = torch.from_numpy(RNG.integers(0, 256, (2, *image), np.uint8))
    torch.testing.assert_close(net(pictures), net(pictures.float() / 255))
    torch.testing.assert_close(net(pictures.flatten(1)), net(pictures))


def test_a_picture_that_convolutions_leave_nothing_of_is_refused():
    with pytest.raises(ValueError, match=r"pictures \(1, 8, 8\): too small"):
        nature((1, 8, 8))


def test_a_body_takes_numbers_pictures_and_parts_but_no_mask():
    assert body(Spaces((5,), actions=2)).outputs == 5
    assert body(Spaces((4, 84, 84), "|u1", actions=2)).outputs == 3136
    parts = (
        Part("pos.x", (2,), "<f4", 0),
        Part("eye.left", (2, 10, 10), "|u1", 8),
        Part("action_mask", (3,), "|u1", 208),
    )
    spaces = Spaces((212,), "|u1", actions=3, parts=parts, masked=True)
    net = body(spaces)
    assert net.outputs == 2 + 16 * 64
    shown = {
        "pos.x": np.array([[1.0, -2.0]], np.float32),
        "eye.left": RNG.integers(0, 256, (1, 2, 10, 10), np.uint8),
        "action_mask": np.ones((1, 3), np.uint8),
    }
    first = net(torch.from_numpy(spaces.pack(shown)))
    assert first[0, :2].tolist() == [1.0, -2.0]
    shown["action_mask"][:] = 0
    torch.testing.assert_close(net(torch.from_numpy(spaces.pack(shown))), first)
    shown["eye.left"] += 1
    assert not torch.equal(net(torch.from_numpy(spaces.pack(shown))), first)
    assert body(spaces, lambda image: small(image)).outputs == net.outputs


def test_a_normaliser_counts_rows_once_whatever_the_pieces():
    rows = torch.from_numpy(RNG.normal(3, [1.0, 20.0, 0.1], (1000, 3)))
    whole, pieces = Normaliser(3), Normaliser(3)
    torch.testing.assert_close(whole(rows[:5].float() / 100), rows[:5].float() / 100)
    whole.count(rows)
    for piece in rows.split([1, 9, 0, 490, 500]):
        pieces.count(piece.numpy())
    for one in (whole, pieces):
        torch.testing.assert_close(one.mean, rows.mean(0))
        torch.testing.assert_close(one.variance, rows.var(0, correction=0))
        assert one.rows == 1000
    shown = whole(rows.float())
    torch.testing.assert_close(shown.std(0, correction=0), torch.ones(3), atol=1e-3, rtol=1e-3)
    assert whole(torch.full((1, 3), 1e9)).max() == 10
    assert {name for name, _ in whole.named_buffers()} == {"mean", "variance", "rows"}


ODD = {
    "a hook": lambda made: made[0].register_forward_hook(lambda _module, _given, found: 2 * found),
    "a hook on all": lambda made: made.register_forward_pre_hook(lambda _module, given: (given[0] + 1,)),
    "a forward of its own": lambda made: setattr(made[1], "forward", lambda x: x.abs()),
    "another layer": lambda made: made.__setitem__(1, torch.nn.ELU()),
    "other weights": lambda made: setattr(made[0], "weight", torch.nn.Parameter(torch.ones(5, 3))),
    "weights that were changed in place": lambda made: made[2].bias.data.add_(1),
}


@pytest.mark.parametrize("change", ODD)
@pytest.mark.parametrize("when", ["before", "after"])
def test_layers_give_arrays_what_they_give_tensors_whatever_is_attached_to_them(change, when):
    made, x = dense(3, (5,), 2), np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    plain = made(x)
    np.testing.assert_allclose(plain, made(torch.as_tensor(x)).detach(), rtol=1e-5, atol=1e-6)
    other = dense(3, (5,), 2)
    other.load_state_dict(made.state_dict())
    made = made if when == "after" else other
    ODD[change](made)
    found = made(x)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, made(torch.as_tensor(x)).detach(), rtol=1e-5, atol=1e-6)
    assert np.abs(found - plain).max() > 1e-2


def test_a_hook_on_all_modules_is_heard_by_layers_of_arrays():
    made, heard = dense(3, (5,), 2), []
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, _given, _found: heard.append(module))
    try:
        made(np.zeros((1, 3), np.float32))
    finally:
        hook.remove()
    assert made in heard
    heard.clear()
    made(np.zeros((1, 3), np.float32))
    assert not heard


def test_a_large_mean_beside_a_small_deviation_is_taken_off_alike_by_numpy_and_by_torch():
    rng = np.random.default_rng(0)
    rows = (np.array([2359.0, 1e6, 0.5]) + rng.standard_normal((500, 3)) * np.array([0.03, 0.3, 1.0])).astype("f4")
    seen = Normaliser(3)
    seen.count(rows)
    np.testing.assert_allclose(seen(torch.from_numpy(rows)).numpy(), seen(rows), rtol=0, atol=1e-6)
