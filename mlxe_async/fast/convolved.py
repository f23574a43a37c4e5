"""Convolutions, dense layers and ReLU differentiated by hand, on the CPU.

Each layer is torch's own operation. What is spared lies between them: ReLU works in the memory of the layer before it,
gradients are added to where the optimiser reads them, and no graph is built.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import conv2d

from mlxe_async.networks.bodies import Body
from mlxe_async.networks.convolutions import Pixels
from mlxe_async.networks.dense import Dense
from mlxe_async.networks.mixed import channels_first

Seen = tuple[torch.Tensor, ...]
"""Inputs and outputs of a layer, which it needs in order to be differentiated."""


class Convolved:
    """A convolution whose channels lie last in memory, and ReLU."""

    def __init__(self, layer: nn.Conv2d) -> None:
        self._layer: Any = layer

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Seen]:
        """Outputs (M, F, h, w) for inputs (M, C, H, W), and what `backward` takes."""
        layer = self._layer
        found = conv2d(x, layer.weight, layer.bias, layer.stride, layer.padding).relu_()
        return found, (x, found)

    def backward(self, gradient: torch.Tensor, seen: Seen, *, fresh: bool) -> torch.Tensor:
        """The gradient by the inputs (M, C, H, W); adds that by the weights.

        Args:
            gradient: by the outputs (M, F, h, w); its memory may be written to.
            seen: what `forward` returned.
            fresh: whether the gradient by the weights is overwritten instead of added to.
        """
        x, found = seen
        layer = self._layer
        below: torch.Tensor
        self._begin(fresh=fresh)
        below, by_weight = self._differentiated(gradient, x, layer.weight, found, layer.stride, further=True)
        layer.weight.grad.add_(by_weight)
        return below

    def _begin(self, *, fresh: bool) -> None:
        if fresh:  # these are few numbers
            self._layer.weight.grad.zero_()
            self._layer.bias.grad.zero_()

    def _differentiated(
        self,
        gradient: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        found: torch.Tensor,
        stride: Sequence[int],
        *,
        further: bool,
    ) -> tuple[Any, torch.Tensor]:
        """Gradients by the inputs, if there is `further` to go, and by the weights; adds that by the biases."""
        masked = _masked(gradient.contiguous(memory_format=torch.channels_last), found)
        below, by_weight, by_bias = torch.ops.aten.convolution_backward(
            *(masked, x, weight, [len(weight)], stride, self._layer.padding),
            *([1, 1], False, [0, 0], 1, [further, True, True]),
        )
        self._layer.bias.grad.add_(by_bias)
        return below, by_weight


class Shown(Convolved):
    """The first convolution, of pictures as they are stored, and ReLU; see `Pixels`."""

    _stride: tuple[int, ...]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Seen]:
        """Outputs (M, F, h, w) for pictures (M, C, H, W), and what `backward` takes."""
        with torch.enable_grad():
            shown, weight, self._stride = self._layer.prepared(x)
        found = conv2d(shown, weight.detach(), self._layer.bias, self._stride, self._layer.padding).relu_()
        return found, (shown, weight, found)

    def backward(self, gradient: torch.Tensor, seen: Seen, *, fresh: bool) -> torch.Tensor:
        """Add the gradient by the weights; nothing is before them, and what is returned has no meaning."""
        shown, weight, found = seen
        self._begin(fresh=fresh)
        _, by_weight = self._differentiated(gradient, shown, weight.detach(), found, self._stride, further=False)
        torch.autograd.backward([weight], [by_weight])  # those of tiles are made of the few weights of the layer
        return gradient


class Connected:
    """A dense layer, and ReLU if it is not the last one.

    Args:
        layer: its weights.
        relu: whether ReLU follows.
    """

    def __init__(self, layer: nn.Linear, *, relu: bool) -> None:
        self._layer: Any = layer
        self._relu = relu

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Seen]:
        """Outputs (M, n) for inputs (M, m), and what `backward` takes."""
        found = torch.addmm(self._layer.bias, x, self._layer.weight.t())
        return found.relu_() if self._relu else found, (x, found)

    def backward(self, gradient: torch.Tensor, seen: Seen, *, fresh: bool) -> torch.Tensor:
        """The gradient by the inputs (M, m), its columns one by one in memory; adds that by the weights.

        Args:
            gradient: by the outputs (M, n); its memory may be written to.
            seen: what `forward` returned.
            fresh: whether the gradient by the weights is overwritten instead: they are many.
        """
        x, found = seen
        masked = _masked(gradient, found) if self._relu else gradient
        self._layer.weight.grad.addmm_(masked.t(), x, beta=0 if fresh else 1)
        self._layer.bias.grad.copy_(masked.sum(0)) if fresh else self._layer.bias.grad.add_(masked.sum(0))
        # Two threads share few rows badly, and many columns well.
        below: torch.Tensor = self._layer.weight.t().mm(masked.t()).t()
        return below


class Kept(NamedTuple):
    """Everything that a network needs in order to be differentiated.

    Args:
        names: of the heads.
        shape: of the channels (M, F, h, w) behind the convolutions.
        convolutions: what these have seen.
        trunk: what the layers that all heads share have seen.
        heads: the same of each head.
    """

    names: Sequence[str]
    shape: torch.Size
    convolutions: list[Seen]
    trunk: list[Seen]
    heads: list[list[Seen]]


class ByHand:
    """A network of pictures, as `pictures.PictureGradients` asks for it.

    Args:
        see: its convolutions.
        heads: dense layers, by name.
        common: those that all heads share.
    """

    def __init__(self, see: Body, heads: Mapping[str, Dense], common: Dense | None) -> None:
        assert see.whole_picture is not None  # noqa: S101 - `knows` has looked
        first, *others = [one for one in see.whole_picture.layers if isinstance(one, nn.Conv2d)]
        self._image = see.whole_picture.image
        self._convolutions = [Shown(first), *map(Convolved, others)]
        self._trunk = _connected(common or ())
        self._heads = {name: _connected(one) for name, one in heads.items()}

    @staticmethod
    def knows(see: Body, heads: Mapping[str, Dense], common: Dense | None) -> bool:
        """Return whether there is nothing but layers that are differentiated here, in float32."""
        pictures, dense = see.whole_picture, [one for one in (*heads.values(), common) if one is not None]
        if pictures is None or any(one.precision == "bfloat16" for one in (pictures, *dense)):
            return False
        *layers, last = pictures.layers
        kinds = [type(one) for one in layers]
        return (
            kinds == [Pixels, nn.ReLU, *[nn.Conv2d, nn.ReLU] * (len(kinds) // 2 - 1)]
            and type(last) is nn.Flatten
            and all(map(_is_simple, layers[::2]))
            and all(map(_alternates, dense))
        )

    @torch.no_grad()
    def outputs(self, obs: torch.Tensor, names: Sequence[str], *, graded: bool) -> tuple[list[torch.Tensor], Any]:
        """Outputs (M, n) of the named heads for pictures (M, ...), and what `backward` takes, if that is asked for."""
        channels, convolutions = _through(self._convolutions, channels_first(obs).reshape(-1, *self._image))
        x, trunk = _through(self._trunk, channels.flatten(1))
        found = [_through(self._heads[name], x) for name in names]
        kept = Kept(names, channels.shape, convolutions, trunk, [one for _, one in found]) if graded else None
        return [outputs for outputs, _ in found], kept

    @torch.no_grad()
    def backward(self, kept: Kept, gradients: Sequence[torch.Tensor], *, fresh: bool) -> None:
        """Add to the gradients of the weights what follows from those by the outputs (M, n); `fresh`: overwrite."""
        below: Any = None
        for name, gradient, seen in zip(kept.names, gradients, kept.heads, strict=True):
            reached = _back(self._heads[name], gradient, seen, fresh=fresh)
            below = reached if below is None else below.add_(reached)
        features = _back(self._trunk, below, kept.trunk, fresh=fresh).view(kept.shape)
        _back(self._convolutions, features, kept.convolutions, fresh=fresh)


def _is_simple(layer: Any) -> bool:
    """Return whether a convolution has biases, and nothing but filters, strides and zeros around."""
    is_plain = (layer.groups, layer.dilation, layer.padding_mode) == (1, (1, 1), "zeros")
    return is_plain and layer.bias is not None and isinstance(layer.padding, tuple)


def _alternates(layers: Dense) -> bool:
    """Return whether there are layers with biases alone, and ReLU after some of them."""
    kinds = [type(one) for one in layers]
    return (
        set(kinds) <= {nn.Linear, nn.ReLU}
        and all(one is nn.Linear or before is nn.Linear for before, one in itertools.pairwise((None, *kinds)))
        and all(one.bias is not None for one in layers if isinstance(one, nn.Linear))
    )


def _connected(layers: Any) -> list[Connected]:
    """The dense layers of a module, each with its ReLU."""
    return [
        Connected(one, relu=isinstance(following, nn.ReLU))
        for one, following in itertools.pairwise((*layers, None))
        if isinstance(one, nn.Linear)
    ]


def _through(layers: Sequence[Convolved | Connected], x: torch.Tensor) -> tuple[torch.Tensor, list[Seen]]:
    kept = []
    for layer in layers:
        x, seen = layer.forward(x)
        kept.append(seen)
    return x, kept


def _back(
    layers: Sequence[Convolved | Connected], gradient: torch.Tensor, kept: Sequence[Seen], *, fresh: bool
) -> torch.Tensor:
    for layer, seen in zip(reversed(layers), reversed(kept), strict=True):
        gradient = layer.backward(gradient, seen, fresh=fresh)
    return gradient


def _masked(gradient: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """The gradient before ReLU, in the same memory, by that behind it and by its outputs."""
    torch.ops.aten.threshold_backward.grad_input(gradient, found, 0, grad_input=gradient)
    return gradient
