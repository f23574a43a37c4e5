"""Dense layers as plain torch modules, which take arrays as well as tensors, and how their weights begin."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as all_modules

from mlxe_async.networks.noisy import NoisyLinear
from mlxe_async.rows import Array

LAYER_NORM_EPSILON = 1e-5


def dense(
    inputs: int,
    sizes: Sequence[int],
    outputs: int | None = None,
    activation: type[nn.Module] = nn.ReLU,
    *,
    layer_norm: bool = False,
    linear: Callable[[int, int], nn.Module] | None = None,
) -> Dense:
    """Linear layers with an activation after each, and a linear one of `outputs` at the end, if given.

    With `layer_norm` each layer is brought to mean 0 and deviation 1 before its activation, without learned factors.
    `linear` makes a layer of so many inputs and outputs, such as `noisy.NoisyLinear`.
    """
    linear = linear or _linear
    widths, layers = (inputs, *sizes), list[nn.Module]()
    for fan_in, fan_out in itertools.pairwise(widths):
        layers.append(linear(fan_in, fan_out))
        if layer_norm:
            layers.append(nn.LayerNorm(fan_out, LAYER_NORM_EPSILON, elementwise_affine=False))
        layers.append(activation())
    if outputs is not None:
        layers.append(linear(widths[-1], outputs))
    made = Dense(*layers)
    made.outputs = widths[-1] if outputs is None else outputs
    return made


class Dense(nn.Sequential):
    """Linear layers with ReLU or tanh between them, which may be normalised.

    Arrays are evaluated by numpy, which for a few rows takes a third of the time, on the layers' own numbers. Where a
    hook listens, or a layer is of another kind or has a `forward` of its own, torch evaluates them.
    """

    takes_arrays = True
    outputs: int
    """Numbers that come out for a row."""
    widths: Sequence[tuple[bool, int]] = ()
    """`Body.widths`, where there is no layer in between."""
    precision = "float32"
    """Or `"bfloat16"`: layers are computed in it, from weights of 32 bits; what comes out is float32."""

    def __call__(self, x: Any) -> Any:
        """Outputs (..., outputs) for inputs (..., inputs)."""
        if not isinstance(x, np.ndarray):
            return super().__call__(x)
        known: Any = self.__dict__.get("_views")
        if known is None or not known.holds(self):
            known = self.__dict__["_views"] = _views_of(self)
        if known.steps is None or is_heard():
            with torch.inference_mode():
                return super().__call__(torch.as_tensor(x)).numpy(force=True)
        for step in known.steps:
            x = step(x)
        return x

    def forward(self, x: Any) -> Any:
        """The same of tensors."""
        with computed_in(self.precision, x):
            found: torch.Tensor = super().forward(x)  # type: ignore[no-untyped-call] # torch's own
        return found.float()


class _Views:
    """What numpy does for each layer, on views of its weights; made anew when anything of a layer has changed.

    Nothing of it is state: it has none to give, and takes none.
    """

    def __init__(self, dense: Dense, layers: list[Any]) -> None:
        modules = [dense, *layers]
        self.layers, self._inside = layers, [vars(one) for one in modules]
        self._sizes = [len(own) for own in self._inside]
        self._hooks = [own[name] for own in self._inside for name in ("_forward_hooks", "_forward_pre_hooks")]
        self._forwards = {type(one): type(one).forward for one in modules}
        linear = [vars(one)["_parameters"] for one in layers if isinstance(one, nn.Linear)]
        self._tensors = [(own, name) for own in linear for name, one in own.items() if one is not None]
        self._places = [own[name].data_ptr() for own, name in self._tensors]
        self._is_heard = any(self._hooks)
        is_plain = dense.precision == "float32" and not self._is_heard and all(map(_is_known, modules))
        self.steps: list[Callable[[Array], Array]] | None = None
        if is_plain:
            self.steps = [_BY_NUMPY[type(layer)](layer) for layer in layers]
            if layers and not isinstance(layers[0], nn.Linear):
                self.steps.insert(0, np.copy)  # what follows works in place

    def holds(self, dense: Dense) -> bool:
        """Whether all is as it was: layers, their attributes, hooks, types and where their weights are."""
        return (
            any(self._hooks) == self._is_heard
            and [len(own) for own in self._inside] == self._sizes
            and [*dense._modules.values()] == self.layers
            and [own[name].data_ptr() for own, name in self._tensors] == self._places
            and all([kind.forward is forward for kind, forward in self._forwards.items()])  # noqa: C419 - no generator in each step
        )

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Nothing to load."""


