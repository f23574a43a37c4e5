"""A3C as first published (Mnih et al. 2016): workers send gradients, a server applies them, delays compensated.

DC-ASGD, adaptive (Zheng et al. 2017): a gradient g taken at `worker_weights` is applied at the server's weights w as
g + lambda g * g * (w - worker_weights), elementwise, lambda = lambda0 / sqrt(mean square of g).
"""

import torch

from mlxe_async.algorithms.mlxe.paper import MLxE
from mlxe_async.algorithms.parts.replay import tensors_of


class ParameterServerA3C(MLxE):
    """The same losses; `update` is cut in two where the gradient travels."""

    delay_compensation = 2.0

    def differentiate(self, batch, clock):
        self.follow(clock)
        rows = tensors_of(self, batch)
        loss, found = self.loss(rows | self.bootstrapped(rows))
        self.optimiser.zero_grad()
        loss.backward()
        return self.optimiser.gradient.numpy().copy(), {name: float(one) for name, one in found.items()}

    def apply(self, gradient, worker_weights, clock):
        g = torch.as_tensor(gradient)
        drift = self.optimiser.weights - torch.as_tensor(worker_weights)
        self._mean_square = 0.95 * getattr(self, "_mean_square", torch.zeros_like(g)) + 0.05 * g.square()
        strength = self.delay_compensation / (self._mean_square + 1e-7).sqrt()
        self.optimiser.gradient.copy_(g + strength * g.square() * drift)
        self.optimiser.step(self.settings.rate(clock.episodes))

    def vector(self):
        """The weights (P,) as the optimiser has them, copied."""
        return self.optimiser.weights.numpy().copy()

    def take(self, vector):
        """Have these weights: a worker's own copy of the server's, to differentiate at."""
        self.optimiser.weights.copy_(torch.as_tensor(vector))
