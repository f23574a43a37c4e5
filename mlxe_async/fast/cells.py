"""The audit of recurrent cells: numpy's way through a sequence, and torch's own, on the same features and states.

Outputs and gradients are compared, the latter of a sum of all outputs that is weighed at random. As of twins, a
difference counts only if torch's way does not differ as much from itself when weights change by a few units of their
last place. Nothing that is learned changes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from mlxe_async.errors import AuditFailed
from mlxe_async.networks.ways import Way

NEAR = 1e-4  # of its norm: how far an output or a gradient may be from torch's own
TRIALS = 4
UNITS = {torch.float32: 2.0**-20, torch.float64: 2.0**-49}


class Comparison:
    """Compares the first `most` ways that it is shown, see `networks.ways.watched`; None: all."""

    def __init__(self, most: int | None) -> None:
        self._left = iter(range(most)) if most is not None else itertools.count()

    def __call__(self, ours: Way, torchs: Way, weights: Sequence[Any], x: Any, state: Any) -> None:
        """Compare two ways.

        Raises:
            AuditFailed: they differ by more than rounding does.
        """
        if next(self._left, None) is None:
            return
        rng, on_outputs = np.random.default_rng(0), list[torch.Tensor]()

        def found(way: Way) -> list[torch.Tensor]:
            with torch.inference_mode(False), torch.enable_grad():
                given = [one.detach().clone().requires_grad_() for one in (x, state)]
                outputs = [one for one in way(*given) if one.requires_grad]
            if not on_outputs:
                on_outputs.extend(torch.as_tensor(rng.standard_normal(one.shape)).to(one) for one in outputs)
            asked = [*given, *weights]
            gradients = torch.autograd.grad(outputs, asked, on_outputs, allow_unused=True, materialize_grads=True)
            return [*(one.detach() for one in outputs), *gradients]

        mine, theirs = found(ours), found(torchs)
        norms = [float(one.norm()) for one in theirs]
        apart = _apart(mine, theirs)
        told = [at for at, norm in enumerate(norms) if math.isfinite(norm) and not apart[at] <= NEAR * norm + 1e-6]
        for _ in range(TRIALS if told else 0):
            with _jittered(weights, rng):
                reach = _apart(found(torchs), theirs)
            told = [at for at in told if not apart[at] <= 2 * reach[at] + NEAR * norms[at]]
        if told:
            far, norm = apart[told[0]], norms[told[0]]
            what = "outputs differ" if told[0] < len(on_outputs) else "a gradient differs"
            raise AuditFailed(
                f"audit of a recurrent layer: {what} by {far / max(norm, 1e-30):.2g} of the norm from torch's own, "
                f"expected at most {NEAR:g}"
            )


def _apart(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[float]:
    return [float((one - other).norm()) for one, other in zip(some, others, strict=True)]


@contextlib.contextmanager
def _jittered(weights: Sequence[torch.Tensor], rng: np.random.Generator) -> Iterator[None]:
    """Change weights by a few units of their last place, for a while."""
    kept = [one.detach().clone() for one in weights]
    with torch.no_grad():
        for one in weights:
            one.mul_(torch.as_tensor(1 + UNITS[one.dtype] * rng.standard_normal(one.shape)).to(one))
    try:
        yield
    finally:
        with torch.no_grad():
            for one, was in zip(weights, kept, strict=True):
                one.copy_(was)