def _views_of(dense: Dense) -> _Views:
    vars(dense).setdefault("_views", None)  # attributes are counted with this one
    return _Views(dense, [*dense._modules.values()])


def _by_linear(layer: Any) -> Callable[[Array], Array]:
    columns = layer.weight.detach().numpy(force=True).T
    bias = np.float32(0) if layer.bias is None else layer.bias.detach().numpy(force=True)

    def step(x: Array) -> Array:
        y = x @ columns
        y += bias
        return np.asarray(y)

    return step


def _by_noisy(layer: Any) -> Callable[[Array], Array]:
    def step(x: Array) -> Array:
        weight, bias = layer.by_numpy()
        return np.asarray(x @ weight + bias)

    return step


def _by_layer_norm(layer: Any) -> Callable[[Array], Array]:
    epsilon = np.float32(layer.eps)

    def step(x: Array) -> Array:
        x -= x.mean(-1, keepdims=True)
        x /= np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon)
        return x

    return step


def _by_relu(_layer: Any) -> Callable[[Array], Array]:
    return lambda x: np.maximum(x, np.float32(0), out=x)


def _by_tanh(_layer: Any) -> Callable[[Array], Array]:
    return lambda x: np.tanh(x, out=x)


_BY_NUMPY: dict[Any, Any] = {
    nn.Linear: _by_linear,
    NoisyLinear: _by_noisy,
    nn.LayerNorm: _by_layer_norm,
    nn.ReLU: _by_relu,
    nn.Tanh: _by_tanh,
}
"""Kind of layer -> what makes its step; all but linear ones are done in place."""


def _is_known(module: Any) -> bool:
    """Whether numpy may stand for a module: its type is known, and has torch's own way."""
    kind = type(module)
    return (
        "forward" not in vars(module)
        and _TORCHS_OWN.get(kind) is kind.forward
        and not (kind is nn.LayerNorm and module.elementwise_affine)
    )


def is_heard() -> bool:
    """Whether somebody listens to all modules."""
    return bool(all_modules._global_forward_hooks or all_modules._global_forward_pre_hooks)


def computed_in(precision: str, x: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Layers are computed in this precision inside, where `x` is."""
    if precision != "bfloat16":
        return _AS_THEY_ARE
    # A launch that is recorded must not keep weights that were converted before.
    return torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False)


_AS_THEY_ARE = contextlib.nullcontext()


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer whose weights lie in memory by inputs: products with a few rows are four times as fast."""
    made = nn.Linear(inputs, outputs)
    made.weight.data = made.weight.data.T.contiguous().T
    return made


def orthogonal(module: nn.Module, gain: float = math.sqrt(2), last: float | None = None) -> nn.Module:
    """Orthogonal weights (Saxe et al. 2014) and no biases, in place; `last` is the gain of the last layer."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, last if last is not None and layer is layers[-1] else gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return module


def glorot(module: nn.Module, last: float = 1.0) -> nn.Module:
    """Uniform weights by Glorot and Bengio 2010 and no biases, in place; `last` is a factor for the last layer's."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight, last if layer is layers[-1] else 1.0)
        nn.init.zeros_(layer.bias)
    return module


_TORCHS_OWN = {kind: kind.forward for kind in (Dense, *_BY_NUMPY)}
