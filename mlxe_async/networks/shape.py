"""What a network looks like, how its weights begin, and the noise of a noisy one; nothing is evaluated here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mlxe_async.networks.flat import Floats, Parameters, flatten
from mlxe_async.networks.mixed import Mixed
from mlxe_async.networks.pictures import BODIES, Convolution, Convolutions, Eye, image_of
from mlxe_async.parts import BYTES, FLOATS

Activation = Literal["tanh", "relu"]
Body = Literal["none", "nature", "small", "elu"]
Precision = Literal["float32", "tf32", "bfloat16"]
MOST_WEIGHTS = 1 << 28  # of one layer: 1 GiB
LAYER_NORM_EPSILON = 1e-5
SIGMA = 0.5  # of a noisy network at the start, over the root of a layer's inputs: sigma 0 of Fortunato et al. 2018


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
        mixed: for a body of observations with several parts: which of them are pictures. The others are numbers beside
            their features; `input_scale` and the moments of observations are of these numbers then.
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
    mixed: Mixed | None = None

    def __post_init__(self) -> None:
        if self.convolutions is not None and self.mixed is None:
            self._expect_pictures(self.convolutions.smallest)
        if self.free and self.noisy:
            raise ValueError("noisy: expected a network without free numbers, got " + ", ".join(self.free))
        factors = self.inputs if self.mixed is None else self.mixed.numbers
        if len(self.input_scale) not in (1, factors):
            raise ValueError(f"input_scale: expected 1 or {factors} factors, got {len(self.input_scale)}")
        name, shape = max(self.means, key=lambda one: math.prod(one[1]))
        if math.prod(shape) > MOST_WEIGHTS:
            raise ValueError(
                f"{name.partition('.')[0]}: expected at most {MOST_WEIGHTS:,} weights in a layer, got "
                f"{' x '.join(map(str, shape))}; show smaller observations, or take smaller layers"
            )

    def _expect_pictures(self, smallest: int) -> None:
        image = self.image
        last = len(image) == 3 and image_of(image)[1]
        if len(image) == 3 and min(self._sides(image)[-1]) >= 1 and not last:
            return
        advice = '; add channels_first = true to [task], or body = "none" to [algorithm]' if last else ""
        asked = f'body = "{self.body}": needs pictures (channels, {smallest}, {smallest}) or larger'
        raise ValueError(f"{asked}, got {image}{advice}")

    @property
    def convolutions(self) -> Convolutions | None:
        """The body, if it has one."""
        return BODIES.get(self.body)

    @property
    def scale(self) -> tuple[float, ...]:
        """Factor for every input, one for all or one each, as it is computed with; of parts, for the numbers."""
        of_body = None if self.convolutions is None or self.mixed is not None else self.convolutions.scale
        return self.input_scale if of_body is None else (of_body,)

    @cached_property
    def numbers(self) -> int:
        """Inputs that are no pixels."""
        if self.mixed is not None:
            return self.mixed.numbers
        return self.inputs if self.convolutions is None else 0

    @cached_property
    def eyes(self) -> dict[str, Eye]:
        """The pictures that go through convolutions, by the name of their chain of layers."""
        if self.convolutions is None:
            return {}
        if self.mixed is None:
            return {"body": Eye(self.image, self.scale[0] if len(self.scale) == 1 else None)}
        factors = {BYTES: 1 / 255, FLOATS: 1.0}
        return {
            f"body.{index}": Eye(image, factors[part.dtype]) for index, (part, image) in enumerate(self.mixed.images())
        }

    @property
    def words(self) -> str:
        """What observations go through, such as `4 numbers -> policy 64, 64, 2; value 64, 64, 1`."""
        sizes = [(name, sizes) for name, sizes in (("common", self.common), *self.heads.items()) if sizes]
        layers = "; ".join(f"{name} {', '.join(map(str, widths))}" for name, widths in sizes)
        names = [part.name for part, _ in self.mixed.images()] if self.mixed is not None else ["the picture"]
        seen = [
            f"{name} by {len(self._convolved)} convolutions ({self._features(eye.image):,} features)"
            for name, eye in zip(names, self.eyes.values(), strict=False)
        ]
        beside = [f"{self.numbers:,} number{'' if self.numbers == 1 else 's'}"] if self.numbers else []
        return f"{' beside '.join((*seen, *beside))} -> {layers}"

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
        inputs = self.numbers
        for chain, eye in self.eyes.items():
            fan_in = eye.image[0]
            for index, (fan_out, width, _, _) in enumerate(self._convolved):
                result.append((f"{chain}.{index}.weight", (fan_out, width, width, fan_in)))
                result.append((f"{chain}.{index}.bias", (fan_out,)))
                fan_in = fan_out
            inputs += self._features(eye.image)
        chains = [("common", inputs, self.common)]
        trunk = self.common[-1] if self.common else inputs
        chains += [(head, trunk, sizes) for head, sizes in self.heads.items()]
        for chain, width, sizes in chains:
            for index, (fan_in, fan_out) in enumerate(zip((width, *sizes), sizes, strict=False)):
                result.append((f"{chain}.{index}.weight", (fan_in, fan_out)))
                result.append((f"{chain}.{index}.bias", (fan_out,)))
        return (*result, *((name, (len(first),)) for name, first in self.free.items()))

    @property
    def _convolved(self) -> tuple[Convolution, ...]:
        return () if self.convolutions is None else self.convolutions.layers

    def _features(self, image: tuple[int, ...]) -> int:
        """What the convolutions leave of a picture (C, H, W)."""
        return self._convolved[-1].filters * math.prod(self._sides(image)[-1])

    def _sides(self, image: tuple[int, ...]) -> list[tuple[int, int]]:
        """Height and width after each convolution."""
        height, width, sides = *image[1:], []
        for _, size, stride, padding in self._convolved:
            height, width = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
            sides.append((height, width))
        return sides

    @property
    def chains(self) -> tuple[str, ...]:
        """Names of all chains of layers, as `layers` knows them."""
        return (*self.eyes, "common", *self.heads, *self.free)

    def _orthogonal(self, rng: np.random.Generator, name: str, shape: tuple[int, ...], gain: float) -> NDArray[Any]:
        """Saxe et al. 2014; biases are 0."""
        if name.endswith("bias"):
            return np.zeros(shape)
        rows, columns = (shape[0], int(np.prod(shape[1:])))
        tall = rng.standard_normal((max(rows, columns), min(rows, columns)), np.float32)
        q, r = np.linalg.qr(tall)
        q *= np.sign(np.diag(r))
        return np.asarray(gain * (q if rows >= columns else q.T).reshape(shape))

    def _pieces(self, name: str, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """A weight whole; where features of pictures and numbers come together, that of either.

        Numbers begin with the weights that they would have alone, not with a share of those of a thousand features.
        """
        firsts = {f"{chain}.0.weight" for chain in (["common"] if self.common else self.heads)}
        if self.mixed is None or not self.numbers or name not in firsts:
            return [shape]
        return [(shape[0] - self.numbers, shape[1]), (self.numbers, shape[1])]

    def initial(self, seed: int | Sequence[int], gains: Mapping[str, float] | None = None) -> Floats:
        """Fresh weights (P,): Glorot-uniform, biases zero; `gains` shrinks or stretches the last layer of a head.

        With a body they are orthogonal, as usual for pictures: times sqrt 2 before an activation, 1 behind the last.
        Those of numbers beside pictures are so for themselves.

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
                gain = gain if name in last else np.sqrt(2.0)
                pieces = [self._orthogonal(rng, name, piece, gain) for piece in self._pieces(name, shape)]
                arrays[name] = np.concatenate(pieces)
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
        own = self.common if chain == "common" else self.heads.get(chain, ())
        sizes: Sequence[Any] = self._convolved if chain in self.eyes else own
        return [(arrays[f"{chain}.{index}.weight"], arrays[f"{chain}.{index}.bias"]) for index in range(len(sizes))]


def _signed_root(x: Floats) -> Floats:
    result: Floats = np.sign(x) * np.sqrt(np.abs(x))
    return result
