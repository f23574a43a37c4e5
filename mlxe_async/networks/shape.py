"""What a network looks like, how its weights begin, and the noise of a noisy one; nothing is evaluated here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlxe_async.networks.flat import Floats, Parameters, flatten

Activation = Literal["tanh", "relu"]
Body = Literal["none", "nature", "small", "elu"]
Precision = Literal["float32", "tf32", "bfloat16"]
MOST_WEIGHTS = 1 << 28  # of one layer: 1 GiB
LAYER_NORM_EPSILON = 1e-5
SIGMA = 0.5  # of a noisy network at the start, over the root of a layer's inputs: sigma 0 of Fortunato et al. 2018


class Convolution(NamedTuple):
    """A layer of a body: `filters` of `width` x `width` every `stride` pixels, behind `padding` zeros on each side."""

    filters: int
    width: int
    stride: int
    padding: int = 0


@dataclass(frozen=True)
class Convolutions:
    """What pictures (C, H, W) go through before the trunk.

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
    """Whether observations (C, H, W) or (H, W, C) are pictures that the convolutions `"nature"` can take."""
    return len(shape) == 3 and sorted(shape)[1] >= BODIES["nature"].smallest


@dataclass(frozen=True)
class Network:
    """The shape of a network: a common trunk, then heads side by side.

    Args:
        inputs: length O of a flattened observation.
        common: sizes of the layers that all heads share; may be empty.
        heads: per head the sizes of its own layers; the last size is the head's linear output.
        activation: what follows every layer but a head's last.
        input_scale: factor for every input, one for all or one each. It travels with the network's shape.
        layer_norm: normalise each layer's activity (no learned factors) before the activation.
        noisy: every weight and bias has a second number, the sigma of its noise; they follow after all the others.
            Convolutions have none.
        body: what observations go through before the trunk: `"none"`, or convolutions of `BODIES`, which take
            pictures (C, H, W).
        image: shape of an observation (C, H, W), for a body.
        precision: of what layers are computed in; weights are float32. `"tf32"` is float32 whose factors a GPU rounds
            when it learns, see `gpu.use_kernels`. Networks without a body know float32 alone.
        free: heads that no observation moves, such as the deviations of actions: learned numbers, and what they are
            first. Asked for as a head, one is (outputs,), the same for all observations.
        sigma: of a noisy network, all sigmas at the start, times the root of the layer's inputs.

    Raises:
        ValueError: `input_scale` or `image` does not fit, or a layer is too large to be made.
    """

    inputs: int
    common: tuple[int, ...]
    heads: Mapping[str, tuple[int, ...]]
    activation: Activation = "tanh"
    input_scale: tuple[float, ...] = (1.0,)
    layer_norm: bool = False
    noisy: bool = False
    body: Body = "none"
    image: tuple[int, ...] = ()
    precision: Precision = "float32"
    free: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    sigma: float = SIGMA

    def __post_init__(self) -> None:
        if self.convolutions is not None:
            self._expect_pictures(self.convolutions.smallest)
        if self.free and self.noisy:
            raise ValueError("noisy: expected a network without free numbers, got " + ", ".join(self.free))
        if len(self.input_scale) not in (1, self.inputs):
            raise ValueError(f"input_scale: expected 1 or {self.inputs} factors, got {len(self.input_scale)}")
        name, shape = max(self.means, key=lambda one: math.prod(one[1]))
        if math.prod(shape) > MOST_WEIGHTS:
            raise ValueError(
                f"{name.partition('.')[0]}: expected at most {MOST_WEIGHTS:,} weights in a layer, got "
                f"{' x '.join(map(str, shape))}; show smaller observations, or take smaller layers"
            )

    def _expect_pictures(self, smallest: int) -> None:
        image = self.image
        # So small, colours can be taken for rows: those of a square picture that come last.
        last = len(image) == 3 and image[0] == image[1] > image[2]
        if len(image) == 3 and min(self._sides(image)[-1]) >= 1 and not last:
            return
        last = last or (is_picture(image) and image[-1] == min(image))
        advice = '; add channels_first = true to [task], or body = "none" to [algorithm]' if last else ""
        asked = f'body = "{self.body}": needs pictures (channels, {smallest}, {smallest}) or larger'
        raise ValueError(f"{asked}, got {image}{advice}")

    @property
    def convolutions(self) -> Convolutions | None:
        """The body, if it has one."""
        return BODIES.get(self.body)

    @property
    def scale(self) -> tuple[float, ...]:
        """Factor for every input, one for all or one each, as it is computed with."""
        of_body = None if self.convolutions is None else self.convolutions.scale
        return self.input_scale if of_body is None else (of_body,)

    @property
    def parameters(self) -> Parameters:
        """Names and shapes in the order of the flat vector: per layer its weights (in, out), then its bias (out,).

        The weights of a convolution are (out, height, width, in).
        """
        return self.means + tuple((f"{name}.sigma", shape) for name, shape in self.perturbs)

    @property
    def perturbs(self) -> Parameters:
        """The weights and biases that are under noise: those of dense layers, if it is noisy."""
        return tuple(one for one in self.means if self.noisy and not one[0].startswith("body."))

    @property
    def means(self) -> Parameters:
        """The same without the sigmas of a noisy network."""
        result: list[tuple[str, tuple[int, ...]]] = []
        inputs = self.inputs
        if self.convolutions is not None:
            fan_in = self.image[0]
            for index, (fan_out, width, _, _) in enumerate(self.convolutions.layers):
                result.append((f"body.{index}.weight", (fan_out, width, width, fan_in)))
                result.append((f"body.{index}.bias", (fan_out,)))
                fan_in = fan_out
            inputs = fan_in * int(np.prod(self._sides(self.image)[-1]))
        chains = [("common", inputs, self.common)]
        trunk = self.common[-1] if self.common else inputs
        chains += [(head, trunk, sizes) for head, sizes in self.heads.items()]
        for chain, width, sizes in chains:
            for index, (fan_in, fan_out) in enumerate(zip((width, *sizes), sizes, strict=False)):
                result.append((f"{chain}.{index}.weight", (fan_in, fan_out)))
                result.append((f"{chain}.{index}.bias", (fan_out,)))
        return (*result, *((name, (len(first),)) for name, first in self.free.items()))

    def _sides(self, image: tuple[int, ...]) -> list[tuple[int, int]]:
        """Height and width after each convolution."""
        height, width, sides = *image[1:], []
        for _, size, stride, padding in self.convolutions.layers if self.convolutions is not None else ():
            height, width = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
            sides.append((height, width))
        return sides

    @property
    def chains(self) -> tuple[str, ...]:
        """Names of all chains of layers, as `layers` knows them."""
        return (*(("body",) if self.body != "none" else ()), "common", *self.heads, *self.free)

    def _orthogonal(self, rng: np.random.Generator, name: str, shape: tuple[int, ...], gain: float) -> NDArray[Any]:
        """Saxe et al. 2014; biases are 0."""
        if name.endswith("bias"):
            return np.zeros(shape)
        rows, columns = (shape[0], int(np.prod(shape[1:])))
        tall = rng.standard_normal((max(rows, columns), min(rows, columns)), np.float32)
        q, r = np.linalg.qr(tall)
        q *= np.sign(np.diag(r))
        return np.asarray(gain * (q if rows >= columns else q.T).reshape(shape))

    def initial(self, seed: int | Sequence[int], gains: Mapping[str, float] | None = None) -> Floats:
        """Fresh weights (P,): Glorot-uniform, biases zero; `gains` shrinks or stretches the last layer of a head.

        With a body they are orthogonal, as usual for pictures: times sqrt 2 before an activation, 1 behind the last.

        What is under noise is uniform within +-1/sqrt(inputs of the layer), all sigmas sigma/sqrt(inputs of the layer).
        """
        rng = np.random.default_rng(seed)
        last = {f"{head}.{len(sizes) - 1}.weight": head for head, sizes in self.heads.items()}
        noisy = {name for name, _ in self.perturbs}
        arrays: dict[str, NDArray[Any]] = {}
        fan_in = 1
        for name, shape in self.means:
            gain = (gains or {}).get(last.get(name, ""), 1.0)
            fan_in = shape[0] if name.endswith("weight") else fan_in  # a bias follows the weights of its layer
            if name in self.free:
                arrays[name] = np.array(self.free[name])
            elif name in noisy:
                arrays[name] = rng.uniform(-1, 1, shape) * gain / np.sqrt(fan_in)
                arrays[f"{name}.sigma"] = np.full(shape, self.sigma / np.sqrt(fan_in))
            elif self.body != "none":
                arrays[name] = self._orthogonal(rng, name, shape, gain if name in last else np.sqrt(2.0))
            elif name.endswith("bias"):
                arrays[name] = np.zeros(shape)
            else:
                limit = np.sqrt(6.0 / sum(shape)) * gain
                arrays[name] = rng.uniform(-limit, limit, shape)
        return flatten(arrays, self.parameters)

    def noise(self, rng: np.random.Generator) -> dict[str, Floats]:
        """Factorised noise for every weight and bias, name -> epsilon; Fortunato et al. 2018, eq. 10 and 11.

        With f(x) = sign(x) sqrt|x| of normal numbers, one per input and one per output of a layer, a weight's epsilon
        is f(input's) f(output's) and a bias's is f(output's).
        """
        result: dict[str, Floats] = {}
        for name, shape in self.perturbs:
            if name.endswith("weight"):
                inputs, outputs = (_signed_root(rng.standard_normal(size, np.float32)) for size in shape)
                result[name] = inputs[:, None] * outputs
            else:
                result[name] = outputs
        return result

    def perturbed(self, arrays: Mapping[str, Any], noise: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """What the layers are made of: mu + sigma * epsilon by name; without noise the mu. Takes numpy and torch."""
        if noise is None:
            return arrays
        loud = {name: arrays[name] + arrays[f"{name}.sigma"] * noise[name] for name, _ in self.perturbs}
        return {name: loud[name] if name in loud else arrays[name] for name, _ in self.means}

    def layers(self, arrays: Mapping[str, Any], chain: str) -> list[tuple[Any, ...]]:
        """The (weights, bias) pairs of the body, the trunk (`"common"`) or one head, in order; free numbers alone."""
        if chain in self.free:
            return [(arrays[chain],)]
        body = self.convolutions.layers if self.convolutions is not None else ()
        sizes: Sequence[Any] = body if chain == "body" else self.common if chain == "common" else self.heads[chain]
        return [(arrays[f"{chain}.{index}.weight"], arrays[f"{chain}.{index}.bias"]) for index in range(len(sizes))]


def _signed_root(x: Floats) -> Floats:
    result: Floats = np.sign(x) * np.sqrt(np.abs(x))
    return result
