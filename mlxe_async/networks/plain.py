"""A network of ours as a plain torch module: for whoever takes a policy elsewhere.

Imports torch; only `Algorithm.module` imports this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from mlxe_async.networks.flat import Floats, unflatten
from mlxe_async.networks.mixed import Mixed, channels_first
from mlxe_async.networks.pictures import BODIES
from mlxe_async.networks.shape import LAYER_NORM_EPSILON, Network


class PlainNetwork(nn.Module):
    """Body, trunk and heads as `nn.Sequential`s; observations (B, *O) -> outputs of each head by name (B, outputs).

    An observation of several parts may come as these parts, name -> (B, *shape). Where some of them are pictures, the
    body has a chain of layers for each.

    Args:
        network: the shape.
        flat: its weights (P,); of a noisy network the mu act.
        mean: what is subtracted from flattened observations (O,); None: nothing.
        deviation: what they are divided by then (O,).
        limit: to what they are cut then, on both sides.
        parts: what observations of several parts are made of; None: they are one array.
    """

    mean: torch.Tensor
    deviation: torch.Tensor
    input_scale: torch.Tensor

    def __init__(
        self,
        network: Network,
        flat: Floats,
        mean: Any = None,
        deviation: Any = None,
        limit: float = float("inf"),
        parts: Mixed | None = None,
    ) -> None:
        super().__init__()
        self._network, self._limit, self._parts = network, limit, parts or network.mixed
        arrays = network.perturbed(unflatten(torch.tensor(flat), network.parameters), None)
        self.register_buffer("input_scale", torch.tensor(network.scale))
        self.register_buffer("mean", torch.as_tensor(0.0 if mean is None else mean).float())
        self.register_buffer("deviation", torch.as_tensor(1.0 if deviation is None else deviation).float())
        chains = [_convolved(network, network.layers(arrays, chain)) for chain in network.eyes]
        self.body = nn.ModuleList(chains) if network.mixed is not None else nn.Sequential(*chains[0] if chains else ())
        self.common = nn.Sequential(*_dense(network, network.layers(arrays, "common"), last=False))
        self.heads = nn.ModuleDict(
            {head: nn.Sequential(*_dense(network, network.layers(arrays, head), last=True)) for head in network.heads}
        )
        self.free = nn.ParameterDict({name: nn.Parameter(arrays[name].clone()) for name in network.free})

    def forward(self, obs: torch.Tensor | Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Outputs by head."""
        x = self.common(self._features(obs))
        found = {name: head(x) for name, head in self.heads.items()}
        return found | {name: numbers.expand(len(x), -1) for name, numbers in self.free.items()}

    def _features(self, obs: Any) -> torch.Tensor:
        """What the trunk begins with (B, ...)."""
        network = self._network
        if self._parts is None:
            x = self._shown(obs.flatten(1).float())
            return _in_order(self.body(x.view(-1, *network.image))) if network.eyes else x
        parts = obs if isinstance(obs, Mapping) else self._parts.split(obs)
        pictures = [
            channels_first(parts[name]).float() * eye.scale
            for name, eye in zip(self._parts.pictures, network.eyes.values(), strict=True)
        ]
        features = [_in_order(layers(picture)) for layers, picture in zip(self.body, pictures, strict=bool(pictures))]
        numbers = [self._shown(self._parts.numbers_of(parts))] if network.numbers else []
        return torch.cat([*features, *numbers], -1)

    def _shown(self, numbers: torch.Tensor) -> torch.Tensor:
        return ((numbers - self.mean) / self.deviation).clamp(-self._limit, self._limit) * self.input_scale


def _convolved(network: Network, layers: list[tuple[Any, ...]]) -> nn.Sequential:
    """The convolutions of one picture."""
    body, found = BODIES[network.body], nn.Sequential()
    for (weight, bias), (out, width, stride, padding) in zip(layers, body.layers, strict=True):
        layer = nn.Conv2d(weight.shape[-1], out, width, stride, padding)
        _fill(layer, weight.permute(0, 3, 1, 2), bias)
        found.append(layer).append(nn.ELU() if body.elu else _activation(network))
    return found


def _in_order(features: torch.Tensor) -> torch.Tensor:
    """Features (B, C, H, W) as the dense layers take them, channels last (B, ...)."""
    return features.permute(0, 2, 3, 1).flatten(1)


class Deterministic(nn.Module):
    """A network, and what is made of its outputs: observations (B, *O) -> actions (B, ...).

    Args:
        network: outputs by head, or one tensor.
        chosen: asked with something that gives the outputs (B, ...) of named heads, and with the observations.
    """

    def __init__(self, network: nn.Module, chosen: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.network, self._chosen = network, chosen

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Actions."""

        def outputs(seen: torch.Tensor, *heads: str) -> tuple[torch.Tensor, ...]:
            found = self.network(seen)
            return (found,) if isinstance(found, torch.Tensor) else tuple(found[head] for head in heads)

        return self._chosen(outputs, obs)


def _dense(network: Network, layers: list[tuple[Any, Any]], *, last: bool) -> list[nn.Module]:
    """Linear layers with what stands between them; behind the `last` of a head stands nothing."""
    found: list[nn.Module] = []
    for index, (weight, bias) in enumerate(layers):
        layer = nn.Linear(*weight.shape)
        _fill(layer, weight.T, bias)
        found.append(layer)
        if last and index == len(layers) - 1:
            break
        if network.layer_norm:
            found.append(nn.LayerNorm(weight.shape[1], LAYER_NORM_EPSILON, elementwise_affine=False))
        found.append(_activation(network))
    return found


def _fill(layer: Any, weight: torch.Tensor, bias: torch.Tensor) -> None:
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)


def _activation(network: Network) -> nn.Module:
    return nn.Tanh() if network.activation == "tanh" else nn.ReLU()
