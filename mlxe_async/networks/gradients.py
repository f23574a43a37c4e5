"""Outputs and gradients of a plain network by numpy, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.networks.flat import Floats, unflatten
from mlxe_async.networks.learning import TorchNetwork
from mlxe_async.networks.shape import Network


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
