"""What was measured in an update, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def as_floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Tensors () and numbers by name as floats. A device is waited for once, not once for each."""
    import torch

    if not metrics:
        return {}
    device = next((one.device for one in metrics.values() if isinstance(one, torch.Tensor)), None)
    values = [torch.as_tensor(one, dtype=torch.float32, device=device).detach() for one in metrics.values()]
    return dict(zip(metrics, torch.stack(values).tolist(), strict=True))


def means(measured: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of each metric over the minibatches that have it."""
    import torch

    found: dict[str, list[torch.Tensor]] = {}
    for one in measured:
        for name, value in one.items():
            found.setdefault(name, []).append(torch.as_tensor(value, dtype=torch.float32).detach())
    return as_floats({name: torch.stack(values).mean() for name, values in found.items()})
