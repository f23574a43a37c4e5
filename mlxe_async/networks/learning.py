"""Our networks as torch modules, for learning: one flat vector of weights, one of gradients.

Imports torch; who only acts does not import this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mlxe_async.gpu import uploaded
from mlxe_async.networks import convolutions
from mlxe_async.networks.flat import Floats, unflatten
from mlxe_async.networks.shape import LAYER_NORM_EPSILON, Network


class TorchNetwork(nn.Module):
    """A network of ours with gradients: a module whose parameters are views on `flat`, their gradients on `gradient`.

    Publishing is one copy then, and a step of an optimiser works on one vector. It is a module in every other way:
    `parameters()`, hooks, `requires_grad_`, `state_dict` and torch's optimisers do what they do elsewhere.

    Args:
        shape: of the network.
        flat: initial weights (P,); copied.
        device: a torch device name.
    """

    def __init__(self, shape: Network, flat: Floats, device: str = "cpu") -> None:
        super().__init__()
        self.shape = shape
        self._noise: dict[str, torch.Tensor] | None = None
        self._hold(torch.tensor(flat, dtype=torch.float32, device=device))

    def _hold(self, flat: torch.Tensor) -> None:
        """Have all parameters be views on this vector (P,)."""
        trained = [one.requires_grad for one in self.parameters()]
        self.flat, self.gradient = flat, torch.zeros_like(flat)
        self.scale = torch.tensor(self.shape.input_scale, dtype=flat.dtype, device=flat.device)
        leaves = {name: nn.Parameter(view) for name, view in unflatten(flat, self.shape.parameters).items()}
        gradients = unflatten(self.gradient, self.shape.parameters)
        self._parameters = {name.replace(".", "_"): leaf for name, leaf in leaves.items()}
        for (name, leaf), wanted in zip(leaves.items(), trained or [True] * len(leaves), strict=True):
            leaf.requires_grad_(wanted)
            leaf.grad = gradients[name]  # backward() then adds into the flat gradient, and nobody gathers
        self.leaves = leaves
        self._chains = self._layers(None)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> TorchNetwork:  # noqa: ARG002 - torch's signature; there are no modules inside
        """Weights move to another device or type as one; optimisers that hold the old ones are made anew."""
        flat = fn(self.flat)
        if flat is not self.flat:
            self._hold(flat)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchNetwork:
        copied = type(self)(self.shape, self.flat.numpy(force=True), str(self.flat.device))
        for one, mine in zip(copied.parameters(), self.parameters(), strict=True):
            one.requires_grad_(mine.requires_grad)
        memo[id(self)] = copied
        return copied

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Another name for one of the weights; what is not a view on `flat` would be neither published nor stepped.

        Raises:
            AttributeError: it is another parameter.
        """
        if any(param is leaf for leaf in self.leaves.values()):
            self._parameters[name] = param
            return
        raise AttributeError(f"{type(self).__name__}.{name}: its weights are views on one vector; copy into them")

    def zero_grad(self, set_to_none: bool = False) -> None:  # noqa: ARG002 - gradients stay where they are views
        """Begin a new gradient."""
        self.gradient.zero_()

    def _layers(self, noise: Mapping[str, torch.Tensor] | None) -> dict[str, list[tuple[Any, ...]]]:
        arrays = self.shape.perturbed(self.leaves, noise)
        return {chain: self.shape.layers(arrays, chain) for chain in self.shape.chains}

    def resample(self, rng: np.random.Generator) -> None:
        """Draw the noise of a noisy network anew; before the first time there is none. Others have none."""
        if not self.shape.noisy:
            return
        noise = self.shape.noise(rng)
        self._noise = {name: torch.as_tensor(array, device=self.flat.device) for name, array in noise.items()}

    def put(self, flat: Floats) -> None:
        """Have these weights (P,) from now on."""
        with torch.no_grad():
            self.flat.copy_(torch.as_tensor(flat))

    def follow(self, other: TorchNetwork, share: float = 1.0) -> None:
        """Go this share of the way to another network's weights: Polyak averaging; 1 becomes the other."""
        self.flat.lerp_(other.flat, share)

    def forward(self, observation: torch.Tensor, *heads: str) -> tuple[torch.Tensor, ...]:
        """The named heads' outputs (M, outputs) for flattened observations (M, O); the trunk is evaluated once."""
        chains = self._chains if self._noise is None else self._layers(self._noise)
        return torch_outputs(self.shape, chains, observation * self.scale, heads)

    def tensors(self, rows: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
        """Columns as tensors on this network's device, each of the type that `tensor_type` gives it."""
        return moved({name: (column, tensor_type(name, column)) for name, column in rows.items()}, self.flat.device)


class PictureNetwork(TorchNetwork):
    """A network of pictures with gradients; see `convolutions`."""

    def forward(self, observation: torch.Tensor, *heads: str) -> tuple[torch.Tensor, ...]:
        """The named heads' outputs (M, outputs) for flattened pictures (M, O), bytes or floats."""
        return self.evaluated(self.prepared(), observation, heads)

    def prepared(self) -> convolutions.Layers:
        """The layers as they are computed with, which several calls of `evaluated` may share."""
        return convolutions.prepared(self.shape, self._chains if self._noise is None else self._layers(self._noise))

    def evaluated(
        self, layers: convolutions.Layers, observation: torch.Tensor, heads: tuple[str, ...]
    ) -> tuple[torch.Tensor, ...]:
        """The heads' outputs by prepared layers."""
        return tuple(convolutions.evaluated(self.shape, layers, observation, heads))


def torch_network(shape: Network, flat: Floats, device: str = "cpu") -> TorchNetwork:
    """The network of this shape, with gradients; for the arguments see `TorchNetwork`."""
    return (TorchNetwork if shape.body == "none" else PictureNetwork)(shape, flat, device)


def tensor_type(name: str, column: NDArray[Any]) -> torch.dtype:
    """The type of a column's tensor: float32 for floats, bool and bytes as they are, int64 for other integers.

    Raises:
        TypeError: the column holds no numbers.
    """
    if column.dtype == np.uint8:
        return torch.uint8
    kinds = {"f": torch.float32, "b": torch.bool, "i": torch.int64, "u": torch.int64}
    if column.dtype.kind not in kinds:
        raise TypeError(f"column {name}: expected numbers or truth values, got {column.dtype}")
    return kinds[column.dtype.kind]


def moved(columns: Mapping[str, tuple[NDArray[Any], torch.dtype]], device: torch.device) -> dict[str, torch.Tensor]:
    """Columns as tensors of the given types on a device; on the CPU they may share their memory."""
    if device.type == "cuda":
        return uploaded(columns, device)
    return {name: torch.as_tensor(column, dtype=dtype).to(device) for name, (column, dtype) in columns.items()}


def torch_outputs(
    network: Network,
    chains: Mapping[str, Sequence[tuple[Any, ...]]],
    x: torch.Tensor,
    heads: Sequence[str],
) -> tuple[torch.Tensor, ...]:
    """The named heads' outputs (M, outputs) for scaled observations (M, O), by the layers of each chain."""
    for weight, bias in chains["common"]:
        x = _activated(network, bias.addmm(x, weight))
    outputs = []
    for head in heads:
        if head in network.free:
            outputs.append(chains[head][0][0])
            continue
        y = x
        *hidden, (last_weight, last_bias) = chains[head]
        for weight, bias in hidden:
            y = _activated(network, bias.addmm(y, weight))
        outputs.append(last_bias.addmm(y, last_weight))
    return tuple(outputs)


def _activated(network: Network, x: torch.Tensor) -> torch.Tensor:
    if network.layer_norm:
        centred = x - x.mean(-1, keepdim=True)
        x = centred / (centred.square().mean(-1, keepdim=True) + LAYER_NORM_EPSILON).sqrt()
    # The CPU wheel's tanh takes five times as long as its sigmoid; tanh(x) = 2 sigmoid(2x) - 1.
    return (x * 2).sigmoid() * 2 - 1 if network.activation == "tanh" else x.relu()
