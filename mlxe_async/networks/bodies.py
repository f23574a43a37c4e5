"""Layers that networks are put together from, as plain torch modules.

`dense(4, (64, 64), 2)` is a network; `body(spaces)` is what a task's observations go through first, whatever they are,
and says by `outputs` how many features come out. `Normaliser` shows a network what it sees in units of its deviation.

`Dense` and `Body` take arrays as well as tensors, and give the same back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from mlxe_async.maths import normaliser
from mlxe_async.networks.by_numpy import is_heard
from mlxe_async.networks.convolutions import Pictures, Pixels, elu_stack, nature, small
from mlxe_async.networks.dense import Dense, dense, glorot, orthogonal
from mlxe_async.networks.mixed import channels_first, flat
from mlxe_async.networks.pictures import image_of, is_picture
from mlxe_async.networks.seen import key_of
from mlxe_async.parts import BYTES, Part
from mlxe_async.rows import MASK, WHOLE, Array, Spaces

__all__ = [
    "Body",
    "Dense",
    "Normaliser",
    "Pictures",
    "Pixels",
    "body",
    "dense",
    "elu_stack",
    "glorot",
    "nature",
    "orthogonal",
    "small",
]


class Body(nn.Module):
    """Turns observations into features (B, outputs): pictures by convolutions, numbers as they are.

    Args:
        spaces: of the task; a mask of actions is no feature.
        pictures: the convolutions of each part that is a picture, by its name. Or what makes those of an (C, H, W),
            left out `nature`, or `small` where that is too large: pictures are parts of three axes, channels first or
            last, and large ones of bytes of two. All other parts are numbers.
        normalise: show numbers by a `Normaliser`, which `count` tells of a batch; pictures stay as they are.
        scale: factors of the numbers, or of a picture that is the whole observation; one for all or one each.
    """

    takes_arrays = True

    def __init__(
        self, spaces: Spaces, pictures: Any = None, *, normalise: bool = False, scale: Sequence[float] = (1.0,)
    ) -> None:
        super().__init__()
        self._spaces, self._scale = spaces, tuple(scale)
        self._factors: dict[Any, Any] = {}
        parts = [part for part in spaces.parts if part.name != MASK]
        parts = parts or [Part(WHOLE, spaces.observation_shape, spaces.observation_dtype, 0)]
        given = pictures if isinstance(pictures, Mapping) else _convolutions_of(parts, pictures)
        self._order = [part.name for part in parts]
        self.convolutions = nn.ModuleDict({key_of(part.name): given[part.name] for part in parts if part.name in given})
        self.numbers = sum(part.size for part in parts if part.name not in given)
        self.widths = [
            (part.name in given, given[part.name].outputs if part.name in given else part.size) for part in parts
        ]
        "Pairs of each part: whether it is a picture, and its number of features."
        self.outputs = sum(width for _, width in self.widths)
        self.normaliser = Normaliser(self.numbers) if normalise and self.numbers else None
        is_vector = not spaces.parts and len(spaces.observation_shape) == 1
        self._is_bare = is_vector and self.normaliser is None and self._scale == (1.0,) and not self.convolutions
        self._settled: Callable[[Array], Array] | None = None

    def __call__(self, obs: Any) -> Any:
        """Features (B, outputs) of observations (B, *O) as they are stored, in the order of their parts.

        Observations of several parts may come as these parts, name -> (B, *shape).
        """
        if not isinstance(obs, np.ndarray):
            return super().__call__(obs)
        if (settled := self.__dict__["_settled"]) is not None:
            return settled(obs)
        if self._is_plain and not is_heard():
            if self._is_bare and obs.dtype is _FLOAT32:
                return obs
            if not self.convolutions:
                return self.forward(obs)
        with torch.inference_mode():
            return super().__call__(torch.from_numpy(np.ascontiguousarray(obs))).numpy(force=True)

    def forward(self, obs: Any) -> Any:
        """The same."""
        if not self.convolutions and not isinstance(obs, Mapping):
            return self._shown(obs if self._is_vector(obs) else self._spaces.vector(obs))
        parts = self._split(obs)
        if not self.numbers:
            pictures = self._scaled(flat(obs, 3)) if len(self._scale) > 1 else None
            features = [self._convolved(name, parts[name] if pictures is None else pictures) for name in self._order]
            return features[0] if len(features) == 1 else torch.cat(features, -1)
        numbers = self._numbers(parts)
        shown = self._shown(torch.cat([*numbers.values()], -1)).split([one.shape[1] for one in numbers.values()], -1)
        known = dict(zip(numbers, shown, strict=True))
        features = [known[name] if name in known else self._convolved(name, parts[name]) for name in self._order]
        return torch.cat(features, -1)

    def settle(self) -> None:
        """Take moments and hooks to stay as they are now, until `unsettle`, for arrays without pictures."""
        self._settled = None
        if self.convolutions or not self._is_plain or is_heard():
            return
        normalised = None if self.normaliser is None else self.normaliser.settled()
        if normalised is not None and self._scale == (1.0,):
            self._settled = self._shown_by(normalised)
        elif normalised is None and self.normaliser is None:
            self._settled = self._as_it_is if self._is_bare else self.forward

    def settle_as(self, versions: Sequence[Body]) -> bool:
        """Show arrays (V, ..., *O) of several settled versions by the moments of each, until `unsettle`.

        Returns whether this body can; if not, nothing changes.
        """
        settled = all(one._settled is not None for one in versions)
        if settled and self.normaliser is not None:
            moments = [one.normaliser.moments for one in versions if one.normaliser is not None]
            means, variances = (np.stack(one)[:, None] for one in zip(*(one[:2] for one in moments), strict=True))
            self._settled = self._shown_by(normaliser.normalising(means, variances))
        return settled

    def unsettle(self) -> None:
        """Examine moments and hooks at each call."""
        self._settled = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_settled": None}  # a copy has moments of its own

    def _shown_by(self, normalised: Callable[[Array], Array]) -> Callable[[Array], Array]:
        vector = self._spaces.vector
        return lambda obs: normalised(obs if self._is_vector(obs) else vector(obs))

    def _as_it_is(self, obs: Array) -> Array:
        found: Array = obs if obs.dtype is _FLOAT32 else self.forward(obs)
        return found

    def count(self, obs: Any) -> None:
        """Take the numbers of further observations (B, *O) into account, where numbers are normalised."""
        self.unsettle()
        if self.normaliser is None:
            return
        if not self.convolutions:
            self.normaliser.count(self._spaces.vector(obs))
        else:
            rows = torch.from_numpy(np.ascontiguousarray(obs)) if isinstance(obs, np.ndarray) else obs
            self.normaliser.count(torch.cat([*self._numbers(self._split(rows)).values()], -1))

    @property
    def whole_picture(self) -> Pictures | None:
        """The convolutions of a picture that is the whole observation, as it is stored; None: it is something else."""
        is_one = bool(self.convolutions) and not self._spaces.parts and len(self._scale) == 1
        return cast("Pictures", next(iter(self.convolutions.values()))) if is_one else None

    @property
    def _is_plain(self) -> bool:
        """True if nothing was attached to this module, or made of it."""
        own = self.__dict__
        return not (own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own) and (
            type(self).forward is _FORWARD
        )

    def _is_vector(self, obs: Any) -> bool:
        """Return whether observations that are stored as bytes come as the numbers that they stand for."""
        return bool(self._spaces.parts) and self._spaces.observation_dtype == BYTES and "float" in str(obs.dtype)

    def put(self, moments: normaliser.Moments) -> None:
        """Normalise numbers by these moments from now on.

        Raises:
            ValueError: they are not normalised.
        """
        if self.normaliser is None:
            raise ValueError("Body: expected one that normalises its numbers, to show them by these moments")
        self.unsettle()
        self.normaliser.put(moments)

    def _shown(self, numbers: Any) -> Any:
        return self._scaled(numbers if self.normaliser is None else self.normaliser(numbers))

    def _scaled(self, numbers: Any) -> Any:
        """Numbers (..., n) times their factors."""
        if len(self._scale) == 1:
            return (
                numbers
                if self._scale[0] == 1
                else numbers * (np.float32(self._scale[0]) if isinstance(numbers, np.ndarray) else self._scale[0])
            )
        place = None if isinstance(numbers, np.ndarray) else numbers.device
        if place not in self._factors:  # a launch that is recorded cannot wait for an upload
            array = np.array(self._scale, np.float32)
            self._factors[place] = array if place is None else torch.tensor(array, device=place)
        return numbers * self._factors[place]

    def _split(self, obs: Any) -> Mapping[str, Any]:
        return obs if isinstance(obs, Mapping) else self._spaces.split(obs)

    def _numbers(self, parts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The parts that are no pictures, flattened (B, n), by name."""
        names = [name for name in self._order if key_of(name) not in self.convolutions]
        return {name: flat(parts[name], parts[name].ndim - 1).float() for name in names}

    def _convolved(self, name: str, part: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.convolutions[key_of(name)](channels_first(part) if part.ndim > 2 else part)
        return found


def _convolutions_of(parts: Sequence[Part], made_by: Any) -> dict[str, Pictures]:
    """Return the convolutions of all parts that look like pictures."""
    found = {}
    for part in parts:
        if len(part.shape) == 3 or (part.dtype == BYTES and is_picture(part.shape)):
            image, _ = image_of(part.shape)
            found[part.name] = (made_by or (nature if is_picture(part.shape) else small))(image)
    return found


def body(spaces: Spaces, pictures: Any = None, *, normalise: bool = False) -> Body:
    """Return what a task's observations go through first; see `Body`."""
    return Body(spaces, pictures, normalise=normalise)


_FORWARD = Body.forward
_FLOAT32 = np.dtype(np.float32)  # the one object that all arrays of this type have


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
        # A mean that is large beside the deviation is taken off in two pieces: float32 alone would round it.
        near = self.mean.float()
        centred = x - near - (self.mean - near).float()
        shown = centred / (self.variance + normaliser.EPSILON).sqrt().float()
        return shown.clamp(-normaliser.LIMIT, normaliser.LIMIT)

    def settled(self) -> Callable[[Array], Array] | None:
        """Return what shows arrays by the moments of now; None: something was attached to it, or made of it."""
        own = vars(self)
        if (
            own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or "forward" in own
            or type(self).forward is not _NORMALISED
        ):
            return None
        return normaliser.normalising(self.mean.numpy(force=True), self.variance.numpy(force=True))

    def count(self, rows: torch.Tensor | Array) -> None:
        """Take further rows (..., O) into account."""
        values = rows.numpy(force=True) if isinstance(rows, torch.Tensor) else rows
        self.put(normaliser.merge(self.moments, values.reshape(-1, len(self.mean))))

    @property
    def moments(self) -> normaliser.Moments:
        """The moments of all rows so far."""
        return normaliser.Moments(self.mean.numpy(force=True), self.variance.numpy(force=True), float(self.rows))

    @torch.no_grad()
    def put(self, moments: normaliser.Moments) -> None:
        """Show rows by these moments (O,) from now on."""
        for buffer, value in zip((self.mean, self.variance, self.rows), moments, strict=True):
            buffer.copy_(torch.as_tensor(value))


_NORMALISED = Normaliser.forward
