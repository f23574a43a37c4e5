"""Small fully connected networks whose weights are one flat vector, evaluated by numpy (acting) or torch (learning).

A network is a common trunk followed by named heads, for instance `{"policy": (64, 64, 2), "value": (64, 64, 1)}`. Its
weights live in one float32 vector: publishing them is one copy, an optimiser step works on one tensor, and executors
evaluate them with numpy alone, which for a handful of observations is several times faster than torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float32]
Parameters = tuple[tuple[str, tuple[int, ...]], ...]
Activation = Literal["tanh", "relu"]
LAYER_NORM_EPSILON = 1e-5


def parameter_count(parameters: Parameters) -> int:
    """Length P of the flat vector that holds `parameters`."""
    return sum(int(np.prod(shape)) for _, shape in parameters)


def unflatten(flat: Any, parameters: Parameters) -> dict[str, Any]:
    """Views on a flat vector, name -> (..., *shape). Takes numpy (..., P) and torch alike; nothing is copied.

    Raises:
        ValueError: the vector's length is not that of `parameters`.
    """
    expected = parameter_count(parameters)
    if flat.shape[-1] != expected:
        raise ValueError(f"flat weights: expected {expected} numbers, got {flat.shape[-1]}")
    result: dict[str, Any] = {}
    start = 0
    for name, shape in parameters:
        stop = start + int(np.prod(shape))
        result[name] = flat[..., start:stop].reshape((*flat.shape[:-1], *shape))
        start = stop
    return result


def flatten(arrays: Mapping[str, NDArray[Any]], parameters: Parameters) -> Floats:
    """The inverse of `unflatten`: one float32 vector (P,) out of named arrays, copied."""
    return np.concatenate([np.asarray(arrays[name], np.float32).reshape(-1) for name, _ in parameters])


@dataclass(frozen=True)
class Network:
    """The shape of a network: a common trunk, then heads side by side.

    Args:
        inputs: length O of a flattened observation.
        common: sizes of the layers that all heads share; may be empty.
        heads: per head the sizes of its own layers; the last size is the head's linear output.
        activation: what follows every layer but a head's last.
        input_scale: factor for every input, one for all or one each. It travels with the network's shape.
        layer_norm: normalise each layer's activity (no learned factors) before the activation.
    """

    inputs: int
    common: tuple[int, ...]
    heads: Mapping[str, tuple[int, ...]]
    activation: Activation = "tanh"
    input_scale: tuple[float, ...] = (1.0,)
    layer_norm: bool = False

    def __post_init__(self) -> None:
        if len(self.input_scale) not in (1, self.inputs):
            raise ValueError(f"input_scale: expected 1 or {self.inputs} factors, got {len(self.input_scale)}")

    @property
    def parameters(self) -> Parameters:
        """Names and shapes in the order of the flat vector: per layer its weights (in, out), then its bias (out,)."""
        chains = [("common", self.inputs, self.common)]
        trunk = self.common[-1] if self.common else self.inputs
        chains += [(head, trunk, sizes) for head, sizes in self.heads.items()]
        result: list[tuple[str, tuple[int, ...]]] = []
        for chain, width, sizes in chains:
            for index, (fan_in, fan_out) in enumerate(zip((width, *sizes), sizes, strict=False)):
                result.append((f"{chain}.{index}.weight", (fan_in, fan_out)))
                result.append((f"{chain}.{index}.bias", (fan_out,)))
        return tuple(result)

    def initial(self, seed: int | Sequence[int], gains: Mapping[str, float] | None = None) -> Floats:
        """Fresh weights (P,): Glorot-uniform, biases zero; `gains` shrinks or stretches the last layer of a head."""
        rng = np.random.default_rng(seed)
        last = {f"{head}.{len(sizes) - 1}.weight": head for head, sizes in self.heads.items()}
        arrays: dict[str, NDArray[Any]] = {}
        for name, shape in self.parameters:
            if name.endswith("bias"):
                arrays[name] = np.zeros(shape)
            else:
                limit = np.sqrt(6.0 / sum(shape)) * (gains or {}).get(last.get(name, ""), 1.0)
                arrays[name] = rng.uniform(-limit, limit, shape)
        return flatten(arrays, self.parameters)

    def layers(self, arrays: Mapping[str, Any], chain: str) -> list[tuple[Any, Any]]:
        """The (weights, bias) pairs of the trunk (`"common"`) or of one head, in order."""
        sizes = self.common if chain == "common" else self.heads[chain]
        return [(arrays[f"{chain}.{index}.weight"], arrays[f"{chain}.{index}.bias"]) for index in range(len(sizes))]


class NumpyNetwork:
    """Evaluates a network with numpy; no gradients.

    Args:
        network: the shape.
        flat: weights (P,), or a stack (V, P) of V versions evaluated side by side on observations (V, B, O).
    """

    def __init__(self, network: Network, flat: Floats) -> None:
        self.network = network
        self._scale = np.asarray(network.input_scale, np.float32)
        self._scaled = bool((self._scale != 1).any())
        # A private copy: the next version may arrive in the caller's buffer while this one still acts.
        arrays = unflatten(np.array(flat, np.float32), network.parameters)
        if flat.ndim == 2:
            arrays = {name: array[:, None] if name.endswith("bias") else array for name, array in arrays.items()}
        self._chains = {chain: network.layers(arrays, chain) for chain in ("common", *network.heads)}

    def __call__(self, head: str, observation: NDArray[Any]) -> Floats:
        """One head's output (..., B, outputs) for flattened observations (..., B, O)."""
        x: Any = observation * self._scale if self._scaled else observation
        x = x.astype(np.float32, copy=False)
        for weight, bias in self._chains["common"]:
            x = self._activate(x @ weight + bias)
        layers = self._chains[head]
        for weight, bias in layers[:-1]:
            x = self._activate(x @ weight + bias)
        weight, bias = layers[-1]
        output: Floats = x @ weight + bias
        return output

    def _activate(self, x: Floats) -> Floats:
        if self.network.layer_norm:
            centred = x - x.mean(-1, keepdims=True)
            x = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + np.float32(LAYER_NORM_EPSILON))
        if self.network.activation == "tanh":
            return np.tanh(x, out=x)
        return np.maximum(x, 0, out=x)


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
        self._scale = torch.tensor(network.input_scale, dtype=torch.float32, device=device)
        leaves = unflatten(self.flat, network.parameters)
        gradients = unflatten(self.gradient, network.parameters)
        for name, leaf in leaves.items():
            leaf.requires_grad_()
            leaf.grad = gradients[name]  # backward() then adds into the flat gradient, and nobody gathers
        self._chains = {chain: network.layers(leaves, chain) for chain in ("common", *network.heads)}

    def __call__(self, observation: torch.Tensor, *heads: str) -> tuple[torch.Tensor, ...]:
        """The named heads' outputs (M, outputs) for flattened observations (M, O); the trunk is evaluated once."""
        x = observation * self._scale
        for weight, bias in self._chains["common"]:
            x = self._activate(bias.addmm(x, weight))
        outputs = []
        for head in heads:
            y = x
            *hidden, (last_weight, last_bias) = self._chains[head]
            for weight, bias in hidden:
                y = self._activate(bias.addmm(y, weight))
            outputs.append(last_bias.addmm(y, last_weight))
        return tuple(outputs)

    def tensors(self, rows: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
        """Columns as float32 tensors, `action` as int64, on this network's device."""
        import torch

        kinds = {name: torch.int64 if name == "action" else torch.float32 for name in rows}
        return {n: torch.as_tensor(column, dtype=kinds[n], device=self.flat.device) for n, column in rows.items()}

    def _activate(self, x: torch.Tensor) -> torch.Tensor:
        if self.network.layer_norm:
            centred = x - x.mean(-1, keepdim=True)
            x = centred / (centred.square().mean(-1, keepdim=True) + LAYER_NORM_EPSILON).sqrt()
        # The CPU wheel's tanh takes five times as long as its sigmoid; tanh(x) = 2 sigmoid(2x) - 1.
        return (x * 2).sigmoid() * 2 - 1 if self.network.activation == "tanh" else x.relu()
