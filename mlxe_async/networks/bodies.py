"""Layers that networks are put together from, as plain torch modules.

`dense(4, (64, 64), 2)` is a network; `body(spaces)` is what a task's observations go through first, whatever they are,
and says by `outputs` how many features come out. `Normaliser` shows a network what it sees in units of its deviation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as all_modules

from mlxe_async.maths import normaliser
from mlxe_async.networks.mixed import channels_first, flat
from mlxe_async.networks.pictures import BODIES, image_of, is_picture
from mlxe_async.parts import BYTES, Part
from mlxe_async.rows import MASK, Array, Spaces


def dense(
    inputs: int, sizes: Sequence[int], outputs: int | None = None, activation: type[nn.Module] = nn.ReLU
) -> Dense:
    """Linear layers with an activation after each, and a linear one of `outputs` at the end, if given."""
    widths = (inputs, *sizes)
    pairs = zip(widths, sizes, strict=False)
    layers = [layer for fan_in, fan_out in pairs for layer in (_linear(fan_in, fan_out), activation())]
    if outputs is not None:
        layers.append(_linear(widths[-1], outputs))
    return Dense(*layers)


class Dense(nn.Sequential):
    """Linear layers with ReLU or tanh between them, which take arrays as well as tensors, and give the same back.

    Arrays are evaluated by numpy, which for a few rows takes a third of the time, on the layers' own numbers. Where a
    hook listens, or a layer is of another kind or has a `forward` of its own, torch evaluates them.
    """

    def __call__(self, x: Any) -> Any:
        """Outputs (..., outputs) for inputs (..., inputs)."""
        if not isinstance(x, np.ndarray):
            return super().__call__(x)
        layers: list[Any] = [*self._modules.values()]
        if not all(map(_is_plain, (self, *layers))) or _is_heard():
            with torch.inference_mode():
                return super().__call__(torch.as_tensor(x)).numpy(force=True)
        known: Any = self.__dict__.get("_views")
        if known is None or known.places != [one._parameters["weight"].data_ptr() for one in layers[::2]]:
            known = self.__dict__["_views"] = self._views_of(layers)
        for weight, bias, activation in known.layers:
            x = x @ weight
            x += bias
            if activation is not None:
                activation(x)
        return x

    def _views_of(self, layers: list[Any]) -> _Views:
        """Views of the layers' numbers."""
        found = []
        for linear, activation in itertools.zip_longest(layers[::2], layers[1::2]):
            weight, bias = (one.detach().numpy(force=True) for one in (linear.weight, linear.bias))
            found.append((weight.T, bias, _BY_NUMPY.get(type(activation))))
        return _Views([one.weight.data_ptr() for one in layers[::2]], found)


class _Views:
    """Where weights are, and of each linear layer weight (in, out), bias and what follows it; made anew when they move.

    Nothing of it is state: it has none to give, and takes none.
    """

    def __init__(self, places: list[int], layers: list[tuple[Any, ...]]) -> None:
        self.places, self.layers = places, layers

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Nothing to load."""


def _relu(x: Array) -> None:
    np.maximum(x, np.float32(0), out=x)


def _tanh(x: Array) -> None:
    np.tanh(x, out=x)


_BY_NUMPY: dict[Any, Any] = {nn.ReLU: _relu, nn.Tanh: _tanh}
_TORCHS_OWN = {kind: kind.forward for kind in (Dense, nn.Linear, *_BY_NUMPY)}


def _is_plain(module: Any) -> bool:
    """Whether numpy may stand for a module: its type is known, and nothing was attached to it."""
    own, kind = module.__dict__, type(module)
    return not (own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own) and (
        _TORCHS_OWN.get(kind) is kind.forward
    )


def _is_heard() -> bool:
    """Whether somebody listens to all modules."""
    return bool(all_modules._global_forward_hooks or all_modules._global_forward_pre_hooks)


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


class Pictures(nn.Module):
    """Pictures (B, C, H, W), bytes or floats, as features (B, outputs): bytes become numbers from 0 to 1.

    Args:
        image: (C, H, W).
        layers: the convolutions and what is between them.

    Raises:
        ValueError: the convolutions leave nothing of so small a picture.
    """

    def __init__(self, image: tuple[int, ...], *layers: nn.Module) -> None:
        super().__init__()
        self.image, self.layers = tuple(image), nn.Sequential(*layers, nn.Flatten())
        try:
            with torch.no_grad():
                self.outputs = self.layers(torch.zeros(1, *image)).shape[1]
        except RuntimeError as error:
            raise ValueError(f"body of pictures {self.image}: too small for its convolutions") from error

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Features (B, outputs) of pictures (B, C, H, W), or of as many numbers in one row."""
        pictures = obs.reshape(-1, *self.image)
        features: torch.Tensor = self.layers(pictures / 255 if obs.dtype == torch.uint8 else pictures)
        return features


def nature(image: tuple[int, ...]) -> Pictures:
    """The three convolutions of Mnih et al. 2015, with ReLU."""
    return _convolved("nature", image)


def small(image: tuple[int, ...]) -> Pictures:
    """One convolution of 16 filters 3 x 3 with ReLU: for grids of some 10 x 10, as in MinAtar (Young and Tian 2019)."""
    return _convolved("small", image)


def elu_stack(image: tuple[int, ...]) -> Pictures:
    """Four convolutions of 32 filters 3 x 3, each every second pixel, with ELU, as in Pathak et al. 2017."""
    return _convolved("elu", image)


def _convolved(name: str, image: tuple[int, ...]) -> Pictures:
    layers: list[nn.Module] = []
    channels = image[0]
    for filters, width, stride, padding in BODIES[name].layers:
        layers += [nn.Conv2d(channels, filters, width, stride, padding), nn.ELU() if BODIES[name].elu else nn.ReLU()]
        channels = filters
    return Pictures(image, *layers)


