"""SAC, soft actor-critic: maximum-entropy actor-critic from replay, for actions within bounds and for discrete ones.

Papers: Haarnoja et al. 2018a (soft actor-critic), 2018b (learned temperature), Christodoulou 2019 (discrete actions).
Where we differ: log-probabilities are those of actions in [-1, 1], whatever the bounds are, so that a target entropy
means the same in every task. Actions are uniformly random until learning begins. Truncation bootstraps from the row's
own next observation; only termination has no future. Twin critics have layers of their own. With `n_step` above 1 the
steps between count by what their behaviour found: its rewards, and -log mu(a|s), which the temperature of now weighs.

What do I change to make ...
  another loss or target      `soft_value`, `temperature_loss`; `critic_loss` and `td_target` of `continuous`: pure.
  a fixed temperature         no code: temperature = 0.2, temperature_learning_rate = 0.0.
  another policy              `squashed`: action and log-probability of the actor's outputs and of normal numbers.
  slower targets              no code: target_rate = 0.001.
  more updates for each row   no code: updates_each = 4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from mlxe_async.algorithms.distributions import HALF_LOG_2PI, Categorical, TanhGaussian, raw_action
from mlxe_async.algorithms.interface import Acting, Clock, Metrics, Rows, needs
from mlxe_async.algorithms.parts.acting import number_of_actions
from mlxe_async.algorithms.parts.bootstrapping import ends_of
from mlxe_async.algorithms.parts.continuous import (
    RANDOM,
    Continuous,
    ContinuousFields,
    box_entries,
    critic_loss,
    td_target,
)
from mlxe_async.algorithms.parts.fields import key
from mlxe_async.maths import metrics, returns
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.optimisers import FlatOptimiser
from mlxe_async.rows import Array, Column

if TYPE_CHECKING:
    import torch

    from mlxe_async.networks import TorchNetwork

LOG_STD = (-20.0, 2.0)
SHARE_OF_MOST = 0.98  # `target_entropy = "auto"` of discrete actions, as a share of log A


class SACSettings(ContinuousFields):
    """The fields of `[algorithm]` beside `name = "sac"`."""

    temperature: float = key(1.0, "Weight of the entropy at the start; higher acts more randomly.", gt=0)
    temperature_learning_rate: float = key(1e-3, "The temperature's; higher adapts faster, 0 never changes it.", ge=0)
    target_entropy: float | Literal["auto"] = key(
        *("auto", "Entropy that is kept; higher acts more randomly. auto: -1 per entry; discrete: 0.98 log A."),
        needs(temperature_learning_rate={"above": 0}),
    )


def squashed(mean: torch.Tensor, log_std: torch.Tensor, normal: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """tanh(u) (M, D), u = mean + deviation * normal, and its log-density (M, 1): log N(u) - sum log(1 - tanh(u)^2)."""
    from torch.nn.functional import softplus

    raw = mean + log_std.exp() * normal
    shrink = 2 * (math.log(2) - raw - softplus(-2 * raw))  # the same logarithm, finite for large u
    return raw.tanh(), (-0.5 * normal.square() - log_std - HALF_LOG_2PI - shrink).sum(-1, keepdim=True)


def soft_value(share: Any, log_prob: torch.Tensor, q: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """V = E[Q - temperature * log pi] (M,), as a sum over K actions weighted by `share`; all (M, K).

    Discrete actions are all there, and their shares are probabilities. Of others one is drawn, and its share is 1.
    """
    value: torch.Tensor = (share * (q - temperature * log_prob)).sum(-1)
    return value


def temperature_loss(log_temperature: torch.Tensor, entropy: torch.Tensor, target: float) -> torch.Tensor:
    """Mean of log temperature * (entropy (M,) - target): it makes the temperature rise below the target."""
    return (log_temperature * (entropy.detach() - target)).mean()


class SAC(Continuous):
    """Acts by a squashed Gaussian, or a softmax; learns from `batch` rows at a time."""

    Settings = SACSettings
    settings: SACSettings
    gains: ClassVar = {"policy": 0.1}

    def build(self) -> None:
        """Mean and log deviation of each entry; or a logit, and a value, of each action."""
        self.discrete = self.spaces.actions is not None
        if self.discrete:
            actions = number_of_actions(type(self), self.spaces)
            self.make_networks(actions, 0, actions)
            self.target_entropy = SHARE_OF_MOST * math.log(actions)
        else:
            entries = box_entries(type(self), self.spaces)
            self.make_networks(2 * entries, entries)
            self.extra_columns, self.target_entropy = (raw_action(self.spaces),), float(-entries)
        if self.settings.target_entropy != "auto":
            self.target_entropy = self.settings.target_entropy
        if self.settings.n_step > 1:
            self.derived_columns += (Column("entropies", "<f4"),)

    def build_learner(self) -> None:
        """Critics, their targets, the temperature, and an optimiser of each."""
        super().build_learner()
        self.log_temperature = self.network.flat.new_full((1,), math.log(self.settings.temperature))
        gradient = self.log_temperature.requires_grad_().grad = self.network.flat.new_zeros(1)
        self.temperature_optimiser = FlatOptimiser("adam", self.log_temperature, gradient, eps=1e-8)

    def policy(self, obs: Array, acting: Acting | None = None) -> TanhGaussian | Categorical:  # noqa: ARG002 - no clock
        """The distribution that executors draw from after the first update."""
        scores = self.scores(self.outputs, obs)
        if self.discrete:
            return Categorical(scores * np.float32(self.noise != RANDOM))
        mean, log_std = np.split(scores, 2, -1)
        return TanhGaussian(mean, log_std.clip(*LOG_STD), self.spaces)

    def act(self, obs: Array, rng: np.random.Generator, acting: Acting) -> Rows:
        """Draw from the policy; before the first update uniformly."""
        if self.discrete or self.noise != RANDOM:
            return self.policy(obs, acting).act(rng)
        return self.uniform(len(obs), rng)

    def best(self, scores: Array) -> Array:
        """tanh(mean), within the bounds; or the action with the highest logit."""
        if self.discrete:
            return np.asarray(scores.argmax(-1))
        return self.bounded(np.tanh(np.split(scores, 2, -1)[0]))

    def derive_many(self, segments: Rows, lengths: Array) -> Rows:
        """Of n steps: also the discounted entropies of the steps between a row and its cut, as -log mu(a|s)."""
        s, found = self.settings, super().derive_many(segments, lengths)
        if s.n_step == 1:
            return found
        entropy, (ended, _) = -segments["log_prob"].astype(np.float64), ends_of(segments, lengths)
        with_own = returns.n_step_many(entropy, lengths, ended, s.discount, s.n_step).partial
        return found | {"entropies": (with_own - entropy).astype(np.float32)}

    def columns(self, batch: Rows) -> Rows:
        """What an update needs of a batch (M, ...); of n steps also the entropies of those between."""
        several = {"entropies": batch["entropies"]} if self.settings.n_step > 1 else {}
        return super().columns(batch) | several

    def earned(self, rows: Mapping[str, Any], temperature: Any) -> Any:
        """Rewards up to s' (M,), and the entropies of the steps between, by numpy or torch as the rows are."""
        return rows["partial"] + temperature * rows["entropies"] if self.settings.n_step > 1 else rows["partial"]

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, None]:  # noqa: ARG002 - nothing is annealed
        """One step of critics, actor and temperature each; then the target critics follow."""
        import torch

        s, rows = self.settings, self.tensors_of(batch)
        temperature = self.log_temperature.detach().exp()
        with torch.no_grad():
            value = soft_value(*self.considered(self.critic_target, rows["following"]), temperature)
            target = td_target(self.earned(rows, temperature), rows["coefficient"], value)
        q = self.taken(rows["obs"], rows["action"])
        loss = critic_loss(q, target)
        self.critic_optimiser.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(self.critics.gradient, s.max_gradient_norm)
        self.critic_optimiser.step(s.critic_learning_rate)

        share, log_prob, judged = self.considered(self.critics, rows["obs"])
        actor_loss = -soft_value(share, log_prob, judged, temperature).mean()
        self.optimiser.zero_grad()
        actor_loss.backward(inputs=[*self.network.parameters()])
        clip_grad_norm_(self.network.gradient, s.max_gradient_norm)
        self.optimiser.step(s.learning_rate)

        entropy = -(share * log_prob).sum(-1)
        if s.temperature_learning_rate:
            self.temperature_optimiser.zero_grad()
            temperature_loss(self.log_temperature, entropy, self.target_entropy).backward()
            self.temperature_optimiser.step(s.temperature_learning_rate)
        self.critic_target.follow(self.critics, s.target_rate)
        self.noise = 0.0
        found = {"critic_loss": loss, "actor_loss": actor_loss, "value": q.mean(), "gradient_norm": norm}
        return metrics.as_floats(found | {"entropy": entropy.mean(), "temperature": temperature[0]}), None

    def unit(self, batch: Rows) -> Array:
        """Stored actions as critics take them: tanh of raw ones (M, D), discrete ones as they are (M,)."""
        raw = batch["action" if self.discrete else "raw_action"]
        return raw if self.discrete else np.tanh(raw.reshape(len(raw), -1))

    def considered(self, critics: TorchNetwork, obs: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """Share, log-probability and the lower critic's value of the policy's actions (M, K); see `soft_value`."""
        import torch

        scores = self.network(obs, "policy")[0]
        if self.discrete:
            log_prob = scores.log_softmax(-1)
            return log_prob.exp(), log_prob, torch.minimum(*critics(obs, *self.heads)).detach()
        mean, log_std = scores.chunk(2, -1)
        action, log_prob = squashed(mean, log_std.clamp(*LOG_STD), self.normal(mean))
        return 1.0, log_prob, self.judged(critics, obs, action).amin(0)[:, None]

    def taken(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Both critics' values (2, M) of stored actions."""
        import torch

        if not self.discrete:
            return self.judged(self.critics, obs, action)
        return torch.stack([q.gather(-1, action[:, None])[:, 0] for q in self.critics(obs, *self.heads)])
