"""What the twins share: networks by numpy, columns as arrays, and gradients that a GPU launches as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlxe_async.gpu import Captured
from mlxe_async.networks import Floats
from mlxe_async.rows import Array, Spaces

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mlxe_async.networks.bodies import Body
    from mlxe_async.networks.dense import Dense

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Loss = Callable[[dict[str, "torch.Tensor"]], tuple["torch.Tensor", dict[str, "torch.Tensor"]]]


KNOWN = (
    *("ActorCritic", "ActionValues", "Body", "Normaliser", "ModuleDict"),
    *("Dense", "Linear", "LayerNorm", "ReLU", "Tanh"),
    *("Pictures", "Pixels", "Conv2d", "ELU", "Flatten", "Sequential"),
)
"""Modules that twins were derived for, each of exactly the class of torch, `networks.bodies` or `networks.heads`."""


class Quick(Protocol):
    """What differentiates a network quicker than autograd alone, such as `NumpyGradients`."""

    def forward(self, observation: NDArray[Any], ungraded: NDArray[Any] | None = None) -> dict[str, Floats]:
        """Outputs (N, n) of each head for observations (N, O), then those for `ungraded` ones."""

    def outputs(self, observation: NDArray[Any], heads: Sequence[str]) -> list[Floats]:
        """Outputs (N, n) of some heads; only before `forward`, whose memory they use."""

    def backward(self, gradients: Mapping[str, NDArray[Any]], *, fresh: bool = False) -> None:
        """Add to the network's gradient what follows from that by each head's outputs (N, n); `fresh`: overwrite it."""


def why_not_plain(modules: Sequence[nn.Module], known: Sequence[str]) -> str:
    """Why modules are left to torch; "" if they are plain ones of torch, and of these layers of ours.

    Args:
        modules: all of them, those within others too.
        known: names of their classes.
    """
    import torch
    from torch.nn.modules import module as modules_of_torch

    from mlxe_async.networks import bodies, heads

    ours = vars(bodies) | vars(heads)
    places = {name: ours.get(name) or getattr(torch.nn, name) for name in known}
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
    return ""


def why_not_networks(networks: Sequence[Any]) -> str:
    """The same of networks with a body each, as `networks.heads` has them."""
    see = networks[0].see
    if see.convolutions and see.numbers:
        return "parts of its observations are pictures"
    parts = [part for one in networks for part in one.modules()]
    return why_not_plain(parts, KNOWN)


def weights_of(algorithm: Any) -> list[torch.Tensor]:
    """All weights that an object learns, or learns by; each once."""
    from torch import nn

    found = [leaf for one in vars(algorithm).values() if isinstance(one, nn.Module) for leaf in one.parameters()]
    return [*{id(leaf): leaf for leaf in found}.values()]


def quick_of(device: str, see: Body, heads: Mapping[str, Dense], common: Any = None) -> Quick | None:
    """Return what differentiates networks on what they share, on the CPU; None on other devices.

    Observations are what `see` makes of them, where there are no convolutions; else as they are stored.
    """
    from mlxe_async.fast.dense import NumpyGradients
    from mlxe_async.fast.pictures import ByAutograd, PictureGradients

    if device != "cpu":
        return None
    if not see.convolutions:
        return NumpyGradients(heads, common if common is not None else ())

    from mlxe_async.fast.convolved import ByHand

    sizes = {name: one.outputs for name, one in heads.items()}
    if ByHand.knows(see, heads, common):
        return PictureGradients(ByHand(see, heads, common), sizes)

    def evaluated(seen: torch.Tensor, names: Sequence[str]) -> list[torch.Tensor]:
        features = see(seen) if common is None else common(see(seen))
        return [heads[name](features) for name in names]

    weights = [
        leaf for one in (see, *heads.values(), *([] if common is None else [common])) for leaf in one.parameters()
    ]
    return PictureGradients(ByAutograd(evaluated, weights), sizes)


def shown(see: Body, obs: Array, spaces: Spaces) -> Array:
    """Observations (..., *O), or vectors of them, as `Quick` takes them, one beside the other (N, ...)."""
    flat = obs.reshape(-1, *spaces.observation_shape)
    return flat if see.convolutions else np.asarray(see(flat))


def as_columns(rows: Mapping[str, Array]) -> dict[str, Array]:
    """Columns of the types that their tensors would have; see `networks.tensors.tensor_type`."""
    kinds = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}
    return {
        name: column if column.dtype == np.uint8 else column.astype(kinds[column.dtype.kind], copy=False)
        for name, column in rows.items()
    }


def clip_gradient(gradient: Floats, longest: float) -> None:
    """Do what `gradients.clip_grad_norm_` does, in a third of its time where a gradient (P,) is short."""
    if longest and (length := math.sqrt(float(gradient.dot(gradient)))) > longest:
        gradient *= np.float32(longest / length)


def acting(algorithm: Any, vector: Floats) -> Any:
    """An object that acts by published weights (P,)."""
    one = type(algorithm)(algorithm.settings, algorithm.spaces, seed=0, learns=False)
    one.load(vector)
    return one


class RecordedLoss:
    """The gradient of a loss by autograd, as one launch on a GPU where `[learner] graphs` asks for it.

    Args:
        gradient: of all that is learned (P,), which backward adds to.
        loss: of a minibatch; it reads nothing but settings, weights and its argument.
    """

    def __init__(self, gradient: torch.Tensor, loss: Loss) -> None:
        self._gradient, self._loss, self._names = gradient, loss, list[str]()
        self.captured = Captured(self._work, str(gradient.device), writes=(gradient,))

    def __call__(self, rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Overwrite the network's gradient with that of these rows; returns what the loss measured."""
        found = self.captured(rows)
        return dict(zip(self._names, found, strict=True))

    def _work(self, rows: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        loss, found = self._loss(dict(rows))
        self._gradient.zero_()
        loss.backward()
        self._names = list(found)
        return tuple(found.values())


def sigmoid(logit: Floats) -> Floats:
    """1 / (1 + exp(-logit)), safe for large |logit|."""
    return np.asarray(np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * logit)))


def cross_entropy(logit: Floats, target: Floats) -> Floats:
    """-target log sigmoid(logit) - (1 - target) log(1 - sigmoid(logit)), safe for large |logit|."""
    return np.asarray(np.maximum(logit, 0) - logit * target + np.log1p(np.exp(-np.abs(logit))))
