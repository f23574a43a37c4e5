"""SAC, soft actor-critic: maximum-entropy actor-critic from replay, for actions within bounds and for discrete ones.

Papers: Haarnoja et al. 2018a (soft actor-critic), 2018b (learned temperature), Christodoulou 2019 (discrete actions).
Where we differ: log-probabilities are those of actions in [-1, 1], whatever the bounds are, so that a target entropy
means the same in every task. Actions are uniformly random until learning begins. Truncation bootstraps from the row's
own next observation; only termination has no future. Twin critics have layers of their own. With `n_step` above 1 the
steps between count by what their behaviour found: its rewards, and -log mu(a|s), which the temperature of now weighs.

What do I change to make ...
  another loss or target      `soft_value`, `temperature_loss`; `critic_loss` and `td_target` of `continuous`: pure.
  another policy              `policy`, and `rsample` of its distribution.
  no code                     a fixed temperature: temperature_learning_rate = 0; updates_each; target_rate; n_step.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mlxe_async.algorithms.distributions import Categorical, TanhGaussian, raw_action
from mlxe_async.algorithms.interface import Acting, Clock, Rows
from mlxe_async.algorithms.parts.continuous import RANDOM, Continuous, ContinuousFields, critic_loss, td_target
from mlxe_async.algorithms.parts.fields import key
from mlxe_async.algorithms.parts.layers import polyak
from mlxe_async.algorithms.parts.policies import box_entries, number_of_actions
from mlxe_async.algorithms.parts.soft import Share, considered, drawn_evenly, earned, entropies_between, halves, taken
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.optimisers import Adam
from mlxe_async.rows import Array, Column, Spaces

if TYPE_CHECKING:
    import torch

LOG_STD = (-20.0, 2.0)
SHARE_OF_MOST = 0.98  # `target_entropy = "auto"` of discrete actions, as a share of log A


class SACSettings(ContinuousFields):
    """The fields of `[algorithm]` beside `name = "sac"`."""

    temperature: float = key(1.0, "Weight of the entropy at the start; higher acts more randomly.", gt=0)
    temperature_learning_rate: float = key(1e-3, "The temperature's; higher adapts faster, 0 never changes it.", ge=0)
    target_entropy: float | Literal["auto"] = key(
        "auto", "Entropy to keep; higher is more random. auto: -1 each; 0.98 log A.", "temperature_learning_rate > 0"
    )


def soft_value(share: Share, log_prob: torch.Tensor, q: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """V = E[Q - temperature * log pi] (M,), as a sum over K actions weighted by `share`; all (M, K).

    Discrete actions are all there, and their shares are probabilities. Of others one is drawn, and its share is 1.
    """
    return (share * (q - temperature * log_prob)).sum(-1)


def temperature_loss(log_temperature: torch.Tensor, entropy: torch.Tensor, target: float) -> torch.Tensor:
    """Mean of log temperature * (entropy (M,) - target): it makes the temperature rise below the target."""
    return (log_temperature * (entropy.detach() - target)).mean()


class SAC(Continuous):
    """Acts by a squashed Gaussian, or a softmax; learns from `batch` rows at a time."""

    Settings = SACSettings
    settings: SACSettings

    @classmethod
    def outputs_for(cls, spaces: Spaces) -> int:
        """Mean and log deviation of each entry; or a logit of each action."""
        return 2 * box_entries(cls, spaces) if spaces.actions is None else number_of_actions(cls, spaces)

    def build(self) -> None:
        """The actor."""
        super().build()
        self.discrete, outputs = self.spaces.actions is not None, self.outputs_for(self.spaces)
        self.actor = self.network(self.see.outputs, outputs, last=0.1)
        self.extra_columns = () if self.discrete else (raw_action(self.spaces),)
        auto, asked = SHARE_OF_MOST * math.log(outputs) if self.discrete else -outputs / 2, self.settings.target_entropy
        self.target_entropy = auto if asked == "auto" else asked
        if self.settings.n_step > 1:
            self.derived_columns += (Column("entropies", "<f4"),)

    def build_learner(self) -> None:
        """Two critics and their targets, the temperature, and an optimiser of each."""
        import torch
        from torch import nn

        s, seen, outputs = self.settings, self.see.outputs, self.outputs_for(self.spaces)
        inputs, values = (seen, outputs) if self.discrete else (seen + outputs // 2, 1)
        self.critics = nn.ModuleList([self.network(inputs, values) for _ in range(2)])
        self.critic_targets = copy.deepcopy(self.critics)
        self.log_temperature = nn.Parameter(torch.tensor([math.log(s.temperature)]))
        self.actor_optimiser = Adam(self.actor.parameters(), s.learning_rate)
        self.critic_optimiser = Adam(self.critics.parameters(), s.critic_learning_rate)
        self.temperature_optimiser = Adam([self.log_temperature], s.temperature_learning_rate)

    def policy(self, obs: Any, acting: Acting | None = None) -> Any:  # noqa: ARG002 - no clock
        """The distribution that executors draw from after the first update."""
        return self.distribution(self.actor(self.see(obs)))

    def distribution(self, outputs: Any) -> Any:
        """The actor's outputs (B, n): logits of actions, or mean and log deviation of a squashed Gaussian."""
        mean, log_std = halves(outputs)
        return Categorical(outputs) if self.discrete else TanhGaussian(mean, log_std.clip(*LOG_STD), self.spaces)

    def act(self, obs: Array, rng: np.random.Generator, acting: Acting) -> Rows:
        """Draw from the policy; before the first update uniformly."""
        is_random = self.noise.item() == RANDOM
        return drawn_evenly(self, len(obs), rng, acting) if is_random else super().act(obs, rng, acting)

    def derive_many(self, segments: Rows, lengths: Array) -> Rows:
        """Add the discounted entropies of the steps between a row and its cut, as -log mu(a|s), for n steps."""
        return super().derive_many(segments, lengths) | entropies_between(self.settings, segments, lengths)

    def update(self, batch: Rows, clock: Clock) -> dict[str, Any]:  # noqa: ARG002 - nothing is annealed
        """One step of critics, actor and temperature each; then the target critics follow."""
        import torch

        s, rows = self.settings, self.tensors(self.columns(batch))
        obs, following, temperature = self.see(rows["obs"]), self.see(rows["following"]), self.log_temperature.exp()
        temperature = temperature.detach()
        with torch.no_grad():
            value = soft_value(*considered(self, self.critic_targets, following), temperature)
            target = td_target(earned(rows, temperature), rows["coefficient"], value)
        q = taken(self, obs, rows["action"])
        loss = critic_loss(q, target)
        self.critic_optimiser.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(self.critic_optimiser.gradient, s.max_gradient_norm)
        self.critic_optimiser.step()

        share, log_prob, judged = considered(self, self.critics, obs)
        actor_loss = -soft_value(share, log_prob, judged, temperature).mean()
        self.actor_optimiser.zero_grad()
        actor_loss.backward(inputs=[*self.actor.parameters()])
        clip_grad_norm_(self.actor_optimiser.gradient, s.max_gradient_norm)
        self.actor_optimiser.step()

        entropy = -(share * log_prob).sum(-1)
        if s.temperature_learning_rate:
            self.temperature_optimiser.zero_grad()
            temperature_loss(self.log_temperature, entropy, self.target_entropy).backward()
            self.temperature_optimiser.step()
        polyak(self.critic_targets, self.critics, s.target_rate)
        self.noise.zero_()
        found = {"critic_loss": loss, "actor_loss": actor_loss, "value": q.mean(), "gradient_norm": norm}
        return found | {"entropy": entropy.mean(), "temperature": temperature[0]}
