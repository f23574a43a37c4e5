"""What the twins share: networks by numpy, columns as arrays, and gradients that a GPU launches as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlxe_async.algorithms.parts.acting import ActsByNetwork
from mlxe_async.fast.dense import NumpyGradients
from mlxe_async.fast.pictures import PictureGradients
from mlxe_async.gpu import Captured
from mlxe_async.networks import Floats
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mlxe_async.networks import TorchNetwork

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Loss = Callable[[dict[str, "torch.Tensor"]], tuple["torch.Tensor", dict[str, "torch.Tensor"]]]


class Quick(Protocol):
    """What differentiates a network quicker than autograd alone, such as `NumpyGradients`."""

    def forward(self, observation: NDArray[Any], ungraded: NDArray[Any] | None = None) -> dict[str, Floats]:
        """Outputs (N, n) of each head for observations (N, O), then those for `ungraded` ones."""

    def outputs(self, observation: NDArray[Any], heads: Sequence[str]) -> list[Floats]:
        """Outputs (N, n) of some heads; only before `forward`, whose memory they use."""

    def backward(self, gradients: Mapping[str, NDArray[Any]]) -> None:
        """Add to the network's flat gradient what follows from the gradients by each head's outputs (N, n)."""


def why_not(learned: TorchNetwork) -> str:
    """Why a network is left to torch; "" if it has exactly the structure that the fast ways know."""
    import torch
    from torch.nn.modules import module as modules

    from mlxe_async.networks.learning import PictureNetwork, TorchNetwork

    if type(learned) not in (TorchNetwork, PictureNetwork):
        return f"its network is a {type(learned).__name__}"
    if vars(learned).keys() & {
        name for kind in type(learned).__mro__ for name, one in vars(kind).items() if callable(one)
    }:
        return "its network has a method of its own"
    if any(getattr(learned, name) for name in HOOKS) or any(getattr(modules, f"_global{name}") for name in HOOKS):
        return "there are hooks on its network"
    leaves = learned.leaves.values()
    if not all(one.requires_grad for one in leaves):
        return "some of its weights are frozen"
    if any(one._backward_hooks or one._post_accumulate_grad_hooks for one in leaves):
        return "there are hooks on its weights"
    if learned.shape.mixed is not None:
        return "parts of its observations are pictures"
    if learned.shape.free:
        return "its network has free numbers"
    if learned.shape.noisy:
        return "its network is noisy"
    if learned.flat.device.type == "cpu" and type(learned) is TorchNetwork and torch.get_num_threads() > 1:
        return "torch shares the work among several threads"
    return ""


def why_not_plain(modules: Sequence[nn.Module], known: Sequence[str]) -> str:
    """The same of plain modules of torch, and of these layers of `networks.bodies`."""
    import torch
    from torch.nn.modules import module as modules_of_torch

    from mlxe_async.networks import bodies

    places = {name: vars(bodies).get(name) or getattr(torch.nn, name) for name in known}
    for one in modules:
        if places.get(type(one).__name__) is not type(one):
            return f"one of its networks is a {type(one).__name__}"
        if vars(one).keys() & {
            name for kind in type(one).__mro__ for name, value in vars(kind).items() if callable(value)
        }:
            return "one of its networks has a method of its own"
        if any(getattr(one, name) for name in HOOKS):
            return "there are hooks on its networks"
    if any(getattr(modules_of_torch, f"_global{name}") for name in HOOKS):
        return "there are hooks on all networks"
    leaves = [leaf for one in modules for leaf in one.parameters(recurse=False)]
    if not all(leaf.requires_grad and leaf.dtype is torch.float32 for leaf in leaves):
        return "some of its weights are frozen, or of another type than float32"
    if any(leaf._backward_hooks or leaf._post_accumulate_grad_hooks for leaf in leaves):
        return "there are hooks on its weights"
    return "torch shares the work among several threads" if torch.get_num_threads() > 1 else ""


def networks_of(algorithm: Any) -> list[TorchNetwork]:
    """All networks that an object learns, or learns by; each once."""
    from mlxe_async.networks.learning import TorchNetwork

    return [*{id(one): one for one in vars(algorithm).values() if isinstance(one, TorchNetwork)}.values()]


def weights_of(algorithm: Any) -> list[torch.Tensor]:
    """All weights that an object learns, or learns by: of a network of ours in one vector."""
    from torch import nn

    from mlxe_async.networks.learning import TorchNetwork

    plain = [
        one for one in vars(algorithm).values() if isinstance(one, nn.Module) and not isinstance(one, TorchNetwork)
    ]
    return [*(one.flat for one in networks_of(algorithm)), *(leaf for one in plain for leaf in one.parameters())]


def quick_network(learned: TorchNetwork) -> Quick | None:
    """What differentiates a network on the CPU; None on other devices."""
    if learned.flat.device.type != "cpu":
        return None
    from mlxe_async.networks.learning import PictureNetwork

    return PictureGradients(learned) if isinstance(learned, PictureNetwork) else NumpyGradients(learned)


def as_columns(rows: Mapping[str, Array]) -> dict[str, Array]:
    """Columns of the types that their tensors would have; see `networks.learning.tensor_type`."""
    kinds = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}
    return {
        name: column if column.dtype == np.uint8 else column.astype(kinds[column.dtype.kind], copy=False)
        for name, column in rows.items()
    }


def policy_log_probs(actor: ActsByNetwork, vector: Floats, obs: Array) -> tuple[Array, float]:
    """Log pi (N, A) of published weights (P,) by torch, and the largest logit; observations (N, ...) as stored."""
    import torch

    weights, moments = actor._split(vector)
    network = actor.learnable(weights)
    seen = network.tensors({"obs": actor.shown_with(obs, moments)})["obs"]
    with torch.no_grad():
        logits = actor.scores(network, seen)
    return logits.log_softmax(-1).numpy(force=True), float(logits.abs().max())


class RecordedLoss:
    """The gradient of a loss by autograd, as one launch on a GPU where `[learner] graphs` asks for it.

    Args:
        algorithm: whose network is learned.
        loss: of a minibatch; it reads nothing but settings, weights and its argument.
    """

    def __init__(self, algorithm: Any, loss: Loss) -> None:
        self._learned, self._loss, self._names = algorithm.network, loss, list[str]()
        gradient = self._learned.gradient
        self.captured = Captured(self._work, str(gradient.device), writes=(gradient,))

    def __call__(self, rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Overwrite the network's gradient with that of these rows; returns what the loss measured."""
        found = self.captured(rows)
        return dict(zip(self._names, found, strict=True))

    def _work(self, rows: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        loss, found = self._loss(dict(rows))
        self._learned.gradient.zero_()
        loss.backward()
        self._names = list(found)
        return tuple(found.values())


def sigmoid(logit: Floats) -> Floats:
    """1 / (1 + exp(-logit)), safe for large |logit|."""
    return np.asarray(np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * logit)))


def cross_entropy(logit: Floats, target: Floats) -> Floats:
    """-target log sigmoid(logit) - (1 - target) log(1 - sigmoid(logit)), safe for large |logit|."""
    return np.asarray(np.maximum(logit, 0) - logit * target + np.log1p(np.exp(-np.abs(logit))))
