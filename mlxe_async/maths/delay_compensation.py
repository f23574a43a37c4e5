"""Gradients made by older weights, moved to where the weights are now: DC-ASGD, Zheng et al. 2017, eqs. 10 and 14.

A gradient g that was made at w_then is applied at w_now. To first order, with the diagonal of g g^T in the place of the
Hessian, the gradient at w_now is

    g + strength * g * g * (w_now - w_then).

On a quadratic of one dimension it is exact where strength * g^2 is the curvature. A constant strength has the unit of
1 / gradient, so it means another thing for a loss that is summed instead of averaged. The adaptive one does not: it is
divided by the root of a running mean of g^2, elementwise.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
STRENGTHS = {"constant": 0.04, "adaptive": 2.0}
"""Usual strengths by kind."""
DECAY = 0.95
EPSILON = 1e-7


def compensated(gradient: Floats, now: Floats, then: Floats, strength: float | Floats) -> Floats:
    """The gradient at `now`, to first order, given that at `then`; all (P,), or `strength` a number."""
    return np.asarray(gradient + strength * np.square(gradient) * (now - then), np.float32)


class DelayCompensation:
    """Remembers former weights, and compensates gradients that were made by them.

    Args:
        versions: how many former versions are remembered.
        kind: `"constant"` or `"adaptive"`.
        strength: None: the usual one of the kind.
    """

    def __init__(self, versions: int, *, kind: str = "adaptive", strength: float | None = None) -> None:
        self._versions, self._kind = versions, kind
        self._strength = STRENGTHS[kind] if strength is None else strength
        self._known: OrderedDict[int, Floats] = OrderedDict()
        self._mean_square: Floats | None = None

    def note(self, version: int, weights: Floats) -> None:
        """Remember the weights (P,) of a version, which are copied."""
        self._known[version] = weights.copy()
        while len(self._known) > self._versions + 1:
            self._known.popitem(last=False)

    def knows(self, version: int) -> bool:
        """Return whether a version is remembered."""
        return version in self._known

    def applied(self, gradient: Floats, now: Floats, version: int) -> Floats:
        """The gradient (P,) as it would be at the weights `now`; as it is where its version is not remembered."""
        strength: float | Floats = self._strength
        if self._kind == "adaptive":
            square = np.square(gradient)
            before = square if self._mean_square is None else self._mean_square
            self._mean_square = np.asarray(DECAY * before + (1 - DECAY) * square, np.float32)
            strength = np.asarray(self._strength / np.sqrt(self._mean_square + EPSILON))
        then = self._known.get(version)
        return gradient if then is None else compensated(gradient, now, then, strength)
