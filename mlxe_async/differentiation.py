"""The gradient of a loss by a network's weights: the loss is written once, in torch, and there are four ways to it.

    by hand   the network so too, the loss by a gradient somebody derived: used where it agrees with autograd.
    quick     the network forth and back by what is quicker than autograd, only the loss by autograd.
    autograd  all by torch: for GPUs, several threads, and networks that only autograd knows (noisy ones).
    compiled  network and loss, forth and back, as one C++ function that torch's compiler makes: no memory is written in
              between that need not be, and nothing is decided anew in each step. It takes seconds to make.

All give the same gradient but for rounding; each gives the same bits every time.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from mlxe_async.errors import CompileFailed
from mlxe_async.networks import Floats, Network, NumpyGradients, TorchNetwork
from mlxe_async.networks.learning import torch_outputs

if TYPE_CHECKING:
    import torch

Way = Literal["by hand", "quick", "autograd", "compiled"]
Measured = tuple[Any, ...]
Loss = Callable[..., tuple["torch.Tensor", Measured]]
"""`loss(*outputs, rows)`: outputs (M, n) of each head and the columns (M, ...) of a minibatch -> the total loss (), and
what is to be known of it besides, detached."""
ByHand = Callable[..., tuple[Sequence[NDArray[Any]], Measured]]
"""The same with arrays instead of tensors: `by_hand(*outputs, rows)` -> the gradients of the total loss by each output
(M, n), and the same things to be known, as arrays and numbers."""
CompiledLoss = Callable[["torch.Tensor", Mapping[str, "torch.Tensor"]], tuple["torch.Tensor", Measured]]
NEAR = 1e-3  # of the gradient's norm: how far the compiled one may be from autograd's
ALIKE = 1e-5  # how far numbers by hand may be from autograd's


class Quick(Protocol):
    """What differentiates a network quicker than autograd alone, such as `NumpyGradients`."""

    def forward(self, observation: NDArray[Any], ungraded: NDArray[Any] | None = None) -> dict[str, Floats]:
        """Outputs (N, n) of each head for observations (N, O), then those for `ungraded` ones."""

    def backward(self, gradients: Mapping[str, NDArray[Any]]) -> None:
        """Add to the network's flat gradient what follows from the gradients by each head's outputs (N, n)."""


class Differentiator:
    """Puts the gradient of a loss into a network's flat gradient.

    Args:
        network: its shape.
        loss: see `Loss`.
        heads: the outputs that the loss takes, in its order.
        by_hand: the gradient of the loss by the outputs, if somebody derived it.
        examples: columns of a minibatch, at least two rows, on which ways are compared.
        observations: the column that the network is shown.
        threads: of one update; with several, autograd is as quick as anything.
        device: a torch device name.
    """

    def __init__(
        self,
        network: Network,
        loss: Loss,
        heads: tuple[str, ...],
        by_hand: ByHand | None = None,
        *,
        examples: Mapping[str, NDArray[Any]],
        observations: str = "obs",
        threads: int = 1,
        device: str = "cpu",
    ) -> None:
        self._network, self._loss, self._heads, self._shown = network, loss, heads, observations
        self._quickly = device == "cpu" and (network.body != "none" or (threads == 1 and NumpyGradients.fits(network)))
        self._device, self._examples = device, examples
        self._compiled: CompiledLoss | None = None
        self._by_hand = by_hand if by_hand and self._quickly and self._agrees(by_hand) else None

    @property
    def way(self) -> Way:
        """How gradients are found now."""
        if self._compiled:
            return "compiled"
        return "by hand" if self._by_hand else "quick" if self._quickly else "autograd"

    def attach(self, learned: TorchNetwork, quick: Quick | None) -> None:
        """Differentiate by these weights from now on; before the first call, and when there are others."""
        self._learned, self._quick = learned, quick if self._quickly else None

    def __call__(self, rows: Mapping[str, torch.Tensor]) -> Measured:
        """Overwrite the network's `gradient` with that of the loss of these rows; returns what the loss measured."""
        if self._compiled:
            gradient, measured = self._compiled(self._learned.flat, rows)
            self._learned.gradient.copy_(gradient)
            return measured
        return self._through_arrays(self._quick, rows) if self._quick else self._through_autograd(rows)

    def _through_autograd(self, rows: Mapping[str, torch.Tensor]) -> Measured:
        import torch

        loss, measured = self._loss(*self._learned(rows[self._shown], *self._heads), rows)
        self._learned.gradient.zero_()
        torch.autograd.backward(loss)
        return measured

    def _through_arrays(self, quick: Quick, rows: Mapping[str, torch.Tensor]) -> Measured:
        outputs = quick.forward(rows[self._shown].numpy())
        gradients, measured = self.by_outputs([outputs[head] for head in self._heads], rows)
        self._learned.gradient.zero_()
        quick.backward(dict(zip(self._heads, gradients, strict=True)))
        return measured

    def by_outputs(
        self, outputs: Sequence[NDArray[Any]], rows: Mapping[str, torch.Tensor]
    ) -> tuple[Sequence[NDArray[Any]], Measured]:
        """The gradients of the loss by the outputs (M, n) of the heads, and what it measured, on the CPU."""
        if self._by_hand:
            return self._by_hand(*outputs, {name: column.numpy() for name, column in rows.items()})
        return self._by_autograd(outputs, rows)

    def _by_autograd(
        self, outputs: Sequence[NDArray[Any]], rows: Mapping[str, torch.Tensor]
    ) -> tuple[Sequence[NDArray[Any]], Measured]:
        import torch

        leaves = [torch.from_numpy(output).requires_grad_() for output in outputs]
        loss, measured = self._loss(*leaves, rows)
        return [np.asarray(one) for one in torch.autograd.grad(loss, leaves)], measured

    def _agrees(self, by_hand: ByHand) -> bool:
        """Whether the gradient by hand is that of the loss as it is written, on outputs that are all different."""
        import torch

        rng, count = np.random.default_rng(1), len(self._examples[self._shown])
        outputs = [rng.normal(size=(count, sizes[-1])).astype(np.float32) for sizes in self._sizes()]
        found, measured = by_hand(*outputs, self._examples)
        expected, known = self._by_autograd(outputs, {n: torch.as_tensor(c) for n, c in self._examples.items()})
        pairs = [*zip(found, expected, strict=True), *zip(measured, known, strict=True)]
        return all(np.allclose(one, other, rtol=ALIKE, atol=ALIKE) for one, other in pairs)

    def _sizes(self) -> list[tuple[int, ...]]:
        return [self._network.heads[head] for head in self._heads]

    def compile(self) -> float:
        """From now on by a compiled function, for minibatches of any size, after a comparison on the examples.

        Returns:
            seconds that took.

        Raises:
            CompileFailed: the network is noisy or one of pictures, there is no compiler, or what it made is wrong.
        """
        import torch

        began = time.monotonic()
        rows = {name: torch.as_tensor(column, device=self._device) for name, column in self._examples.items()}
        if self._network.body != "none":
            raise CompileFailed("a network of pictures is not compiled: its convolutions are compiled code already")
        if self._network.noisy:
            raise CompileFailed("a noisy network cannot be compiled: its weights are drawn anew in between")
        if self._device == "cpu" and cpp_compiler() is None:
            raise CompileFailed(f"no C++ compiler was found: looked for {_wanted()}; install g++ or set CXX")
        _prepare_compiler()
        made: CompiledLoss = torch.compile(self._whole(), dynamic=True, fullgraph=True)
        try:
            gradient, _ = made(self._learned.flat, rows)
        except Exception as error:
            said = " ".join(str(error).split())[:300]
            raise CompileFailed(f"torch's compiler failed: {type(error).__name__}: {said}") from error
        self._through_autograd(rows)
        expected = self._learned.gradient
        if not (gradient - expected).norm() <= NEAR * expected.norm() + 1e-9:
            raise CompileFailed("the compiled gradient differs from autograd's on an example")
        self._compiled = made
        return time.monotonic() - began

    def _whole(self) -> CompiledLoss:
        """Gradient and measured as one function of flat weights (P,) and rows, which holds no weights itself."""
        import torch

        network, loss, heads, shown = self._network, self._loss, self._heads, self._shown
        names = network.parameters
        sizes = [int(np.prod(shape)) for _, shape in names]
        scale = torch.tensor(network.input_scale, dtype=torch.float32, device=self._device)

        def total(flat: torch.Tensor, rows: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, Measured]:
            pieces = torch.split(flat, sizes)
            arrays = {name: piece.view(shape) for (name, shape), piece in zip(names, pieces, strict=True)}
            chains = {chain: network.layers(arrays, chain) for chain in ("common", *heads)}
            return loss(*torch_outputs(network, chains, rows[shown] * scale, heads), rows)

        def whole(flat: torch.Tensor, rows: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, Measured]:
            gradient, (_, measured) = torch.func.grad_and_value(total, has_aux=True)(flat, rows)
            return gradient, measured

        return whole


def cpp_compiler() -> str | None:
    """Path of the C++ compiler that torch would call, None if there is none."""
    return shutil.which(_wanted())


def _wanted() -> str:
    return os.environ.get("CXX") or "g++"


def _prepare_compiler() -> None:
    """In this process alone, and with what is compiled kept where nobody else can put anything."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        kept = home / "mlxe_async" / "compiled"
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(kept)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a pool of processes would outlive a killed learner
    if "torch._inductor.config" in sys.modules:
        import torch._inductor.config as inductor

        inductor.compile_threads = 1