class Body(nn.Module):
    """What a task shows as features (B, outputs): its pictures through convolutions, its numbers as they are.

    Pictures are parts of three axes, channels first or last, and large ones of bytes of two; each has convolutions of
    its own. All other parts are numbers.

    Args:
        spaces: of the task; a mask of actions is no feature.
        pictures: makes the convolutions of an (C, H, W); left out, `nature`, or `small` where that is too large.
        normalise: show numbers by a `Normaliser`, which `count` tells of a batch; pictures stay as they are.
    """

    def __init__(self, spaces: Spaces, pictures: Any = None, *, normalise: bool = False) -> None:
        super().__init__()
        self._spaces = spaces
        parts = [part for part in spaces.parts if part.name != MASK]
        parts = parts or [Part("", spaces.observation_shape, spaces.observation_dtype, 0)]
        self._order = [part.name for part in parts]
        self.convolutions = nn.ModuleDict()
        self.outputs = self.numbers = 0
        for part in parts:
            if len(part.shape) == 3 or (part.dtype == BYTES and is_picture(part.shape)):
                image, _ = image_of(part.shape)
                made = (pictures or (nature if is_picture(part.shape) else small))(image)
                self.convolutions[_key(part.name)] = made
                self.outputs += made.outputs
            else:
                self.numbers += part.size
        self.outputs += self.numbers
        self.normaliser = Normaliser(self.numbers) if normalise and self.numbers else None

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Features (B, outputs) of observations (B, *O) as they are stored, in the order of their parts."""
        parts = self._split(obs)
        numbers = self._numbers(parts)
        if self.normaliser is not None:
            seen = self.normaliser(torch.cat([*numbers.values()], -1))
            numbers = dict(zip(numbers, seen.split([one.shape[1] for one in numbers.values()], -1), strict=True))
        features = [numbers[name] if name in numbers else self._convolved(name, parts[name]) for name in self._order]
        return torch.cat(features, -1)

    def count(self, obs: torch.Tensor) -> None:
        """Take the numbers of further observations (B, *O) into account, where numbers are normalised."""
        if self.normaliser is not None:
            self.normaliser.count(torch.cat([*self._numbers(self._split(obs)).values()], -1))

    def _split(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
        return self._spaces.split(obs) if self._spaces.parts else {"": obs}

    def _numbers(self, parts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The parts that are no pictures, flattened (B, n), by name."""
        names = [name for name in self._order if _key(name) not in self.convolutions]
        return {name: flat(parts[name], parts[name].ndim - 1).float() for name in names}

    def _convolved(self, name: str, part: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.convolutions[_key(name)](channels_first(part))
        return found


def body(spaces: Spaces, pictures: Any = None, *, normalise: bool = False) -> Body:
    """What a task's observations go through first; see `Body`."""
    return Body(spaces, pictures, normalise=normalise)


def _key(name: str) -> str:
    """A part's name as torch allows it."""
    return name.replace(".", "/") or "pictures"


class Numbers(nn.Module):
    """Observations without pictures, flattened (B, outputs), and normalised on request.

    Args:
        spaces: of the task; a mask of actions is left out.
        normalise: show them by a `Normaliser`.
    """

    def __init__(self, spaces: Spaces, *, normalise: bool = False) -> None:
        super().__init__()
        self._spaces, self.outputs = spaces, spaces.entries
        self.normaliser = Normaliser(self.outputs) if normalise else None

    def __call__(self, obs: Any) -> Any:
        """Numbers (B, outputs) of observations (B, *O) as they are stored; arrays or tensors."""
        return self.forward(obs) if isinstance(obs, np.ndarray) else super().__call__(obs)

    def forward(self, obs: Any) -> Any:
        """The same."""
        flat = self._spaces.vector(obs)
        return flat if self.normaliser is None else self.normaliser(flat)


class Normaliser(nn.Module):
    """(x - mean) / deviation of all rows that were counted so far, cut to +-10; before the first, x itself.

    Mean, variance and count are buffers: made in `build`, they are published with the weights that were learned by
    them. The learner counts each batch once, by `count`, after it has learned from it (Chan, Golub and LeVeque 1979).

    Args:
        inputs: entries (O,) of a row.
    """

    mean: torch.Tensor
    variance: torch.Tensor
    rows: torch.Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(inputs, dtype=torch.float64))
        self.register_buffer("rows", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        """Rows (..., O) in units of the deviation; arrays or tensors."""
        if isinstance(x, np.ndarray):
            return normaliser.normalise(x, self.mean.numpy(force=True), self.variance.numpy(force=True))
        shown = (x - self.mean.float()) / (self.variance.float() + normaliser.EPSILON).sqrt()
        return shown.clamp(-normaliser.LIMIT, normaliser.LIMIT)

    def count(self, rows: torch.Tensor | Array) -> None:
        """Take further rows (..., O) into account."""
        values = rows.numpy(force=True) if isinstance(rows, torch.Tensor) else rows
        self.put(normaliser.merge(self.moments, values.reshape(-1, len(self.mean))))

    @property
    def moments(self) -> normaliser.Moments:
        """What was counted so far."""
        return normaliser.Moments(self.mean.numpy(force=True), self.variance.numpy(force=True), float(self.rows))

    @torch.no_grad()
    def put(self, moments: normaliser.Moments) -> None:
        """Show rows by these moments (O,) from now on."""
        for buffer, value in zip((self.mean, self.variance, self.rows), moments, strict=True):
            buffer.copy_(torch.as_tensor(value))
