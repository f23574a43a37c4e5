"""The gradient of a loss as one compiled function, made by torch's compiler from the loss as it is written.

Network and loss, forth and back, become one C++ function: no memory is written in between that need not be, and
nothing is decided anew in each step. It takes seconds to make.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxe_async.errors import CompileFailed
from mlxe_async.networks.learning import torch_outputs
from mlxe_async.rows import Array
from mlxe_async.toolchain import cpp_compiler, wanted_compiler

if TYPE_CHECKING:
    import torch

Found = dict[str, "torch.Tensor"]
Compiled = Callable[["torch.Tensor", Mapping[str, "torch.Tensor"]], tuple["torch.Tensor", Found]]


class CompiledLoss:
    """The gradient of an algorithm's loss, compiled once it is asked for.

    Args:
        algorithm: with `shape`, what is learned in `network`, `settings`, and the loss of a minibatch in `loss`,
            which asks it for nothing that changes but the network.
    """

    def __init__(self, algorithm: Any) -> None:
        self._algorithm = algorithm
        self._compiled: Compiled | None = None

    @property
    def ready(self) -> bool:
        """Whether it was compiled."""
        return self._compiled is not None

    def __call__(self, rows: Mapping[str, torch.Tensor]) -> Found:
        """Overwrite the network's gradient with that of these rows; returns what the loss measured."""
        if self._compiled is None:
            raise RuntimeError("compiled loss: called before compile()")
        learned = self._algorithm.network
        gradient, found = self._compiled(learned.flat, rows)
        learned.gradient.copy_(gradient)
        return found

    def compile(self, examples: Mapping[str, Array]) -> float:
        """Make it, for minibatches of any size.

        Args:
            examples: columns of a minibatch, for their names and types.

        Returns:
            seconds that took.

        Raises:
            CompileFailed: the network is noisy or one of pictures, or there is no compiler, or it fails.
        """
        import torch

        began, learned = time.monotonic(), self._algorithm.network
        if learned.shape.body != "none":
            raise CompileFailed("a network of pictures is not compiled: its convolutions are compiled code already")
        if learned.shape.noisy:
            raise CompileFailed("a noisy network cannot be compiled: its weights are drawn anew in between")
        if learned.flat.device.type == "cpu" and cpp_compiler() is None:
            raise CompileFailed(f"no C++ compiler was found: looked for {wanted_compiler()}; install g++ or set CXX")
        _prepare_compiler()
        made: Compiled = torch.compile(self._whole(), dynamic=True, fullgraph=True)
        try:
            made(learned.flat, learned.tensors(examples))
        except Exception as error:
            said = " ".join(str(error).split())[:300]
            raise CompileFailed(f"torch's compiler failed: {type(error).__name__}: {said}") from error
        self._compiled = made
        return time.monotonic() - began

    def _whole(self) -> Compiled:
        """Gradient and measured as one function of flat weights (P,) and rows, which holds no weights itself."""
        import torch

        network, scale = self._algorithm.shape, self._algorithm.network.scale
        names = network.parameters
        sizes = [int(np.prod(shape)) for _, shape in names]
        loss, algorithm = type(self._algorithm).loss, self._algorithm

        def total(flat: torch.Tensor, rows: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, Found]:
            pieces = torch.split(flat, sizes)
            arrays = {name: piece.view(shape) for (name, shape), piece in zip(names, pieces, strict=True)}
            chains = {chain: network.layers(arrays, chain) for chain in network.chains}
            seen = _Seen(algorithm, lambda obs, *heads: torch_outputs(network, chains, obs * scale, heads))
            found: tuple[torch.Tensor, Found] = loss(seen, rows)
            return found

        def whole(flat: torch.Tensor, rows: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, Found]:
            gradient, (_, found) = torch.func.grad_and_value(total, has_aux=True)(flat, rows)
            return gradient, found

        return whole


class _Seen:
    """What a loss sees of its algorithm: what does not change, and a network that holds no weights of its own."""

    def __init__(self, algorithm: Any, learned: Callable[..., Any]) -> None:
        self.settings, self.spaces, self.network = algorithm.settings, algorithm.spaces, learned
        for name in ("heads", "chosen", "distribution", "now"):
            if hasattr(algorithm, name):
                setattr(self, name, getattr(algorithm, name))


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
