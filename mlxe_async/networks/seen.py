"""The parts of observations that a network is shown: which are pictures and which are numbers; without torch.

It is found before any layer is made, so that settings which do not fit are refused, and what a network will hold is
told, before torch has to be imported.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from mlxe_async.networks.flat import Parameters
from mlxe_async.networks.mixed import expected_of, pictures_in
from mlxe_async.networks.pictures import BODIES, Convolutions, image_of
from mlxe_async.parts import BYTES
from mlxe_async.rows import WHOLE, Spaces

MOST_WEIGHTS = 1 << 28  # of one layer: 1 GiB
WIDE = 4
"""Number of pieces in which a number of 64 bits is published."""


class CellKind(NamedTuple):
    """Numbers that make a recurrent cell of torch's.

    Args:
        gates: that its weights hold, one after the other.
        states: vectors that it carries in each layer.
    """

    gates: int
    states: int


CELLS = {"lstm": CellKind(4, 2), "gru": CellKind(3, 1), "dilated": CellKind(4, 2)}
"""Kinds by name; a dilated one has these numbers in each core."""


class Picture(NamedTuple):
    """A part of an observation that goes through convolutions.

    Args:
        name: of the part.
        image: (C, H, W).
        scale: factor of its pixels.
    """

    name: str
    image: tuple[int, int, int]
    scale: float


@dataclass(frozen=True)
class Seen:
    """Pictures, each with convolutions of its own, and numbers beside their features.

    Args:
        body: name of the convolutions, one of `BODIES`, or `"none"`.
        pictures: what goes through them.
        numbers: entries of all other parts together.
        input_scale: factor of every number, or of every pixel of a body that has none; one for all or one each.
    """

    body: str
    pictures: tuple[Picture, ...]
    numbers: int
    input_scale: tuple[float, ...]

    @property
    def convolutions(self) -> Convolutions:
        """The convolutions of each picture."""
        return BODIES[self.body]

    @cached_property
    def outputs(self) -> int:
        """Features of the pictures, and numbers."""
        return self.numbers + sum(self._features(one.image) for one in self.pictures)

    @property
    def words(self) -> str:
        """Such as `4 numbers`, or `eye by 3 convolutions (128 features) beside 5 numbers`."""
        layers = f"{len(self.convolutions.layers)} convolutions" if self.pictures else ""
        seen = [
            f"{'the picture' if one.name == WHOLE else one.name} by {layers} ({self._features(one.image):,} features)"
            for one in self.pictures
        ]
        beside = [f"{self.numbers:,} number{'' if self.numbers == 1 else 's'}"] if self.numbers else []
        return " beside ".join((*seen, *beside))

    def parameters(self, name: str) -> Parameters:
        """Names and shapes of the parameters of `bodies.Body`, as an attribute of this name."""
        found: list[tuple[str, tuple[int, ...]]] = []
        for picture in self.pictures:
            fan_in, place = picture.image[0], f"{name}.convolutions.{key_of(picture.name)}.layers"
            for index, (filters, width, _, _) in enumerate(self.convolutions.layers):
                found.append((f"{place}.{2 * index}.weight", (filters, fan_in, width, width)))
                found.append((f"{place}.{2 * index}.bias", (filters,)))
                fan_in = filters
        return tuple(found)

    def moments(self, name: str) -> Parameters:
        """Return names and shapes of its running moments, which a module publishes behind all of its parameters."""
        sizes = {"mean": self.numbers, "variance": self.numbers, "rows": 1}
        return tuple((f"{name}.normaliser.{one}", (WIDE * size,)) for one, size in sizes.items())

    def _features(self, image: tuple[int, ...]) -> int:
        """Return what the convolutions leave of a picture (C, H, W); 0 if that is nothing."""
        sides = image[1:]
        for _, width, stride, padding in self.convolutions.layers:
            sides = tuple((side + 2 * padding - width) // stride + 1 for side in sides)
        return self.convolutions.layers[-1].filters * math.prod(sides) if min(sides) > 0 else 0


def seen_of(spaces: Spaces, settings: Any) -> Seen:
    """Return what the settings `body`, `input_scale` and `normalise` make of a task's observations.

    Raises:
        ValueError: they do not fit, by the key.
    """
    try:
        found = _found(spaces, settings)
    except ValueError as error:
        raise ValueError(f"algorithm.{error}") from error
    if getattr(settings, "normalise", False) and not found.numbers:
        told = "needs normalise = false: there are no numbers beside what goes through convolutions"
        raise ValueError(f'algorithm.normalise: body = "{found.body}" {told}')
    return found


def _found(spaces: Spaces, settings: Any) -> Seen:
    body, scale = settings.body, settings.input_scale
    mixed = expected_of(spaces, body)
    settings.refuse_factors(mixed, in_bytes=spaces.observation_dtype == BYTES)
    if mixed is not None:
        factors = {part.name: 1 / 255 if part.dtype == BYTES else 1.0 for part in mixed.parts}
        pictures = tuple(Picture(part.name, image, factors[part.name]) for part, image in mixed.images())
        found = Seen(body, pictures, mixed.numbers, scale)
    elif body == "none":
        found = Seen(body, (), spaces.entries, scale)
    else:
        of_bytes = BODIES[body].scale if spaces.observation_dtype == BYTES else None
        factor = of_bytes or (scale[0] if len(scale) == 1 else 1.0)
        found = Seen(body, (Picture(WHOLE, _whole(spaces, body), factor),), 0, scale)
    expected = found.numbers or math.prod(found.pictures[0].image)
    if len(scale) not in (1, expected):
        raise ValueError(f"input_scale: expected 1 or {expected} factors, got {len(scale)}")
    return found


def _whole(spaces: Spaces, body: str) -> tuple[int, int, int]:
    """The picture that an observation is (C, H, W)."""
    shape = spaces.observation_shape
    shape = image_of(shape)[0] if len(shape) == 2 and pictures_in(spaces) else shape
    last = len(shape) == 3 and image_of(shape)[1]
    if len(shape) == 3 and not last and Seen(body, (Picture("", shape, 1.0),), 0, ())._features(shape):
        return shape
    advice = '; add channels_first = true to [task], or body = "none" to [algorithm]' if last else ""
    smallest = BODIES[body].smallest
    raise ValueError(
        f'body = "{body}": needs pictures (channels, {smallest}, {smallest}) or larger, got {shape}{advice}'
    )


def dense_parameters(
    name: str,
    inputs: int,
    sizes: Sequence[int],
    outputs: int | None = None,
    *,
    layer_norm: bool = False,
    noisy: bool = False,
) -> Parameters:
    """Names and shapes of what `bodies.dense` makes, as an attribute of this name.

    Raises:
        ValueError: a layer is too large to be made.
    """
    widths, found = (inputs, *sizes, *(() if outputs is None else (outputs,))), list[tuple[str, tuple[int, ...]]]()
    for number, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        if fan_in * fan_out > MOST_WEIGHTS:
            raise ValueError(
                f"algorithm.{name}: expected at most {MOST_WEIGHTS:,} weights in a layer, got {fan_in} x {fan_out}; "
                "show smaller observations, or take smaller layers"
            )
        place = f"{name}.{(3 if layer_norm else 2) * number}"
        for kind in ("", "_sigma") if noisy else ("",):
            found += [(f"{place}.weight{kind}", (fan_out, fan_in)), (f"{place}.bias{kind}", (fan_out,))]
    return tuple(found)


def cell_parameters(name: str, kind: str, inputs: int, size: int, layers: int) -> Parameters:
    """Names and shapes of what `cells.Cell`, or `dilated.Dilated`, makes, as an attribute of this name."""
    name = f"{name}.core" if kind == "dilated" else name
    rows, found = CELLS[kind].gates * size, list[tuple[str, tuple[int, ...]]]()
    for layer in range(layers):
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, size if layer else inputs), "weight_hh": (rows, size)}
        shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        found += [(f"{name}.layers.{what}_l{layer}", shape) for what, shape in shapes.items()]
    return tuple(found)


def cell_entries(kind: str, size: int, layers: int, cores: int) -> int:
    """Numbers that a cell carries; a dilated one has cores, and whose turn it is."""
    entries = CELLS[kind].states * layers * size
    return cores * entries + 1 if kind == "dilated" else entries


def key_of(part: str) -> str:
    """A part's name as torch allows it for a module."""
    return part.replace(".", "/")
