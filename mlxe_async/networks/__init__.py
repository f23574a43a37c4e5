"""Networks as plain torch modules, which executors evaluate by numpy, and what is known of them without torch.

`bodies` has the layers that networks are put together from; `heads` networks of several heads. `Dense` and `Body` take
arrays as well as tensors: for a handful of observations numpy is several times faster than torch. What is published of
a network is one flat vector of its parameters and buffers, see `flat`.

A noisy network (Fortunato et al. 2018) explores by its weights: see `noisy`.
"""

from mlxe_async.networks.flat import Floats, Parameters, flatten, parameter_count, unflatten
from mlxe_async.networks.pictures import BODIES, Activation, Body, Precision, is_picture

__all__ = [
    "BODIES",
    "Activation",
    "Body",
    "Floats",
    "Parameters",
    "Precision",
    "flatten",
    "is_picture",
    "parameter_count",
    "unflatten",
]
