"""Pictures: their shapes, their axis of channels, and the convolutions for them; nothing is evaluated here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Activation = Literal["tanh", "relu"]
Body = Literal["none", "nature", "small", "elu"]
Precision = Literal["float32", "tf32", "bfloat16"]


class Convolution(NamedTuple):
    """A layer of a body: `filters` of `width` x `width` every `stride` pixels, behind `padding` zeros on each side."""

    filters: int
    width: int
    stride: int
    padding: int = 0


@dataclass(frozen=True)
class Convolutions:
    """The convolutions of pictures (C, H, W) before the trunk.

    Args:
        layers: one after the other.
        smallest: pixels of a side that leave one behind them.
        scale: factor of every pixel; None: the network's `input_scale`.
        elu: each is followed by ELU; otherwise by the network's activation.
    """

    layers: tuple[Convolution, ...]
    smallest: int
    scale: float | None
    elu: bool = False


BODIES = {
    "nature": Convolutions((Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1)), 36, 1 / 255),
    "small": Convolutions((Convolution(16, 3, 1),), 3, None),
    "elu": Convolutions((Convolution(32, 3, 2, 1),) * 4, 1, 1 / 255, elu=True),
}
"""Mnih et al. 2015; Young and Tian 2019, for grids such as MinAtar's; Pathak et al. 2017."""


def is_picture(shape: tuple[int, ...]) -> bool:
    """Return whether an array (C, H, W), (H, W, C) or (H, W) is a picture that the convolutions `"nature"` can take."""
    return len(shape) in (2, 3) and min(image_of(shape)[0][1:]) >= BODIES["nature"].smallest


def image_of(shape: tuple[int, ...]) -> tuple[tuple[int, int, int], bool]:
    """A picture's shape (C, H, W), and whether its channels come last; one of two axes has one channel."""
    if len(shape) == 2:
        return (1, *shape), False
    first, second, last = shape
    # So small, colours can be taken for rows: those of a square picture that come last.
    if first == second > last or (last < first and last < second and min(first, second) >= BODIES["nature"].smallest):
        return (last, first, second), True
    return (first, second, last), False
