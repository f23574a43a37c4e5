"""Networks as plain torch modules, which executors evaluate by numpy, and what is known of them without torch.

`bodies` has the layers that networks are put together from; `heads` networks of several heads. `Dense` and `Body` take
arrays as well as tensors: for a handful of observations numpy is several times faster than torch. What is published of
a network is one flat vector of its parameters and buffers, see `flat`.

A noisy network (Fortunato et al. 2018) explores by its weights: see `noisy`.

    bodies, dense, convolutions, noisy          layers as torch modules; in bodies the running moments, Normaliser
    heads                                       networks of several heads
    cells, dilated, recurrence                  recurrent cells; a dilated LSTM; sequences by numpy, gradients by hand
    ways                                        numpy's or torch's way through sequences, in this thread
    by_numpy, sequential, several               evaluated by numpy: layers, an author's network, many versions at once
    seen, pictures, mixed                       which parts of observations are pictures and which are numbers
    flat, tensors                               arrays in one vector; columns of rows as tensors
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
