"""A3C as first published (Mnih et al. 2016): workers send gradients, a server applies them, delays compensated.

DC-ASGD, adaptive (Zheng et al. 2017): a gradient g taken at `worker_weights` is applied at the server's weights w as
g + lambda g * g * (w - worker_weights), elementwise, lambda = lambda0 / sqrt(mean square of g).
"""

import numpy as np
import torch

from mlxe_async.algorithms.mlxe import MLxE


class ParameterServerA3C(MLxE):
    """The same losses; `update` is cut in two where the gradient travels."""

    delay_compensation = 2.0

    def differentiate(self, batch, clock):
        metrics = self._differentiate(batch, clock)
        return self._learned.gradient.numpy().copy(), metrics

    def apply(self, gradient, worker_weights, clock):
        g = torch.as_tensor(gradient)
        drift = self._learned.flat - torch.as_tensor(worker_weights)
        self._mean_square = 0.95 * getattr(self, "_mean_square", torch.zeros_like(g)) + 0.05 * g.square()
        strength = self.delay_compensation / (self._mean_square + 1e-7).sqrt()
        self._learned.gradient.copy_(g + strength * g.square() * drift)
        self._apply(clock)

    def take(self, flat):
        """A worker's own copy of the server's weights, to differentiate at; its optimiser is never used."""
        self._learned.flat.copy_(torch.as_tensor(np.asarray(flat)))
