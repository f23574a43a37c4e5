"""Convolutions, dense layers and ReLU differentiated by hand: outputs and gradients are those of torch."""

import numpy as np
import pytest
import torch
from torch import nn

from mlxe_async.fast.convolved import ByHand
from mlxe_async.fast.pictures import ByAutograd, PictureGradients
from mlxe_async.fast.quick import quick_of
from mlxe_async.networks import bodies
from mlxe_async.networks.convolutions import Pictures, Pixels, elu_stack, nature, small
from mlxe_async.networks.dense import dense
from mlxe_async.optimisers import as_one
from mlxe_async.rows import Spaces

SHAPES = {
    "first": ((2, 44, 44), nature),
    "last": ((44, 44, 3), nature),
    "one": ((44, 44), nature),
    "padded": ((3, 10, 10), lambda image: Pictures(image, Pixels(3, 4, 3, 2, padding=1), nn.ReLU())),
    "grid": ((4, 10, 10), small),
    "not of tiles": ((1, 47, 45), nature),
}
SIZES = {"one head": ({"q": ((16,), 3)}, None), "two": ({"actor": ((), 3), "critic": ((5,), 1)}, (16, 8))}


def made(shape, convolutions, heads, common):
    """A body, its heads, what they share, and the gradient of all weights."""
    torch.manual_seed(1)
    see = bodies.Body(Spaces(shape, "|u1", actions=3), convolutions)
    shared = None if common is None else dense(see.outputs, common)
    width = see.outputs if common is None else common[-1]
    heads = {name: dense(width, sizes, outputs) for name, (sizes, outputs) in heads.items()}
    modules = [see, *heads.values(), *([] if shared is None else [shared])]
    _, gradient = as_one([one for module in modules for one in module.parameters()])
    return see, heads, shared, gradient


def torchs(see, heads, common):
    """The same network, differentiated by torch."""

    def evaluated(seen, names):
        features = see(seen) if common is None else common(see(seen))
        return [heads[name](features) for name in names]

    weights = [leaf for one in (see, *heads.values(), common) if one is not None for leaf in one.parameters()]
    return PictureGradients(ByAutograd(evaluated, weights), {name: one.outputs for name, one in heads.items()})


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("graded", "fresh"), [(9, False), (5, True)])
def test_outputs_and_gradients_are_torchs_whatever_is_shown_in_however_many_blocks(
    sizes, shape, graded, fresh, monkeypatch
):
    monkeypatch.setattr(PictureGradients, "BLOCK", 4)
    see, heads, common, gradient = made(*SHAPES[shape], *SIZES[sizes])
    quick, own = quick_of("cpu", see, heads, common), torchs(see, heads, common)
    assert type(quick._network) is ByHand
    rng = np.random.default_rng(2)
    obs = rng.integers(0, 256, (9, *see._spaces.observation_shape), dtype=np.uint8)
    by_outputs = {name: rng.normal(size=(graded, one.outputs)).astype(np.float32) for name, one in heads.items()}
    found = {}
    for one in (quick, own):
        outputs = one.forward(obs[:graded], obs[graded:])
        gradient.fill_(1.0)  # it is added to, or overwritten
        one.backward(by_outputs, fresh=fresh)
        found[one] = outputs, gradient.clone(), one.outputs(obs, [*heads])
    for name, values in found[own][0].items():
        np.testing.assert_allclose(found[quick][0][name], values, rtol=1e-4, atol=1e-5)
    for mine, expected in zip(found[quick][2], found[own][2], strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)
    far = (found[quick][1] - found[own][1]).norm() / (found[own][1] - float(not fresh)).norm()
    assert far < 1e-5


@pytest.mark.parametrize("way", [quick_of, lambda _device, *network: torchs(*network)])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_fresh_gradient_is_what_is_added_to_none(way, shape, monkeypatch):
    monkeypatch.setattr(PictureGradients, "BLOCK", 4)
    see, heads, common, gradient = made(*SHAPES[shape], *SIZES["one head"])
    quick, rng, found = way("cpu", see, heads, common), np.random.default_rng(4), []
    obs = rng.integers(0, 256, (9, *see._spaces.observation_shape), dtype=np.uint8)
    by_outputs = {name: rng.normal(size=(9, one.outputs)).astype(np.float32) for name, one in heads.items()}
    for fresh in (True, False):
        gradient.fill_(np.nan if fresh else 0.0)
        quick.forward(obs)
        quick.backward(by_outputs, fresh=fresh)
        found.append(gradient.clone())
    torch.testing.assert_close(*found)


def test_gradients_by_the_outputs_stay_as_they_were_given():
    see, heads, common, _ = made(*SHAPES["grid"], *SIZES["one head"])
    quick = quick_of("cpu", see, heads, common)
    obs, by_q = np.ones((3, 4, 10, 10), np.uint8), np.ones((3, 3), np.float32)
    quick.forward(obs)
    quick.backward({"q": by_q})
    assert (by_q == 1).all()


def grouped():
    return Pictures((2, 44, 44), Pixels(2, 4, 8, 4), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.ReLU())


LEFT = {
    "elu": lambda: elu_stack((2, 44, 44)),
    "groups": grouped,
    "dilation": lambda: Pictures((2, 44, 44), Pixels(2, 4, 8, 4), nn.ReLU(), nn.Conv2d(4, 4, 3, dilation=2), nn.ReLU()),
    "no biases": lambda: Pictures(
        (2, 44, 44), Pixels(2, 4, 8, 4), nn.ReLU(), nn.Conv2d(4, 4, 3, bias=False), nn.ReLU()
    ),
    "nothing between": lambda: Pictures((2, 44, 44), Pixels(2, 4, 8, 4), nn.Conv2d(4, 4, 3)),
    "no pixels": lambda: Pictures((2, 44, 44), nn.Conv2d(2, 4, 8, 4), nn.ReLU()),
    "half precision": lambda: Pictures((2, 44, 44), Pixels(2, 4, 8, 4), nn.ReLU(), precision="bfloat16"),
}


@pytest.mark.parametrize("what", LEFT)
def test_other_convolutions_are_left_to_torch(what):
    see, heads, common, _ = made((2, 44, 44), lambda _image: LEFT[what](), *SIZES["one head"])
    assert not ByHand.knows(see, heads, common)


@pytest.mark.parametrize("layers", [dense(4, (3,), 2, nn.Tanh), dense(4, (3,), 2, layer_norm=True)])
def test_other_dense_layers_are_left_to_torch(layers):
    see, heads, common, _ = made(*SHAPES["grid"], *SIZES["two"])
    assert ByHand.knows(see, heads, common)
    assert not ByHand.knows(see, heads | {"actor": layers}, common)


def test_what_is_not_one_picture_alone_is_left_to_torch():
    see, heads, common, _ = made(*SHAPES["grid"], *SIZES["one head"])
    scaled = bodies.Body(Spaces((1, 10, 10), "|u1", actions=3), small, scale=[0.5] * 100)
    vector = bodies.Body(Spaces((4,), actions=3))
    assert see.whole_picture is not None
    assert scaled.whole_picture is vector.whole_picture is None
    assert not ByHand.knows(scaled, heads, common)
