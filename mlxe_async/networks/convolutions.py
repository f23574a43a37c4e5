"""Convolutions of pictures as plain torch modules: those of three papers, and any that user code makes."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import conv2d

from mlxe_async.networks.dense import computed_in
from mlxe_async.networks.pictures import BODIES


class Pixels(nn.Conv2d):
    """A convolution of pictures as they are stored: bytes become numbers from 0 to 1.

    That factor is multiplied into the weights, which are fewer. Where the width is a multiple of the stride, it is
    computed over tiles whose pixels are channels: the same sums, but processors are made for many channels.

    Args:
        channels: of the pictures.
        filters: channels of what comes out.
        width: of a filter.
        stride: pixels between two filters.
        padding: zeros on each side.
        scale: factor of the pixels; None: 1/255 for bytes, and 1 for floats.
    """

    def __init__(
        self, channels: int, filters: int, width: int, stride: int, padding: int = 0, scale: float | None = None
    ) -> None:
        super().__init__(channels, filters, width, stride, padding)
        self.scale = scale

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Channels (M, filters, h, w) of pictures (M, C, H, W), bytes or floats."""
        shown, weight, stride = self.prepared(pictures)
        return conv2d(shown, weight, self.bias, stride, self.padding)

    def prepared(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, tuple[int, ...]]:
        """Pictures or their tiles (M, channels, h, w) as they are convolved, the weights for them, and the stride."""
        scale = self.scale if self.scale is not None else 1 / 255 if pictures.dtype == torch.uint8 else 1.0
        weight, (stride, _), kind = self.weight, self.stride, pictures.device.type
        weight = weight if scale == 1 else weight * scale
        half = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if half else weight.dtype
        if stride == 1 or self.kernel_size[0] % stride or self.padding != (0, 0):
            return pictures.to(dtype), weight, self.stride
        return _tiled(pictures, stride).to(dtype).permute(0, 3, 1, 2), _of_tiles(weight, stride), (1, 1)


def _tiled(pictures: torch.Tensor, side: int) -> torch.Tensor:
    """Pictures (M, C, H, W) as square tiles: (M, h, w, channels), channels (C, side, side); a copy."""
    count, channels, height, width = pictures.shape
    high, wide, deep = height // side, width // side, channels * side * side
    is_bytes = pictures.dtype == torch.uint8 and pictures.device.type == "cpu"
    # An exported graph has a step for each operation of torch's, and none of numpy's.
    if is_bytes and side == 4 and width % side == 0 and not torch.compiler.is_compiling() and count:
        words = pictures.flatten(1).numpy().view(np.int32)
        tiles = torch.from_numpy(words.take(_word_order(channels, height, width), axis=1)).view(torch.uint8)
    else:
        within = pictures[:, :, : high * side, : wide * side]
        tiles = within.reshape(count, channels, high, side, wide, side).permute(0, 2, 4, 1, 3, 5)
    return tiles.reshape(count, high, wide, deep)


@functools.cache
def _word_order(channels: int, height: int, width: int) -> NDArray[np.intp]:
    """Return where the words of a picture's 4 x 4 tiles lie: adjacent bytes of a tile are copied as one.

    Numpy gathers them in half the time that torch's or its own copy of permuted axes takes.
    """
    high, wide = height // 4, width // 4
    words = np.arange(channels * height * wide).reshape(channels, height, wide)[:, : high * 4]
    return words.reshape(channels, high, 4, wide).transpose(1, 3, 0, 2).ravel()


def _of_tiles(weight: torch.Tensor, side: int) -> torch.Tensor:
    """A convolution's weights (out, in, height, width) for tiles: (out, channels, h, w), channels last in memory."""
    out, channels, height, width = weight.shape
    tiles = weight.view(out, channels, height // side, side, width // side, side).permute(0, 2, 4, 1, 3, 5)
    return tiles.reshape(out, height // side, width // side, channels * side * side).permute(0, 3, 1, 2)


class Pictures(nn.Module):
    """Pictures (B, C, H, W), bytes or floats, as features (B, outputs): bytes become numbers from 0 to 1.

    Args:
        image: (C, H, W).
        layers: the convolutions and what is between them; the first is a `Pixels`, or is shown numbers.
        precision: of what is computed; see `Dense.precision`.

    Raises:
        ValueError: the convolutions leave nothing of so small a picture.
    """

    def __init__(self, image: tuple[int, ...], *layers: nn.Module, precision: str = "float32") -> None:
        super().__init__()
        self.image, self.layers, self.precision = tuple(image), nn.Sequential(*layers, nn.Flatten()), precision
        try:
            with torch.no_grad():
                self.outputs = self.layers(torch.zeros(1, *image)).shape[1]
        except RuntimeError as error:
            raise ValueError(f"body of pictures {self.image}: too small for its convolutions") from error

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Features (B, outputs) of pictures (B, C, H, W), or of as many numbers in one row."""
        pictures = obs.reshape(-1, *self.image)
        if obs.dtype == torch.uint8 and not isinstance(self.layers[0], Pixels):
            pictures = pictures / 255
        with computed_in(self.precision, pictures):
            features: torch.Tensor = self.layers(pictures)
        return features.float()


def nature(image: tuple[int, ...]) -> Pictures:
    """The three convolutions of Mnih et al. 2015, with ReLU."""
    return convolved("nature", image)


def small(image: tuple[int, ...]) -> Pictures:
    """One convolution of 16 filters 3 x 3 with ReLU: for grids of some 10 x 10, as in MinAtar (Young and Tian 2019)."""
    return convolved("small", image)


def elu_stack(image: tuple[int, ...]) -> Pictures:
    """Four convolutions of 32 filters 3 x 3, each every second pixel, with ELU, as in Pathak et al. 2017."""
    return convolved("elu", image)


def convolved(
    name: str,
    image: tuple[int, ...],
    activation: type[nn.Module] = nn.ReLU,
    scale: float | None = None,
    precision: str = "float32",
) -> Pictures:
    """The convolutions of a name in `BODIES`; those that have ELU keep it. For `scale` see `Pixels`."""
    layers: list[nn.Module] = []
    channels, known = image[0], BODIES[name]
    for filters, width, stride, padding in known.layers:
        one = nn.Conv2d(channels, filters, width, stride, padding) if layers else None
        layers += [one or Pixels(channels, filters, width, stride, padding, scale)]
        layers += [nn.ELU() if known.elu else activation()]
        channels = filters
    return Pictures(image, *layers, precision=precision)
