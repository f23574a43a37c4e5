"""Observations of several parts of which some are pictures: which ones.

Pictures go through convolutions, one stack of them for each; all other parts are numbers beside their features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mlxe_async import parts as packing
from mlxe_async.networks.pictures import BODIES, image_of, is_picture
from mlxe_async.parts import BYTES, FLOATS, Part
from mlxe_async.rows import WHOLE, Spaces


@dataclass(frozen=True)
class Mixed:
    """Observations of several parts: numbers and pictures.

    Args:
        parts: of a stored observation, without the mask of actions.
        pictures: names of those that go through convolutions.
        is_bytes: whether a stored observation is an array of bytes.
    """

    parts: tuple[Part, ...]
    pictures: tuple[str, ...]
    is_bytes: bool

    @cached_property
    def others(self) -> tuple[Part, ...]:
        """The parts that are no pictures."""
        return tuple(part for part in self.parts if part.name not in self.pictures)

    @cached_property
    def numbers(self) -> int:
        """Entries of these together."""
        return sum(part.size for part in self.others)

    @cached_property
    def is_counted_as_stored(self) -> bool:
        """True if all numbers are floats that come first in what is stored: they can be counted where they lie."""
        width = packing.FLOAT_BYTES if self.is_bytes else 1
        return all(part.dtype == FLOATS and part.offset < width * self.numbers for part in self.others)

    def images(self) -> Iterator[tuple[Part, tuple[int, int, int]]]:
        """The pictures in order, each with its shape (C, H, W)."""
        for part in self.parts:
            if part.name in self.pictures:
                yield part, image_of(part.shape)[0]


def channels_first(picture: Any) -> Any:
    """Tensors of pictures (M, *shape) as (M, C, H, W); a view."""
    image, is_last = image_of(tuple(picture.shape[1:]))
    return picture.permute(0, 3, 1, 2) if is_last else picture.reshape(picture.shape[0], *image)


def mixed_of(spaces: Spaces, body: str) -> Mixed | None:
    """Return how a body of convolutions sees the parts; None without parts, such a body, or a picture for it.

    Pictures are parts that are large enough for the body: of three axes, or bytes of two.
    """
    pictures = tuple(part.name for part in _seen(spaces) if body in BODIES and _is_for(body, part))
    return Mixed(_seen(spaces), pictures, spaces.observation_dtype == BYTES) if pictures else None


def expected_of(spaces: Spaces, body: str) -> Mixed | None:
    """Return `mixed_of` a body that the settings ask for.

    Raises:
        ValueError: there are parts, but no picture for it.
    """
    found = mixed_of(spaces, body)
    if found is None and spaces.parts and body in BODIES:
        side = BODIES[body].smallest
        asked = f'body = "{body}": needs a part that is a picture (channels, {side}, {side}) or larger'
        raise ValueError(f'{asked}, got {spaces.observation_words}; write body = "none"')
    return found


def pictures_in(spaces: Spaces) -> list[Part]:
    """Return the pictures of bytes large enough for `"nature"`: parts of an observation, or the whole of it."""
    if not spaces.parts:
        whole = Part(WHOLE, spaces.observation_shape, spaces.observation_dtype, 0)
        return [whole] if _is_picture_of_bytes(whole) else []
    return [part for part in spaces.parts if _is_picture_of_bytes(part)]


def _seen(spaces: Spaces) -> tuple[Part, ...]:
    """All parts but the mask."""
    return spaces.parts[:-1] if spaces.masked else spaces.parts


def _is_picture_of_bytes(part: Part) -> bool:
    return part.dtype == BYTES and is_picture(part.shape)


def _is_for(body: str, part: Part) -> bool:
    if len(part.shape) == 3:
        return min(image_of(part.shape)[0][1:]) >= BODIES[body].smallest
    return _is_picture_of_bytes(part)


def flat(part: Any, axes: int) -> Any:
    """Merge the last `axes` axes of a part (..., *shape) into one."""
    lead = part.shape[: part.ndim - axes]
    return part.reshape((*lead, math.prod(part.shape[len(lead) :])))
