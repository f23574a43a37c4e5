"""Small fully connected networks whose weights are one flat vector, evaluated by numpy (acting) or torch (learning).

A network is a common trunk followed by named heads, for instance `{"policy": (64, 64, 2), "value": (64, 64, 1)}`. Its
weights live in one float32 vector: publishing them is one copy, an optimiser step works on one tensor, and executors
evaluate them with numpy alone, which for a handful of observations is several times faster than torch.

A noisy network (Fortunato et al. 2018) explores by its weights: each is mu + sigma * epsilon, sigma learned as mu is,
and epsilon drawn now and then. It is the plain network on weights that are put together first, so that everything else,
the non-linearities included, is the same; without epsilon it is the network of the mu, by which policies are tested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from mlxe_async.gpu import uploaded

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float32]
Parameters = tuple[tuple[str, tuple[int, ...]], ...]
Activation = Literal["tanh", "relu"]
Body = Literal["none", "nature"]
Precision = Literal["float32", "bfloat16"]
FILTERS, WIDTHS, STRIDES = (32, 64, 64), (8, 4, 3), (4, 2, 1)  # of the body "nature", Mnih et al. 2015
LAYER_NORM_EPSILON = 1e-5
SIGMA = 0.5  # of a noisy network at the start, times the root of a layer's inputs


def parameter_count(parameters: Parameters) -> int:
    """Length P of the flat vector that holds `parameters`."""
    return sum(int(np.prod(shape)) for _, shape in parameters)


def unflatten(flat: Any, parameters: Parameters) -> dict[str, Any]:
    """Views on a flat vector, name -> (..., *shape). Takes numpy (..., P) and torch alike; nothing is copied.

    Raises:
        ValueError: the vector's length is not that of `parameters`.
    """
    expected = parameter_count(parameters)
    if flat.shape[-1] != expected:
        raise ValueError(f"flat weights: expected {expected} numbers, got {flat.shape[-1]}")
    result: dict[str, Any] = {}
    start = 0
    for name, shape in parameters:
        stop = start + int(np.prod(shape))
        result[name] = flat[..., start:stop].reshape((*flat.shape[:-1], *shape))
        start = stop
    return result


def flatten(arrays: Mapping[str, NDArray[Any]], parameters: Parameters) -> Floats:
    """The inverse of `unflatten`: one float32 vector (P,) out of named arrays, copied."""
    return np.concatenate([np.asarray(arrays[name], np.float32).reshape(-1) for name, _ in parameters])


def _signed_root(x: Floats) -> Floats:
    result: Floats = np.sign(x) * np.sqrt(np.abs(x))
    return result


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
        body: what observations go through before the trunk: `"none"`, or the convolutions `"nature"` (see
            `convolutions`), which take pictures (C, H, W).
        image: shape of an observation (C, H, W), for a body.
        precision: of what layers are computed in; weights are float32. Networks without a body know float32 alone.

    Raises:
        ValueError: `input_scale` or `image` does not fit.
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

    def __post_init__(self) -> None:
        if self.body != "none" and (len(self.image) != 3 or min(self._sides(self.image)[-1]) < 1):
            raise ValueError(f'body = "{self.body}": needs pictures (channels, 36, 36) or larger, got {self.image}')
        if len(self.input_scale) not in (1, self.inputs):
            raise ValueError(f"input_scale: expected 1 or {self.inputs} factors, got {len(self.input_scale)}")

    @property
    def parameters(self) -> Parameters:
        """Names and shapes in the order of the flat vector: per layer its weights (in, out), then its bias (out,).

        The weights of a convolution are (out, height, width, in).
        """
        return self.means + tuple((f"{name}.sigma", shape) for name, shape in self.means if self.noisy)

    @property
    def means(self) -> Parameters:
        """The same without the sigmas of a noisy network."""
        result: list[tuple[str, tuple[int, ...]]] = []
        inputs = self.inputs
        if self.body != "none":
            channels = (self.image[0], *FILTERS)
            for index, (fan_in, fan_out, width) in enumerate(zip(channels, FILTERS, WIDTHS, strict=False)):
                result.append((f"body.{index}.weight", (fan_out, width, width, fan_in)))
                result.append((f"body.{index}.bias", (fan_out,)))
            inputs = FILTERS[-1] * int(np.prod(self._sides(self.image)[-1]))
        chains = [("common", inputs, self.common)]
        trunk = self.common[-1] if self.common else inputs
        chains += [(head, trunk, sizes) for head, sizes in self.heads.items()]
        for chain, width, sizes in chains:
            for index, (fan_in, fan_out) in enumerate(zip((width, *sizes), sizes, strict=False)):
                result.append((f"{chain}.{index}.weight", (fan_in, fan_out)))
                result.append((f"{chain}.{index}.bias", (fan_out,)))
        return tuple(result)

    @staticmethod
    def _sides(image: tuple[int, ...]) -> list[tuple[int, int]]:
        """Height and width after each convolution."""
        height, width, sides = *image[1:], []
        for size, stride in zip(WIDTHS, STRIDES, strict=True):
            height, width = (height - size) // stride + 1, (width - size) // stride + 1
            sides.append((height, width))
        return sides

    @property
    def chains(self) -> tuple[str, ...]:
        """Names of all chains of layers, as `layers` knows them."""
        return (*(("body",) if self.body != "none" else ()), "common", *self.heads)

    def _orthogonal(self, seed: int | Sequence[int], gains: Mapping[str, float]) -> Floats:
        """Saxe et al. 2014, with a gain of sqrt 2 before an activation and 1, or that of `gains`, behind the last."""
        rng = np.random.default_rng(seed)
        last = {f"{head}.{len(sizes) - 1}.weight": head for head, sizes in self.heads.items()}
        arrays: dict[str, NDArray[Any]] = {}
        for name, shape in self.means:
            if name.endswith("bias"):
                arrays[name] = np.zeros(shape)
                continue
            rows, columns = (shape[0], int(np.prod(shape[1:])))
            tall = rng.standard_normal((max(rows, columns), min(rows, columns)), np.float32)
            q, r = np.linalg.qr(tall)
            q *= np.sign(np.diag(r))
            gain = gains.get(last[name], 1.0) if name in last else np.sqrt(2.0)
            arrays[name] = gain * (q if rows >= columns else q.T).reshape(shape)
        return flatten(arrays, self.parameters)

    def initial(self, seed: int | Sequence[int], gains: Mapping[str, float] | None = None) -> Floats:
        """Fresh weights (P,): Glorot-uniform, biases zero; `gains` shrinks or stretches the last layer of a head.

        With a body they are orthogonal, as usual for pictures.

        A noisy network's are uniform within +-1/sqrt(inputs of the layer), all sigmas 0.5/sqrt(inputs of the layer).
        """
        if self.body != "none":
            return self._orthogonal(seed, gains or {})
        rng = np.random.default_rng(seed)
        last = {f"{head}.{len(sizes) - 1}.weight": head for head, sizes in self.heads.items()}
        arrays: dict[str, NDArray[Any]] = {}
        fan_in = 1
        for name, shape in self.means:
            gain = (gains or {}).get(last.get(name, ""), 1.0)
            fan_in = shape[0] if name.endswith("weight") else fan_in  # a bias follows the weights of its layer
            if self.noisy:
                arrays[name] = rng.uniform(-1, 1, shape) * gain / np.sqrt(fan_in)
                arrays[f"{name}.sigma"] = np.full(shape, SIGMA / np.sqrt(fan_in))
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
        for name, shape in self.means:
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
        return {name: arrays[name] + arrays[f"{name}.sigma"] * noise[name] for name, _ in self.means}

    def layers(self, arrays: Mapping[str, Any], chain: str) -> list[tuple[Any, Any]]:
        """The (weights, bias) pairs of the body, the trunk (`"common"`) or one head, in order."""
        sizes = FILTERS if chain == "body" else self.common if chain == "common" else self.heads[chain]
        return [(arrays[f"{chain}.{index}.weight"], arrays[f"{chain}.{index}.bias"]) for index in range(len(sizes))]


class NumpyNetwork:
    """Evaluates a network with numpy; no gradients.

    Args:
        network: the shape.
        flat: weights (P,), or a stack (V, P) of V versions evaluated side by side on observations (V, B, O).
        noise: what a noisy network acts under, from `Network.noise`; None: the mu alone.
    """

    def __init__(self, network: Network, flat: Floats, noise: Mapping[str, Floats] | None = None) -> None:
        self.network = network
        self._scale = np.asarray(network.input_scale, np.float32)
        self._scaled = bool((self._scale != 1).any())
        # A private copy: the next version may arrive in the caller's buffer while this one still acts.
        arrays = unflatten(np.array(flat, np.float32), network.parameters)
        arrays = dict(network.perturbed(arrays, noise))
        if flat.ndim == 2:
            arrays = {name: array[:, None] if "bias" in name else array for name, array in arrays.items()}
        self._chains = {chain: network.layers(arrays, chain) for chain in ("common", *network.heads)}

    def __call__(self, head: str, observation: NDArray[Any]) -> Floats:
        """One head's output (..., B, outputs) for flattened observations (..., B, O)."""
        x: Any = observation * self._scale if self._scaled else observation
        x = x.astype(np.float32, copy=False)
        for weight, bias in self._chains["common"]:
            x = self._activate(x @ weight + bias)
        layers = self._chains[head]
        for weight, bias in layers[:-1]:
            x = self._activate(x @ weight + bias)
        weight, bias = layers[-1]
        output: Floats = x @ weight + bias
        return output

    def _activate(self, x: Floats) -> Floats:
        if self.network.layer_norm:
            centred = x - x.mean(-1, keepdims=True)
            x = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + np.float32(LAYER_NORM_EPSILON))
        if self.network.activation == "tanh":
            return np.tanh(x, out=x)
        return np.maximum(x, 0, out=x)


