"""Networks that look at pictures: convolutions, then the layers of a `Network`; all of it computed by torch.

Where an observation has several parts, each picture has convolutions of its own; numbers stand beside their features.

Pictures arrive as they are stored, flattened bytes, and become numbers on the device they are computed on; the 1/255
that brings them to [0, 1] is multiplied into the first layer, which is smaller. The body `"nature"` is that of Mnih et
al. 2015: 32 of 8 x 8 every 4 pixels, 64 of 4 x 4 every 2, 64 of 3 x 3. Its first convolution is computed as one of
2 x 2 over tiles of 4 x 4 pixels, whose 16 pixels are channels: the same sums, but processors are made for many
channels, not for four. Channels are the last axis in memory, weights included. With `precision = "bfloat16"` layers are
computed in bfloat16 from weights that are kept, added to and published in float32; what the heads say is float32.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.networks.flat import Floats, unflatten
from mlxe_async.networks.pictures import BODIES
from mlxe_async.networks.shape import Network

if TYPE_CHECKING:
    import torch

TILE = BODIES["nature"].layers[0].stride
Layers = dict[str, list[tuple[Any, ...]]]


def prepared(network: Network, chains: Layers) -> Layers:
    """The layers as they are computed with: of the network's precision, convolutions (out, in, height, width)."""
    import torch

    dtype = torch.bfloat16 if network.precision == "bfloat16" else torch.float32
    result = {chain: [tuple(one.to(dtype) for one in pair) for pair in layers] for chain, layers in chains.items()}
    result |= {name: chains[name] for name in network.free}
    for chain, eye in network.eyes.items():
        first, bias = chains[chain][0]
        if eye.scale is not None:
            first = first * eye.scale
        first = _tiled_weights(first) if network.body == "nature" else first
        layers = [(first.to(dtype), bias.to(dtype)), *result[chain][1:]]
        result[chain] = [(weight.permute(0, 3, 1, 2), bias) for weight, bias in layers]
    return result


def _tiled(pictures: torch.Tensor) -> torch.Tensor:
    """Pictures (M, C, H, W) as tiles of TILE x TILE pixels: (M, h, w, channels), channels (C, TILE, TILE); a copy."""
    import torch

    count, channels, height, width = pictures.shape
    high, wide, deep = height // TILE, width // TILE, channels * TILE * TILE
    if count and pictures.dtype == torch.uint8 and pictures.device.type == "cpu" and width % TILE == 0:
        words = pictures.flatten(1).numpy().view(np.int32)
        tiles = torch.from_numpy(words.take(_word_order(channels, height, width), axis=1)).view(torch.uint8)
    else:
        within = pictures[:, :, : high * TILE, : wide * TILE]
        tiles = within.reshape(count, channels, high, TILE, wide, TILE).permute(0, 2, 4, 1, 3, 5)
    return tiles.reshape(count, high, wide, deep)


@functools.cache
def _word_order(channels: int, height: int, width: int) -> NDArray[np.intp]:
    """Where the words of a picture's tiles lie: the bytes of a tile that lie side by side travel as one.

    Numpy gathers them in half the time that torch's or its own copy of permuted axes takes.
    """
    high, wide = height // TILE, width // TILE
    words = np.arange(channels * height * wide).reshape(channels, height, wide)[:, : high * TILE]
    return words.reshape(channels, high, TILE, wide).transpose(1, 3, 0, 2).ravel()


