"""A network evaluated by numpy, for acting: no gradients, and no torch in the process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.networks.flat import Floats, unflatten
from mlxe_async.networks.shape import LAYER_NORM_EPSILON, Network


class NumpyNetwork:
    """Evaluates a network with numpy; no gradients.

    Args:
        shape: of the network.
        flat: weights (P,), or a stack (V, P) of V versions evaluated side by side on observations (V, B, O).
        noise: what a noisy network acts under, from `Network.noise`; None: the mu alone.
    """

    def __init__(self, shape: Network, flat: Floats, noise: Mapping[str, Floats] | None = None) -> None:
        self.shape = shape
        self._scale = np.asarray(shape.input_scale, np.float32)
        self._scaled = bool((self._scale != 1).any())
        # A private copy: the next version may arrive in the caller's buffer while this one still acts.
        arrays = unflatten(np.array(flat, np.float32), shape.parameters)
        arrays = dict(shape.perturbed(arrays, noise))
        if flat.ndim == 2:
            arrays = {name: array[:, None] if array.ndim == 2 else array for name, array in arrays.items()}
        self._free = {name: arrays[name] for name in shape.free}
        self._chains = {chain: shape.layers(arrays, chain) for chain in ("common", *shape.heads)}

    def __call__(self, observation: NDArray[Any], *heads: str) -> tuple[Floats, ...]:
        """The named heads' outputs (..., B, outputs), or free numbers, for flattened observations (..., B, O)."""
        x: Any = observation * self._scale if self._scaled else observation
        x = x.astype(np.float32, copy=False)
        for weight, bias in self._chains["common"]:
            x = self._activate(x @ weight + bias)
        outputs: list[Floats] = []
        for head in heads:
            if head in self._free:
                outputs.append(self._free[head])
                continue
            y, layers = x, self._chains[head]
            for weight, bias in layers[:-1]:
                y = self._activate(y @ weight + bias)
            weight, bias = layers[-1]
            outputs.append(y @ weight + bias)
        return tuple(outputs)

    def _activate(self, x: Floats) -> Floats:
        if self.shape.layer_norm:
            centred = x - x.mean(-1, keepdims=True)
            x = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + np.float32(LAYER_NORM_EPSILON))
        if self.shape.activation == "tanh":
            return np.tanh(x, out=x)
        return np.maximum(x, 0, out=x)
