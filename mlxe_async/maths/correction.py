"""Weights that account for rows chosen by an older policy: ratios of what would be done now to what was done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxe_async.maths import together

if TYPE_CHECKING:
    import torch


def ratio(log_prob: torch.Tensor, behaviour_log_prob: torch.Tensor) -> torch.Tensor:
    """pi(a|s) / mu(a|s) per row, without gradient; same shape as both arguments.

    The exponent is limited to +-20, so that a row that has become impossible gives 0 and not a NaN later on.
    """
    if log_prob.shape != behaviour_log_prob.shape:
        raise ValueError(f"ratio: shapes differ, {tuple(log_prob.shape)} and {tuple(behaviour_log_prob.shape)}")
    return (log_prob.detach() - behaviour_log_prob).clamp(-20.0, 20.0).exp()


def clipped(weight: torch.Tensor, largest: float = 1.0) -> torch.Tensor:
    """Truncated importance weights min(weight, largest): bounded variance, at the price of some bias."""
    return weight.clamp(max=largest)


def effective_share(weight: torch.Tensor) -> torch.Tensor:
    """Kish's effective sample size divided by the number of samples: 1 if all weights are equal, 1/M if one rules."""
    return weight.sum().square() / (weight.square().sum() * weight.numel()).clamp(min=1e-12)


def approximate_kl(log_prob: torch.Tensor, behaviour_log_prob: torch.Tensor) -> torch.Tensor:
    """KL(behaviour || policy) over rows drawn from the behaviour, as mean((ratio - 1) - log ratio). Both (M,) -> ().

    Unbiased, and never negative (Schulman 2020, "Approximating KL divergence", estimator k3).
    """
    log_ratio = log_prob - behaviour_log_prob
    return (log_ratio.exp() - 1 - log_ratio).mean()


def is_beyond(kl: torch.Tensor | float, largest: float) -> bool:
    """Return whether the KL over the rows of all workers is above `largest`, given that over a worker's own."""
    return bool(together.mean(kl) > largest)


def kl_coefficient(coefficient: float, kl: float, target: float) -> float:
    """Return the next coefficient of the KL penalty: halved or doubled far from the target; PPO, section 4."""
    kl = together.mean(kl)
    return coefficient / 2 if kl < target / 1.5 else coefficient * 2 if kl > target * 1.5 else coefficient
