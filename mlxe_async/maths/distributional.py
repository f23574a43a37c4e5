"""Values as distributions over fixed atoms: the projection of a target, and its mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def project(
    probability: torch.Tensor, partial: torch.Tensor, coefficient: torch.Tensor, support: torch.Tensor
) -> torch.Tensor:
    """The distribution of partial + coefficient * Z, spread over Z's own atoms; Bellemare et al. 2017, algorithm 1.

    Mass that falls between two atoms is shared by them in proportion to its nearness, so that the mean is kept; mass
    beyond the ends goes to the end atoms. What falls upon an atom stays there whole: only the share that is nearer to
    the upper neighbour is moved, which is 0 then.

    Args:
        probability: of each atom at the row where the sum stops (M, K).
        partial: discounted rewards up to there (M,).
        coefficient: discount up to there (M,), 0 where the world ended.
        support: values of the atoms (K,), equally far apart, rising.

    Returns:
        Probabilities (M, K), each row's sum that of `probability`.
    """
    if probability.ndim != 2 or partial.shape != probability.shape[:1] or coefficient.shape != partial.shape:
        raise ValueError(
            f"project: expected probabilities (M, K) and numbers (M,), got {tuple(probability.shape)}, "
            f"{tuple(partial.shape)} and {tuple(coefficient.shape)}"
        )
    last = len(support) - 1
    gap = (support[-1] - support[0]) / last
    moved = partial[:, None] + coefficient[:, None] * support
    place = ((moved - support[0]) / gap).clamp(0, last)  # in atoms, the first one at 0
    below = place.floor()
    above = place - below
    index = below.long()
    result = probability.new_zeros(probability.shape)
    result.scatter_add_(1, index, probability * (1 - above))
    return result.scatter_add_(1, (index + 1).clamp(max=last), probability * above)


def mean(probability: torch.Tensor, support: torch.Tensor) -> torch.Tensor:
    """Expected value (M,) of distributions (M, K) over atoms (K,)."""
    return probability @ support
