"""A network evaluated by torch, for learning: one flat vector of weights, one of gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.gpu import uploaded
from mlxe_async.networks.flat import Floats, unflatten
from mlxe_async.networks.shape import LAYER_NORM_EPSILON, Network

if TYPE_CHECKING:
    import torch


class TorchNetwork:
    """The same network with gradients; every parameter is a view on `flat`, every gradient a view on `gradient`.

    Args:
        network: the shape.
        flat: initial weights (P,); copied.
        device: a torch device name.
    """

    def __init__(self, network: Network, flat: Floats, device: str = "cpu") -> None:
        import torch

        self.network = network
        self.flat = torch.tensor(flat, dtype=torch.float32, device=device)
        self.gradient = torch.zeros_like(self.flat)
        self.scale = torch.tensor(network.input_scale, dtype=torch.float32, device=device)
        leaves = self.leaves = unflatten(self.flat, network.parameters)
        gradients = unflatten(self.gradient, network.parameters)
        for name, leaf in leaves.items():
            leaf.requires_grad_()
            leaf.grad = gradients[name]  # backward() then adds into the flat gradient, and nobody gathers
        self._chains = self._layers(None)
        self._noise: dict[str, torch.Tensor] | None = None

    def _layers(self, noise: Mapping[str, torch.Tensor] | None) -> dict[str, list[tuple[torch.Tensor, torch.Tensor]]]:
        arrays = self.network.perturbed(self.leaves, noise)
        return {chain: self.network.layers(arrays, chain) for chain in self.network.chains}

    def resample(self, rng: np.random.Generator) -> None:
        """Draw the noise of a noisy network anew; before the first time there is none. Others have none."""
        import torch

        if not self.network.noisy:
            return
        noise = self.network.noise(rng)
        self._noise = {name: torch.as_tensor(array, device=self.flat.device) for name, array in noise.items()}

    def __call__(self, observation: torch.Tensor, *heads: str) -> tuple[torch.Tensor, ...]:
        """The named heads' outputs (M, outputs) for flattened observations (M, O); the trunk is evaluated once."""
        chains = self._chains if self._noise is None else self._layers(self._noise)
        return torch_outputs(self.network, chains, observation * self.scale, heads)

    def tensors(self, rows: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
        """Columns as tensors on this network's device, each of the type that `tensor_type` gives it."""
        return moved({name: (column, tensor_type(name, column)) for name, column in rows.items()}, self.flat.device)


def tensor_type(name: str, column: NDArray[Any]) -> torch.dtype:
    """The type of a column's tensor: float32 for floats, bool and bytes as they are, int64 for other integers.

    Raises:
        TypeError: the column holds no numbers.
    """
    import torch

    if column.dtype == np.uint8:
        return torch.uint8
    kinds = {"f": torch.float32, "b": torch.bool, "i": torch.int64, "u": torch.int64}
    if column.dtype.kind not in kinds:
        raise TypeError(f"column {name}: expected numbers or truth values, got {column.dtype}")
    return kinds[column.dtype.kind]


def moved(columns: Mapping[str, tuple[NDArray[Any], torch.dtype]], device: torch.device) -> dict[str, torch.Tensor]:
    """Columns as tensors of the given types on a device; on the CPU they may share their memory."""
    import torch

    if device.type == "cuda":
        return uploaded(columns, device)
    return {name: torch.as_tensor(column, dtype=dtype).to(device) for name, (column, dtype) in columns.items()}


def torch_outputs(
    network: Network,
    chains: Mapping[str, Sequence[tuple[torch.Tensor, torch.Tensor]]],
    x: torch.Tensor,
    heads: Sequence[str],
) -> tuple[torch.Tensor, ...]:
    """The named heads' outputs (M, outputs) for scaled observations (M, O), by the layers of each chain."""
    for weight, bias in chains["common"]:
        x = _activated(network, bias.addmm(x, weight))
    outputs = []
    for head in heads:
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