class TorchNetwork:
    """The same network with gradients; every parameter is a view on `flat`, every gradient a view on `gradient`.

    Args:
        network: the shape.
        flat: initial weights (P,); copied.
        device: a torch device name.
    """

    def __init__(self, network: Network, flat: Floats, device: str = "cpu") -> None:
        import torch

        self.network = network
        self.flat = torch.tensor(flat, dtype=torch.float32, device=device)
        self.gradient = torch.zeros_like(self.flat)
        self._scale = torch.tensor(network.input_scale, dtype=torch.float32, device=device)
        leaves = self._leaves = unflatten(self.flat, network.parameters)
        gradients = unflatten(self.gradient, network.parameters)
        for name, leaf in leaves.items():
            leaf.requires_grad_()
            leaf.grad = gradients[name]  # backward() then adds into the flat gradient, and nobody gathers
        self._chains = self._layers(None)
        self._noise: dict[str, torch.Tensor] | None = None

    def _layers(self, noise: Mapping[str, torch.Tensor] | None) -> dict[str, list[tuple[torch.Tensor, torch.Tensor]]]:
        arrays = self.network.perturbed(self._leaves, noise)
        return {chain: self.network.layers(arrays, chain) for chain in self.network.chains}

    def resample(self, rng: np.random.Generator) -> None:
        """Draw the noise of a noisy network anew; before the first time there is none."""
        import torch

        noise = self.network.noise(rng)
        self._noise = {name: torch.as_tensor(array, device=self.flat.device) for name, array in noise.items()}

    def __call__(self, observation: torch.Tensor, *heads: str) -> tuple[torch.Tensor, ...]:
        """The named heads' outputs (M, outputs) for flattened observations (M, O); the trunk is evaluated once."""
        chains = self._chains if self._noise is None else self._layers(self._noise)
        return torch_outputs(self.network, chains, observation * self._scale, heads)

    def tensors(self, rows: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
        """Columns as float32 tensors, `action` as int64, on this network's device."""
        import torch

        kinds = {name: (c, torch.int64 if name == "action" else torch.float32) for name, c in rows.items()}
        return moved(kinds, self.flat.device)


def moved(columns: Mapping[str, tuple[NDArray[Any], torch.dtype]], device: torch.device) -> dict[str, torch.Tensor]:
    """Columns as tensors of the given types on a device; on the CPU they may share their memory."""
    import torch

    if device.type == "cuda":
        return uploaded(columns, device)
    return {name: torch.as_tensor(column, dtype=dtype).to(device) for name, (column, dtype) in columns.items()}


def torch_outputs(
    network: Network,
    chains: Mapping[str, Sequence[tuple[torch.Tensor, torch.Tensor]]],
    x: torch.Tensor,
    heads: Sequence[str],
) -> tuple[torch.Tensor, ...]:
    """The named heads' outputs (M, outputs) for scaled observations (M, O), by the layers of each chain."""
    for weight, bias in chains["common"]:
        x = _activated(network, bias.addmm(x, weight))
    outputs = []
    for head in heads:
        y = x
        *hidden, (last_weight, last_bias) = chains[head]
        for weight, bias in hidden:
            y = _activated(network, bias.addmm(y, weight))
        outputs.append(last_bias.addmm(y, last_weight))
    return tuple(outputs)


def _activated(network: Network, x: torch.Tensor) -> torch.Tensor:
    if network.layer_norm:
        centred = x - x.mean(-1, keepdim=True)
        x = centred / (centred.square().mean(-1, keepdim=True) + LAYER_NORM_EPSILON).sqrt()
    # The CPU wheel's tanh takes five times as long as its sigmoid; tanh(x) = 2 sigmoid(2x) - 1.
    return (x * 2).sigmoid() * 2 - 1 if network.activation == "tanh" else x.relu()


class NumpyGradients:
    """Outputs and gradients of a network for thousands of rows at once: what `TorchNetwork` gives, in half the time.

    torch writes each layer's result into fresh memory, thousands of rows at a time, and reads it back from there for
    the next; here a block of rows goes through all layers while it is in the cache, and the memory is kept for the next
    call. `tanh` costs its true price. Only what is not the network, the loss, is left to differentiate to autograd::

        outputs = gradients.forward(observations)  # per head (N, outputs): the leaves of a loss
        gradients.backward({head: gradient_of_the_loss_by_its_outputs, ...})

    Args:
        learned: the network on the CPU; its weights are read and its `gradient` is added to, both in place.

    Raises:
        ValueError: it is noisy or normalises its layers: then only autograd knows the gradient.
    """

    BLOCK = 1024

    def __init__(self, learned: TorchNetwork) -> None:
        self.network = network = learned.network
        if not self.fits(network):
            raise ValueError("numpy's gradients: expected a network that neither is noisy nor has layer_norm")
        self._scale = np.asarray(network.input_scale, np.float32)
        weights = unflatten(learned.flat.detach().numpy(), network.parameters)
        gradients = unflatten(learned.gradient.numpy(), network.parameters)
        chains = ("common", *network.heads)
        self._weights = {chain: network.layers(weights, chain) for chain in chains}
        self._gradients = {chain: network.layers(gradients, chain) for chain in chains}
        self._rows = 0

    @staticmethod
    def fits(network: Network) -> bool:
        """Whether it can be used for such a network."""
        return not (network.noisy or network.layer_norm or network.body != "none")

    def forward(self, observation: NDArray[Any], ungraded: NDArray[Any] | None = None) -> dict[str, Floats]:
        """Outputs (N, outputs) of each head for flattened observations (N, O); valid until the next call.

        Args:
            observation: what `backward` will tell of.
            ungraded: further ones, whose outputs follow after the others.
        """
        if ungraded is not None:
            observation = np.concatenate([observation, ungraded])
        self._provide(len(observation))
        np.multiply(observation, self._scale, out=self._input[: len(observation)], casting="unsafe")
        for here in self._blocks(len(observation)):
            trunk = self._input[here]
            for (weight, bias), activity in zip(self._weights["common"], self._activities["common"], strict=True):
                trunk = self._activate(np.matmul(trunk, weight, out=activity[here]), bias)
            for head in self.network.heads:
                x, last = trunk, len(self._weights[head]) - 1
                for number, (weight, bias) in enumerate(self._weights[head]):
                    x = np.matmul(x, weight, out=self._activities[head][number][here])
                    if number == last:
                        x += bias
                    else:
                        x = self._activate(x, bias)
        return {head: self._activities[head][-1][: len(observation)] for head in self.network.heads}

    def backward(self, gradients: Mapping[str, NDArray[Any]]) -> None:
        """Add to the network's gradient what follows from the loss's gradients by each head's outputs (M, outputs).

        M may be less than the N rows of the last `forward`: nothing flows back into the others.
        """
        rows = len(next(iter(gradients.values())))
        for here in self._blocks(rows):
            trunk = self._activities["common"][-1][here] if self.network.common else self._input[here]
            below: NDArray[Any] | None = None
            for head, gradient in gradients.items():
                reached = self._through(head, trunk, gradient[here], here, further=bool(self.network.common))
                below = reached if below is None or reached is None else below + reached
            if below is not None:
                self._damp(below, trunk)
                self._through("common", self._input[here], below, here, further=False)

    def _through(
        self, chain: str, given: NDArray[Any], gradient: NDArray[Any], here: slice, *, further: bool
    ) -> NDArray[Any] | None:
        """Go back through a chain that was `given` its input; its input's gradient, if it goes on from there."""
        layers = len(self._weights[chain])
        for number in reversed(range(layers)):
            x = self._activities[chain][number - 1][here] if number else given
            into_weight, into_bias = self._gradients[chain][number]
            into_weight += x.T @ gradient
            into_bias += gradient.sum(0)
            if number or further:
                gradient = gradient @ self._weights[chain][number][0].T
            if number:
                self._damp(gradient, x)
        return gradient if further else None

    def _activate(self, x: Floats, bias: Floats) -> Floats:
        x += bias
        return np.tanh(x, out=x) if self.network.activation == "tanh" else np.maximum(x, 0, out=x)

    def _damp(self, gradient: NDArray[Any], activity: NDArray[Any]) -> None:
        """Times the slope of the activation, in place: 1 - tanh^2, or where relu let something through."""
        if self.network.activation == "tanh":
            slope = np.square(activity)
            np.subtract(1, slope, out=slope)
            gradient *= slope
        else:
            gradient *= activity > 0

    def _blocks(self, rows: int) -> list[slice]:
        return [slice(start, min(start + self.BLOCK, rows)) for start in range(0, rows, self.BLOCK)]

    def _provide(self, rows: int) -> None:
        if rows > self._rows:
            self._rows = rows
            self._input = np.zeros((rows, self.network.inputs), np.float32)
            self._activities = {
                chain: [np.zeros((rows, bias.size), np.float32) for _, bias in layers]
                for chain, layers in self._weights.items()
            }
