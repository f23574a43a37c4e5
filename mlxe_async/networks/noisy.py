"""Linear layers whose weights are under learned noise, for exploration: NoisyNets, Fortunato et al. 2018.

Each weight and bias has a mean and a sigma. Noise is factorised (eq. 10 and 11): with f(x) = sign(x) sqrt|x| of normal
numbers, one per input and one per output, the epsilon of a weight is f(input's) f(output's), of a bias f(output's).
Noise is no state: it is drawn before it is used.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import linear

from mlxe_async.rows import Array


class Noise:
    """The noise of a layer, once drawn: f of its inputs' numbers (I,) and of its outputs' (O,). It is no state."""

    def __init__(self) -> None:
        self.drawn: tuple[Array, Array] | None = None
        self._there: tuple[torch.Tensor, torch.Tensor] | None = None

    def put(self, drawn: tuple[Array, Array] | None) -> None:
        """Have this noise, or none."""
        self.drawn, self._there = drawn, None

    def on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the noise as tensors on a device; None: there is none."""
        if self.drawn is not None and (self._there is None or self._there[0].device != device):
            ins, outs = self.drawn
            self._there = torch.as_tensor(ins, device=device), torch.as_tensor(outs, device=device)
        return self._there

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Nothing to load."""


class NoisyLinear(nn.Linear):
    """A linear layer under noise, once some was drawn; `weight` and `bias` are the means.

    First means are uniform within the root of 1 / inputs, and all sigmas `sigma` times that root.

    Args:
        inputs: numbers that come in.
        outputs: numbers that go out.
        sigma: deviation of the noise at the start, times the root of the inputs.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.5) -> None:
        super().__init__(inputs, outputs)
        reach = 1 / math.sqrt(inputs)
        for mean in (self.weight, self.bias):
            nn.init.uniform_(mean, -reach, reach)
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * reach))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * reach))
        self.noise = Noise()

    def draw(self, rng: np.random.Generator) -> None:
        """Draw the noise anew."""
        draws = (rng.standard_normal(size, np.float32) for size in (self.in_features, self.out_features))
        ins, outs = (np.sign(one) * np.sqrt(np.abs(one)) for one in draws)
        self.noise.put((ins, outs))

    def by_numpy(self) -> tuple[Array, Array]:
        """Weight (in, out) and bias (out,) as they are now."""
        weight, bias = (one.detach().numpy(force=True) for one in (self.weight, self.bias))
        if self.noise.drawn is None:
            return weight.T, bias
        of_weight, of_bias = (one.detach().numpy(force=True) for one in (self.weight_sigma, self.bias_sigma))
        ins, outs = self.noise.drawn
        return (weight + of_weight * (outs[:, None] * ins)).T, bias + of_bias * outs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs (..., outputs) for inputs (..., inputs)."""
        noise = self.noise.on(self.weight.device)
        if noise is None:
            return linear(x, self.weight, self.bias)
        ins, outs = noise
        return linear(x, self.weight + self.weight_sigma * outs.outer(ins), self.bias + self.bias_sigma * outs)


def noisy_layers(module: nn.Module) -> list[NoisyLinear]:
    """All layers under noise in a module."""
    return [one for one in module.modules() if isinstance(one, NoisyLinear)]


def draw(module: nn.Module, rng: np.random.Generator) -> None:
    """Draw the noise of all its layers anew, one after the other."""
    for layer in noisy_layers(module):
        layer.draw(rng)


def quiet(module: nn.Module) -> nn.Module:
    """Have all its layers be without noise; returns the module."""
    for layer in noisy_layers(module):
        layer.noise.put(None)
    return module


@contextlib.contextmanager
def without_noise(module: nn.Module, *, noisy: bool) -> Iterator[None]:
    """All its layers are without noise inside; nothing is looked for where it is not `noisy`."""
    layers = noisy_layers(module) if noisy else []
    kept = [layer.noise.drawn for layer in layers]
    for layer in layers:
        layer.noise.put(None)
    try:
        yield
    finally:
        for layer, drawn in zip(layers, kept, strict=True):
            layer.noise.put(drawn)
