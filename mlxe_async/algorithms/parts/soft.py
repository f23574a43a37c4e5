"""Values that a stochastic policy's actions have, for discrete actions and for those within bounds; see `sac`.

Discrete actions are all judged, each by its probability. Of others one is drawn, which has the whole weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.algorithms.interface import Acting, Rows
from mlxe_async.algorithms.parts.replay import ends_of
from mlxe_async.maths import returns
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch
    from torch import nn

Share: TypeAlias = "torch.Tensor | float"


def considered(algorithm: Any, critics: nn.ModuleList, obs: torch.Tensor) -> tuple[Share, torch.Tensor, torch.Tensor]:
    """Share, log-probability and the lower critic's value of the policy's actions (M, K) at observations (M, *O)."""
    import torch

    policy = algorithm.distribution(algorithm.actor(obs))
    if algorithm.discrete:
        lower = torch.minimum(*(critic(obs) for critic in critics)).detach()
        return policy.log_probs.exp(), policy.log_probs, lower
    action, log_prob = policy.rsample(algorithm.normal(policy.mean))
    return 1.0, log_prob[:, None], algorithm.judged(critics, obs, action).amin(0)[:, None]


def taken(algorithm: Any, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Both critics' values (2, M) of stored actions."""
    import torch

    if not algorithm.discrete:
        found: torch.Tensor = algorithm.judged(algorithm.critics, obs, action)
        return found
    return torch.stack([critic(obs).gather(-1, action[:, None])[:, 0] for critic in algorithm.critics])


def earned(rows: Mapping[str, Any], temperature: Any) -> Any:
    """Rewards up to s' (M,), and the entropies of the steps between, by numpy or torch as the rows are."""
    return rows["partial"] + temperature * rows["entropies"] if "entropies" in rows else rows["partial"]


def halves(outputs: Any) -> tuple[Any, Any]:
    """The first and the second half of an actor's outputs (B, 2 D), arrays or tensors."""
    entries = outputs.shape[-1] // 2
    return outputs[..., :entries], outputs[..., entries:]


def drawn_evenly(algorithm: Any, rows: int, rng: np.random.Generator, acting: Acting) -> Rows:
    """Uniformly random actions (n,), with their log-probabilities; they are even at any temperature."""
    acting.asked.add("temperature")
    if not algorithm.discrete:
        found: Rows = algorithm.uniform(rows, rng, acting)
        return found
    return Categorical(np.zeros((rows, algorithm.spaces.actions), np.float32)).act(rng)


def entropies_between(settings: Any, segments: Rows, lengths: Array) -> Rows:
    """Discounted entropies of the steps between each row and its cut (N,), as -log mu(a|s); of one step none."""
    s = settings
    if s.n_step == 1:
        return {}
    entropy, (ended, _) = -segments["log_prob"].astype(np.float64), ends_of(segments, lengths)
    with_own = returns.n_step_many(entropy, lengths, ended, s.discount, s.n_step).partial
    return {"entropies": (with_own - entropy).astype(np.float32)}
