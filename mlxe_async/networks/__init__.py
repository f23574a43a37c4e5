"""Our networks: weights are one flat vector, evaluated by numpy (acting) or as a torch module (learning).

A network is a common trunk followed by named heads, for instance `{"policy": (64, 64, 2), "value": (64, 64, 1)}`. Its
weights live in one float32 vector: publishing them is one copy, an optimiser step works on one tensor, and executors
evaluate them with numpy alone, which for a handful of observations is several times faster than torch.

A noisy network (Fortunato et al. 2018) explores by its weights: each is mu + sigma * epsilon, sigma learned as mu is,
and epsilon drawn now and then. It is the plain network on weights that are put together first, so that everything else,
the non-linearities included, is the same; without epsilon it is the network of the mu, by which policies are tested.
"""

from typing import TYPE_CHECKING, Any

from mlxe_async.networks.acting import NumpyNetwork
from mlxe_async.networks.flat import Floats, Parameters, flatten, parameter_count, unflatten
from mlxe_async.networks.pictures import BODIES, is_picture
from mlxe_async.networks.shape import Activation, Body, Network, Precision

if TYPE_CHECKING:
    from mlxe_async.networks.learning import TorchNetwork

__all__ = [
    "BODIES",
    "Activation",
    "Body",
    "Floats",
    "Network",
    "NumpyNetwork",
    "Parameters",
    "Precision",
    "TorchNetwork",
    "flatten",
    "is_picture",
    "parameter_count",
    "unflatten",
]


def __getattr__(name: str) -> Any:
    if name == "TorchNetwork":  # only now: it needs torch, which acting does without
        from mlxe_async.networks.learning import TorchNetwork

        return TorchNetwork
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
