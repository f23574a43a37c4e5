"""Dense layers as plain torch modules, which take arrays as well as tensors, and how their weights begin."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from mlxe_async.networks.by_numpy import Settling, in_turn
from mlxe_async.networks.several import together

LAYER_NORM_EPSILON = 1e-5


def dense(
    inputs: int,
    sizes: Sequence[int],
    outputs: int | None = None,
    activation: type[nn.Module] = nn.ReLU,
    *,
    layer_norm: bool = False,
    linear: Callable[[int, int], nn.Module] | None = None,
) -> Dense:
    """Linear layers with an activation after each, and a linear one of `outputs` at the end, if given.

    With `layer_norm` each layer is brought to mean 0 and deviation 1 before its activation, without learned factors.
    `linear` makes a layer from its numbers of inputs and outputs, such as `noisy.NoisyLinear`.
    """
    linear = linear or _linear
    widths, layers = (inputs, *sizes), list[nn.Module]()
    for fan_in, fan_out in itertools.pairwise(widths):
        layers.append(linear(fan_in, fan_out))
        if layer_norm:
            layers.append(nn.LayerNorm(fan_out, LAYER_NORM_EPSILON, elementwise_affine=False))
        layers.append(activation())
    if outputs is not None:
        layers.append(linear(widths[-1], outputs))
    made = Dense(*layers)
    made.outputs = widths[-1] if outputs is None else outputs
    return made


@in_turn
class Dense(Settling, nn.Sequential):
    """Linear layers with ReLU or tanh between them, which may be normalised.

    Arrays are evaluated by numpy, which for a few rows takes a third of the time, on the layers' own numbers. Where a
    hook listens, or a layer is of another kind or has a `forward` of its own, torch evaluates them.
    """

    takes_arrays = True
    outputs: int
    """Numbers that come out for a row."""
    widths: Sequence[tuple[bool, int]] = ()
    """`Body.widths`, where there is no layer in between."""
    precision = "float32"
    """Or `"bfloat16"`: layers are computed in it, from weights of 32 bits; what comes out is float32."""

    def __call__(self, x: Any) -> Any:
        """Outputs (..., outputs) for inputs (..., inputs)."""
        if not isinstance(x, np.ndarray):
            return super().__call__(x)
        known: Any = self.__dict__.get("_views")
        if known is None or not known.is_settled:
            known = self._examined()
        if known is not None:
            found = known.through(x)
            if found is not None:
                return found
        place = next((one.device for one in self.parameters()), None)
        with torch.inference_mode():
            return super().__call__(torch.as_tensor(x, device=place)).numpy(force=True)

    def settle_as(self, versions: Sequence[Dense]) -> bool:
        """Evaluate arrays (V, ..., inputs) by the settled layers of several versions, until `unsettle`.

        Returns whether these layers can; if not, nothing changes.
        """
        known: list[Any] = [vars(one).get("_views") for one in versions]
        found = together(known) if all(one is not None and one.is_settled for one in known) else None
        if found is not None:
            vars(self)["_views"] = found
        return found is not None

    def forward(self, x: Any) -> Any:
        """Evaluate the layers on tensors."""
        with computed_in(self.precision, x):
            found: torch.Tensor = super().forward(x)  # type: ignore[no-untyped-call] # torch's own
        return found.float()


def computed_in(precision: str, x: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Layers are computed in this precision inside, where `x` is."""
    if precision != "bfloat16":
        return _AS_THEY_ARE
    # A launch that is recorded must not keep weights that were converted before.
    return torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False)


_AS_THEY_ARE = contextlib.nullcontext()


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer whose weights lie in memory by inputs: products with a few rows are four times as fast."""
    made = nn.Linear(inputs, outputs)
    made.weight.data = made.weight.data.T.contiguous().T
    return made


def orthogonal(module: nn.Module, gain: float = math.sqrt(2), last: float | None = None) -> nn.Module:
    """Orthogonal weights (Saxe et al. 2014) and no biases, in place; `last` is the gain of the last layer."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, last if last is not None and layer is layers[-1] else gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return module


def glorot(module: nn.Module, last: float = 1.0) -> nn.Module:
    """Uniform weights by Glorot and Bengio 2010 and no biases, in place; `last` is a factor for the last layer's."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight, last if layer is layers[-1] else 1.0)
        nn.init.zeros_(layer.bias)
    return module
