"""Rescaling of values, Pohlen et al. 2018: h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, and its inverse.

Returns of very different sizes become alike. A target for a network of h(Q) is h(r + discount * h^-1(Q')).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

EPSILON = 1e-3
"""It keeps the inverse from growing without bound; the value is that of R2D2, Kapturowski et al. 2019."""


def h(x: torch.Tensor, epsilon: float = EPSILON) -> torch.Tensor:
    """Values of any shape, rescaled."""
    return x / ((x.abs() + 1).sqrt() + 1) + epsilon * x  # sqrt(|x| + 1) - 1, without a difference of near numbers


def h_inverse(y: torch.Tensor, epsilon: float = EPSILON) -> torch.Tensor:
    """Return what was rescaled to `y`: sign(y) v (v + 2), where v >= 0 solves epsilon v^2 + (1 + 2 epsilon) v = |y|."""
    half = 1 + 2 * epsilon
    v = 2 * y.abs() / ((half**2 + 4 * epsilon * y.abs()).sqrt() + half)  # nor is there one here
    return y.sign() * v * (v + 2)
