"""What is done to a gradient before an optimiser sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def shorten_and_tell(gradient: torch.Tensor, longest: float, measured: Sequence[Any]) -> torch.Tensor:
    """What a loss measured, numbers or tensors (), and then the norm that `shorten` found, as one tensor (N + 1,)."""
    import torch

    return torch.stack([torch.as_tensor(one) for one in (*measured, shorten(gradient, longest))])


def shorten(gradient: torch.Tensor, longest: float) -> torch.Tensor:
    """Scale a flat gradient (P,) in place to a norm of at most `longest`, and return the norm it had, ().

    With `longest` 0 it is left as it is. The direction never changes.
    """
    norm: torch.Tensor = gradient.norm()
    if longest and gradient.device.type == "cpu":
        if (length := norm.item()) > longest:
            gradient.mul_(longest / length)
    elif longest:  # a GPU is not waited for
        gradient.mul_((longest / norm.clamp(min=1e-12)).clamp(max=1))
    return norm
