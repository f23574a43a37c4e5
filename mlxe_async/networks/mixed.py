"""Observations of several parts of which some are pictures: which ones, and what a network is shown of them all.

Pictures go through convolutions, one stack of them for each; all other parts are numbers beside their features. What a
network is shown holds its numbers as floats, then its pictures as they are stored: bytes stay bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mlxe_async import parts as packing
from mlxe_async.networks.pictures import BODIES, image_of, is_picture
from mlxe_async.parts import BYTES, FLOATS, Part
from mlxe_async.rows import WHOLE, Array, Spaces

NUMBERS = "numbers"


@dataclass(frozen=True)
class Mixed:
    """Observations of several parts, taken apart into numbers and pictures; numpy and torch alike.

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
    def shown(self) -> tuple[Part, ...]:
        """How an observation is laid out for a network: `numbers`, if there are any, and the pictures."""
        pictures = [(part.name, part.shape, part.dtype) for part in self.parts if part.name in self.pictures]
        numbers = [(NUMBERS, (self.numbers,), FLOATS)] if self.numbers else []
        return packing.laid_out([*numbers, *pictures])

    @cached_property
    def is_shown_as_stored(self) -> bool:
        """Whether a stored observation is laid out like this anyway."""
        shown = {part.name: part.offset for part in self.shown}
        where = {part.name: part.offset for part in self.parts if part.name in self.pictures}
        alike = all(shown[name] == offset for name, offset in where.items())
        return alike and all(part.dtype == FLOATS for part in self.others) and self._numbers_come_first

    @property
    def _numbers_come_first(self) -> bool:
        width = packing.FLOAT_BYTES if self.is_bytes else 1
        return all(part.offset < width * self.numbers for part in self.others)

    def split(self, obs: Any) -> dict[str, Any]:
        """The parts (..., *shape) of stored observations (..., N) by name."""
        return {part.name: packing.view(part, obs, is_bytes=self.is_bytes) for part in self.parts}

    def numbers_of(self, parts: Mapping[str, Any]) -> Any:
        """All numbers (..., n) float32 of what `split` found, one part after the other; there is one at least."""
        numbers = [flat(parts[part.name], len(part.shape)) for part in self.others]
        if isinstance(numbers[0], np.ndarray):
            return np.concatenate(numbers, -1, dtype=np.float32)
        import torch

        return torch.cat([one.float() for one in numbers], -1)

    def packed(self, parts: Mapping[str, Array], numbers: Array | None) -> Array:
        """What a network is shown (..., S): these numbers (..., n), and the pictures of what `split` found."""
        known = {NUMBERS: numbers, **parts}
        found: Array = packing.packed(self.shown, {part.name: known[part.name] for part in self.shown})
        return found

    def taken_apart(self, shown: Any) -> tuple[Any, list[Any]]:
        """Numbers (M, n), None where there are none, and pictures (M, C, H, W) of what a network is shown (M, S)."""
        is_bytes = any(part.dtype == BYTES for part in self.shown)
        found = {part.name: packing.view(part, shown, is_bytes=is_bytes) for part in self.shown}
        return found.pop(NUMBERS, None), [channels_first(picture) for picture in found.values()]

    def images(self) -> Iterator[tuple[Part, tuple[int, int, int]]]:
        """The pictures in order, each with its shape (C, H, W)."""
        for part in self.shown:
            if part.name in self.pictures:
                yield part, image_of(part.shape)[0]


def channels_first(picture: Any) -> Any:
    """Tensors of pictures (M, *shape) as (M, C, H, W); a view."""
    image, is_last = image_of(tuple(picture.shape[1:]))
    return picture.permute(0, 3, 1, 2) if is_last else picture.reshape(len(picture), *image)


def numbers_in(spaces: Spaces) -> Mixed | None:
    """Observations of several parts all of which are numbers; None where they are one array."""
    return Mixed(_seen(spaces), (), spaces.observation_dtype == BYTES) if spaces.parts else None


def mixed_of(spaces: Spaces, body: str) -> Mixed | None:
    """What a body of convolutions makes of parts; None where there are no parts, no such body, or no picture for it.

    Pictures are parts that are large enough for the body: of three axes, or bytes of two.
    """
    pictures = tuple(part.name for part in _seen(spaces) if body in BODIES and _is_for(body, part))
    return Mixed(_seen(spaces), pictures, spaces.observation_dtype == BYTES) if pictures else None


def expected_of(spaces: Spaces, body: str) -> Mixed | None:
    """The same, where a body was asked for.

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
    """What of an observation is a picture of bytes large enough for `"nature"`: such parts, or the whole of it."""
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
    """A part (..., *shape) with its own axes, so many, merged into one."""
    lead = part.shape[: part.ndim - axes]
    return part.reshape((*lead, math.prod(part.shape[len(lead) :])))
