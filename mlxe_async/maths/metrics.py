"""Metrics of an update, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

QUANTILES = {"min": 0.0, "p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}
MOST_IN_QUANTILES = 1 << 20  # torch sorts no more for a quantile than 2^24; a sample does
NEARLY_ALIKE, TINY = 1e-6, 1e-12  # variance by square of the mean; where both are 0


def as_floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Tensors () and numbers by name as floats. A device is waited for once, not once for each."""
    import torch

    if not metrics:
        return {}
    for name, one in metrics.items():
        if (many := getattr(one, "ndim", 0)) and getattr(one, "shape", ()) != (1,) * many:
            raise ValueError(f"metric {name!r}: expected one number, got a {type(one).__name__} {tuple(one.shape)}")
    device = next((one.device for one in metrics.values() if isinstance(one, torch.Tensor)), None)
    values = [torch.as_tensor(one, dtype=torch.float32, device=device).detach().reshape(()) for one in metrics.values()]
    return dict(zip(metrics, torch.stack(values).tolist(), strict=True))


def spread(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors of several numbers by their quantiles: `name.min`, `.p10`, `.p50`, `.p90`, `.max`; others as they are."""
    import torch

    found: dict[str, Any] = {}
    for name, value in measured.items():
        if isinstance(value, torch.Tensor) and value.numel() > 1:
            flat = value.detach().float().flatten()
            flat = flat[:: -(-len(flat) // MOST_IN_QUANTILES)]
            levels = torch.tensor(list(QUANTILES.values()), device=flat.device)
            names = (f"{name}.{quantile}" for quantile in QUANTILES)
            found |= dict(zip(names, flat.quantile(levels).unbind(), strict=True))
        else:
            found[name] = value
    return found


def means(measured: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of each metric over the minibatches that have it."""
    import torch

    found: dict[str, list[torch.Tensor]] = {}
    for one in measured:
        for name, value in one.items():
            found.setdefault(name, []).append(torch.as_tensor(value, dtype=torch.float32).detach())
    return as_floats({name: torch.stack(values).mean() for name, values in found.items()})


def explained_variance(error: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    """1 - Var(error) / Var(target) -> (): 1 of a perfect critic, 0 of one that says the mean, below that a worse one.

    Targets that are nearly alike count as if they differed by a thousandth of their mean: rounding decides below that.

    Args:
        error: target minus value (M,).
        target: of the critic (M,).
        weight: of the rows (M,), in sum 1; None: all alike.
    """

    def mean(rows: torch.Tensor) -> torch.Tensor:
        return rows.mean() if weight is None else rows.dot(weight)

    centre = mean(target)
    unexplained, spread = mean((error - mean(error)).square()), mean((target - centre).square())
    return 1 - unexplained / spread.maximum(NEARLY_ALIKE * centre.square() + TINY)


def explained(unexplained: float, target: NDArray[Any], weight: NDArray[Any] | None = None) -> float:
    """`explained_variance` of arrays, where the variance of the errors is known already."""
    if weight is None:
        centre = float(np.add.reduce(target)) / len(target)
        spread = target - target.dtype.type(centre)
        found = float(spread.dot(spread)) / len(target)
    else:
        centre = float(target.dot(weight))
        found = float(np.square(target - target.dtype.type(centre)).dot(weight))
    return 1 - unexplained / max(found, NEARLY_ALIKE * centre * centre + TINY)