def _tiled_weights(weight: torch.Tensor) -> torch.Tensor:
    """A first convolution's weights (out, height, width, in) for tiles: (out, h, w, channels)."""
    out, height, width, channels = weight.shape
    tiles = weight.view(out, height // TILE, TILE, width // TILE, TILE, channels).permute(0, 1, 3, 5, 2, 4)
    return tiles.reshape(out, height // TILE, width // TILE, channels * TILE * TILE)


def _taken_apart(network: Network, observation: torch.Tensor) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """The numbers (M, n), if there are any, and the pictures (M, C, H, W) of what the network is shown (M, ...)."""
    if network.mixed is not None:
        numbers, pictures = network.mixed.taken_apart(observation)
        return numbers if numbers is None else _scaled(network, numbers), pictures
    if len(network.scale) > 1:
        observation = _scaled(network, observation)
    return None, [observation.view(len(observation), *network.image)]


def _scaled(network: Network, numbers: torch.Tensor) -> torch.Tensor:
    """Numbers (M, n) times their factors."""
    import torch

    if len(network.scale) == 1:
        return numbers if network.scale[0] == 1 else numbers * network.scale[0]
    return numbers * torch.tensor(network.scale, dtype=torch.float32, device=numbers.device)


def _features(network: Network, layers: list[tuple[Any, ...]], pictures: torch.Tensor, activate: Any) -> torch.Tensor:
    """What the convolutions make of pictures (M, C, H, W): (M, features)."""
    from torch.nn.functional import conv2d, elu_

    dtype, body = layers[0][0].dtype, BODIES[network.body]
    is_tiled = network.body == "nature"
    x = _tiled(pictures).to(dtype).permute(0, 3, 1, 2) if is_tiled else pictures.to(dtype)
    for index, ((weight, bias), layer) in enumerate(zip(layers, body.layers, strict=True)):
        stride = 1 if is_tiled and index == 0 else layer.stride
        x = (elu_ if body.elu else activate)(conv2d(x, weight, bias, stride, layer.padding))
    return x.permute(0, 2, 3, 1).flatten(1)


def evaluated(network: Network, chains: Layers, observation: torch.Tensor, heads: tuple[str, ...]) -> list[Any]:
    """Outputs (M, outputs) float32 of the heads for what the network is shown (M, ...) by prepared layers."""
    import torch

    activate = torch.tanh_ if network.activation == "tanh" else torch.relu_
    numbers, pictures = _taken_apart(network, observation)
    features = [
        _features(network, chains[chain], seen, activate) for chain, seen in zip(network.eyes, pictures, strict=True)
    ]
    if numbers is not None:
        features.append(numbers.to(features[0].dtype))
    x = features[0] if len(features) == 1 else torch.cat(features, -1)
    for weight, bias in chains["common"]:
        x = activate(torch.addmm(bias, x, weight))
    outputs = []
    for head in heads:
        if head in network.free:
            outputs.append(chains[head][0][0])
            continue
        y = x
        *hidden, (last, last_bias) = chains[head]
        for weight, bias in hidden:
            y = activate(torch.addmm(bias, y, weight))
        outputs.append(torch.addmm(last_bias, y, last).float())
    return outputs


class PictureActor:
    """Evaluates a network of pictures without gradients; numpy in, numpy out, as `NumpyNetwork` does.

    Args:
        shape: of the network.
        flat: weights (P,), or a stack (V, P) of V versions evaluated on observations (V, B, O); copied.
        threads: of torch, for the whole process.
        noise: what a noisy network acts under, from `Network.noise`; None: the mu alone.
    """

    def __init__(
        self, shape: Network, flat: Floats, threads: int = 1, noise: Mapping[str, Floats] | None = None
    ) -> None:
        self.shape, self._flats, self._threads = shape, np.array(flat, np.float32), threads
        self._noise = noise
        self._versions: list[Layers] | None = None

    def __call__(self, observation: NDArray[Any], *heads: str) -> tuple[Floats, ...]:
        """The named heads' outputs (..., B, outputs) for flattened observations (..., B, O)."""
        import torch

        if self._versions is None:  # only now: who never acts, such as the probe, does not wait for torch
            torch.set_num_threads(self._threads)
            self._versions = [self._layers(flat) for flat in np.atleast_2d(self._flats)]
        several = observation if self._flats.ndim == 2 else observation[None]
        with torch.no_grad():
            outputs = [
                evaluated(self.shape, chains, torch.from_numpy(np.ascontiguousarray(seen)), heads)
                for chains, seen in zip(self._versions, several, strict=True)
            ]
        of_heads = ([one.numpy() for one in versions] for versions in zip(*outputs, strict=True))
        return tuple(np.stack(versions) if self._flats.ndim == 2 else versions[0] for versions in of_heads)

    def _layers(self, flat: Floats) -> Layers:
        import torch

        noise = None if self._noise is None else {name: torch.from_numpy(one) for name, one in self._noise.items()}
        arrays = self.shape.perturbed(unflatten(torch.from_numpy(flat), self.shape.parameters), noise)
        return prepared(self.shape, {chain: self.shape.layers(arrays, chain) for chain in self.shape.chains})
