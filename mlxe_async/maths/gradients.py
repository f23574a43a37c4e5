"""Changes of a gradient before an optimiser sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def clip_grad_norm_(gradient: torch.Tensor, longest: float) -> torch.Tensor:
    """Scale a flat gradient (P,) in place to a norm of at most `longest`, and return the norm it had, ().

    With `longest` 0 it is left as it is. The direction never changes.
    """
    import torch

    norm: torch.Tensor = torch.linalg.vector_norm(gradient)
    if longest and gradient.device.type == "cpu":
        if (length := norm.item()) > longest:
            gradient.mul_(longest / length)
    elif longest:  # a GPU is not waited for
        gradient.mul_((longest / norm.clamp(min=1e-12)).clamp(max=1))
    return norm
