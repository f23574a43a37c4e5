"""A3C as MLxE uses it, made sound: an actor and a critic that replay recent episodes, corrected for their age.

Papers: Mnih et al. 2016 (actor-critic loss with entropy), Espeholt et al. 2018 (V-trace), and the public MLxE scripts
(replay of whole episodes, a minimum of updates per episode, returns counted from the end). Where we differ from MLxE:
replayed rows are weighted by pi/mu of the stored behaviour, truncation bootstraps, and the learning rate really decays.

What do I change to make ...
  another loss                `policy_loss` or `value_loss`: pure functions, added up in `loss`.
  another return              `derive_many`: each row's target as partial + coefficient * V(cut_obs). No code: returns.
  another correction          `targets`; V-trace and clipped weights are settings: correction = "vtrace".
  another exploration         `exploration.mixture`: a distribution. No code: behaviour, epsilon and its clock, noisy.
  another scale of values     a case in `critics.Critic`, and its loss in `value_loss`. No code: value_scale.
  other priorities            `appraise`: what rows are judged by. No code: priorities = ["age", "risk", "td"].
  a slower target             `follow`. No code: target = "per_iteration" or "every_k".
  MLxE as published           no code: correction = "none", faithful_truncation = true, updates_per = "iteration", ...
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from mlxe_async.algorithms.distributions import Categorical, as_array
from mlxe_async.algorithms.interface import Acting, Algorithm, Clock, Metrics, Rows, Tensors
from mlxe_async.algorithms.mlxe.critics import Critic, CriticFields, Scale
from mlxe_async.algorithms.mlxe.exploration import ExplorationFields, epsilon
from mlxe_async.algorithms.mlxe.fields import BootstrapFields, CorrectionFields, StepFields
from mlxe_async.algorithms.mlxe.returns import partial_return
from mlxe_async.algorithms.parts import fields
from mlxe_async.algorithms.parts.exploration import NoiseRenewal, mixture
from mlxe_async.algorithms.parts.fields import ActorCriticFields, key
from mlxe_async.algorithms.parts.layers import body_of, layers, of_pictures, polyak, words_of
from mlxe_async.algorithms.parts.policies import number_of_actions
from mlxe_async.algorithms.parts.replay import (
    ends_of,
    mirrored,
    moments_in,
    refuse_moments,
    stored,
    survived,
    target_columns,
    tensors_of,
)
from mlxe_async.maths import categorical, correction, metrics, together, vtrace
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.maths.normaliser import Moments
from mlxe_async.networks import Floats, Parameters
from mlxe_async.networks.seen import dense_parameters, seen_of
from mlxe_async.optimisers import Adam, RAdam
from mlxe_async.rows import Array, Spaces

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mlxe_async.networks.heads import ActorCritic

SIGMA = 0.5  # of the noise of a noisy network at the start, over the root of a layer's inputs


class MLxESettings(BootstrapFields, StepFields, CorrectionFields, CriticFields, ExplorationFields, ActorCriticFields):
    """The fields of `[algorithm]` beside `name = "mlxe"`."""

    value_coefficient: float = fields.value_coefficient(1.0)
    entropy: float = fields.entropy(0.01)
    batch: int = fields.batch(256)
    train_every: int = fields.train_every(2)
    min_updates: int = key(0, "If not 0, updates per segment, or per stored batch if more of them.", ge=0)
    updates_per: Literal["segment", "iteration"] = key(
        "segment", "iteration: min_updates for all new segments together, as MLxE.", "min_updates > 0"
    )


def policy_loss(log_prob: torch.Tensor, weighted_advantage: torch.Tensor) -> torch.Tensor:
    """-log pi(a|s) * weight * advantage per row: raise what went better than expected. The weight has no gradient."""
    return -log_prob * weighted_advantage.detach()


def value_loss(value: torch.Tensor, target: torch.Tensor, scale: Scale) -> torch.Tensor:
    """Per row: squared error; cross-entropy of the logit of a survival value in [0, 1], or of logits (M, atoms)."""
    if scale == "return":
        return 0.5 * (target.detach() - value).square()
    if scale == "categorical":
        return -(target.detach() * value.log_softmax(-1)).sum(-1)
    return value.relu() - value * target.detach() + (-value.abs()).exp().log1p()


class MLxE(Algorithm):
    """Acts by a softmax over the actor's outputs and learns by `batch` rows at a time from replay."""

    Settings = MLxESettings
    settings: MLxESettings
    memory, takes_arrays = "replay", True
    defaults: ClassVar = {"memory": {"keep_rows": 256}}
    of_pictures: ClassVar = {"body": "nature", "common": (512,), "policy": (), "value": (), "activation": "relu"}
    """Defaults for tasks that show pictures of bytes, alone or among other parts."""
    network: ActorCritic
    """The network that acts and is published: the learned one, or its running average."""
    learned: ActorCritic
    target: ActorCritic
    """The target network, which returns are bootstrapped from."""
    successor = "cut_obs"
    """The column of the observations that are bootstrapped from."""

    @classmethod
    def defaults_for(cls, spaces: Spaces, written: Mapping[str, Any]) -> dict[str, Any]:
        """Pictures of bytes go through convolutions, Mnih et al. 2015, and what goes with them."""
        return of_pictures(cls, spaces, written)

    @classmethod
    def parameters_for(cls, settings: Any, spaces: Spaces) -> Parameters:
        """Return what `build` publishes, told without torch; see `interface.Algorithm.parameters_for`."""
        s, seen, more = (
            settings,
            seen_of(spaces, settings),
            {"layer_norm": settings.layer_norm, "noisy": settings.noisy},
        )
        width, actions = s.common[-1] if s.common else seen.outputs, number_of_actions(cls, spaces)
        return (
            *seen.parameters("network.see"),
            *dense_parameters("network.common", seen.outputs, s.common, **more),
            *dense_parameters("network.actor", width, s.policy, actions, **more),
            *dense_parameters("network.critic", width, s.value, Critic(s).outputs, **more),
            *(seen.moments("network.see") if s.normalise else ()),
        )

    def build(self) -> None:
        """An actor and a critic, whose outputs mean what `value_scale` says, side by side or on what they share."""
        from mlxe_async.networks.heads import ActorCritic

        s, actions, self.critic = self.settings, number_of_actions(type(self), self.spaces), Critic(self.settings)
        s.refuse_spaces(self.spaces)
        refuse_moments(self.spaces, s)
        heads = {"policy": (*s.policy, actions), "value": (*s.value, self.critic.outputs)}
        self.words = words_of(seen_of(self.spaces, s), common=s.common, **heads)
        see, sigma = body_of(self.spaces, s), SIGMA if s.noisy else None
        common = layers(s, see, s.common, sigma=sigma)
        actor = layers(s, common, s.policy, actions, sigma=sigma)
        self.network = ActorCritic(see, common, actor, layers(s, common, s.value, self.critic.outputs, sigma=sigma))
        self.noise, self.unused = NoiseRenewal(), 0
        if s.correction == "vtrace":
            self.window, self.successor = s.n_step, "next_obs"
        self.derived_columns = target_columns(self.spaces) if self.window == 1 or s.priorities else ()
        self.priorities, self.off_policy = s.how_to_draw, "ignores" if s.correction == "none" else "corrects"

    def build_learner(self) -> None:
        """Make the learned network, if another one is published; the target network; and the optimiser."""
        s = self.settings
        self.learned = copy.deepcopy(self.network) if s.average else self.network
        self.target = self.learned if s.target == "every_update" else copy.deepcopy(self.network)
        self.followed = -1  # no version is: the first update follows
        self.optimiser = (RAdam if s.optimiser == "radam" else Adam)(self.learned.parameters(), eps=1e-7)

    def reloaded(self) -> None:
        """Learn on from what was published."""
        self.followed = -1
        for network in (self.learned, self.target):
            polyak(network, self.network, 1.0)

    # -- acting --

    def act(self, obs: Array, rng: np.random.Generator, acting: Acting) -> Rows:
        """Draw from the policy, under noise if the network is noisy."""
        if self.settings.noisy:
            self.noise.renew(self.network, self.settings.noise_every, rng, acting)
        return super().act(obs, rng, acting)

    def policy(self, obs: Any, acting: Acting | None = None) -> Categorical:
        """The mixture that executors draw from."""
        s, scores = self.settings, self.network.scores(obs)
        if s.behaviour == "softmax":
            return Categorical(scores)
        share = epsilon(s, acting or Acting())
        return Categorical(mixture(categorical.log_softmax(as_array(scores)), s.behaviour, share), normalised=True)

    def greedy(self, obs: Array, acting: Acting | None = None) -> Array:  # noqa: ARG002 - nothing is carried
        """The most probable action, without noise."""
        from mlxe_async.networks.noisy import without_noise

        with self.inference(), without_noise(self.network, noisy=self.settings.noisy):
            return np.asarray(as_array(self.network.scores(self.observed(obs))).argmax(-1))

    def module(self) -> nn.Module:
        """Evaluate the acting network without noise: `actor` (B, A) and `critic` (B, n), of observations (B, *O)."""
        from mlxe_async.networks.heads import Heads
        from mlxe_async.networks.noisy import quiet

        one: Any = quiet(copy.deepcopy(self.network))
        return Heads(one.see, one.common, {"actor": one.actor, "critic": one.critic})

    def deterministic_module(self) -> nn.Module:
        """The same, and behind it the best actions as the environment takes them."""
        from mlxe_async.networks.heads import Deterministic

        spaces = self.spaces
        return Deterministic(
            self.module(), lambda outputs, obs: spaces.for_environment(outputs(obs, "actor")[0].argmax(-1))
        )

    # -- the memory --

    def derive(self, segment: Rows) -> Rows:
        """The derived columns (L, ...) of a closed segment."""
        return self.derive_many(segment, np.array([len(segment["reward"])]))

    def derive_many(self, segments: Rows, lengths: Array) -> Rows:
        """Each row's target as partial + coefficient * V(cut_obs), so that it can be replayed alone."""
        if not self.derived_columns:
            return {}
        reward, ends = self.scaled(segments["reward"]), ends_of(segments, lengths)
        split = partial_return(self.settings, reward, lengths, ends, segments["obs"], self.spaces.limits)
        return stored(split, segments["next_obs"])

    def scaled(self, reward: Array) -> Array:
        """Rewards as the critic counts them."""
        s = self.settings
        return survived(reward, s.discount) if s.value_scale == "survival" else np.asarray(reward * s.return_scale)

    def columns(self, batch: Rows) -> Rows:
        """Return what the loss needs of rows (M, ...), or of windows (T, M, ...) for V-trace."""
        s, (obs, following, action) = self.settings, mirrored(self, batch, self.successor)
        rows = {"obs": obs, self.successor: following, "action": action, "log_prob": batch["log_prob"]}
        rows["weight"] = batch.get("weight", np.ones(action.shape[-1]))
        if self.window == 1:
            return rows | {name: batch[name] for name in ("partial", "coefficient")}
        valid, ended, stopped = (batch[name].astype(bool) for name in ("valid", "terminated", "truncated"))
        rows |= {"weight": rows["weight"] * valid, "reward": self.scaled(batch["reward"])}
        ended |= stopped & s.faithful_truncation
        carry = vtrace.carry_mask(valid, ended, stopped).astype(np.float32)
        return rows | {"discount": s.discount * ~ended, "carry": carry}

    def appraise(self, rows: Rows) -> Rows:
        """`return`: each row's target by the loaded weights (N,), without noise; `td_error`: that minus V(obs) (N,)."""
        from mlxe_async.networks.noisy import without_noise

        with self.inference(), without_noise(self.network, noisy=self.settings.noisy):
            seen = (self.network.values(self.observed(rows[name])) for name in ("cut_obs", "obs"))
            following, value = (self.critic.appraised(as_array(outputs)) for outputs in seen)
        target = rows["partial"] + rows["coefficient"] * following
        return {"return": target, "td_error": target - value}

    def updates_due(self, *, rows: int, new_rows: int, new_segments: int) -> int:
        """One per `train_every` new rows; or `min_updates` per segment or for all, at least one per stored batch."""
        s = self.settings
        if not s.min_updates:
            due, self.unused = divmod(self.unused + new_rows, s.train_every)
            return due
        if not new_segments or not rows:
            return 0
        least = s.min_updates * (new_segments if s.updates_per == "segment" else 1)
        return max(least, rows // min(s.batch, rows) + 1)

    # -- learning --

    def update(self, batch: Rows, clock: Clock) -> Metrics:
        """One step down the gradient of policy loss + value loss - entropy, averaged over the batch."""
        s = self.settings
        self.follow(clock)
        rows = tensors_of(self, batch)
        loss, found = self.loss(rows | self.bootstrapped(rows))
        self.optimiser.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(self.optimiser.gradient, s.max_gradient_norm)
        self.optimiser.step(s.rate(clock.episodes))
        if self.learned is not self.network:
            polyak(self.network, self.learned, s.average)
        return metrics.as_floats(found | {"gradient_norm": norm}) | {"learning_rate": self.optimiser.learning_rate}

    def loss(self, rows: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The total loss () of a minibatch (M, ...), and what is told of it: numbers () without gradient."""
        s, (logits, value) = self.settings, self.learned(rows["obs"])
        policy, value = Categorical(logits), value.squeeze(-1)
        log_prob, entropy = policy.log_prob(rows["action"]), policy.entropy()
        ratio, judged = correction.ratio(log_prob, rows["log_prob"]), self.critic.value(value.detach())
        target, advantage = self.targets(rows, ratio, judged)
        critic = value_loss(value, target, s.value_scale)
        losses = policy_loss(log_prob, advantage) + s.value_coefficient * critic - s.entropy * entropy
        weight = together.shares(rows["weight"])
        loss, value_mean, entropy_mean = ((some * weight).sum() for some in (losses, critic, entropy))
        share = correction.effective_share(correction.clipped(ratio, s.ratio_clip))
        found = {"loss": loss, "value_loss": value_mean, "entropy": entropy_mean, "effective_share": share}
        expected = self.critic.expected(target)
        found["explained_variance"] = metrics.explained_variance(expected - judged, expected, weight)
        return loss, {name: one.detach() for name, one in found.items()}

    def bootstrapped(self, rows: Tensors) -> Tensors:
        """The target's raw values (rows,) of what follows, and of the rows themselves if they are judged by it."""
        import torch

        from mlxe_async.networks.noisy import draw

        draw(self.target, self.rng)  # its own noise, also where it is the learned network
        own = self.settings.correction == "vtrace" and self.target is not self.learned
        seen = {"following": rows[self.successor]} | ({"judged": rows["obs"]} if own else {})
        with torch.no_grad():
            found = {name: self.target.values(obs).squeeze(-1) for name, obs in seen.items()}
        draw(self.learned, self.rng)
        return found

    def targets(self, rows: Tensors, ratio: torch.Tensor, value: torch.Tensor) -> tuple[Any, Any]:
        """The critic's target and the actor's advantage, already weighted; all (rows,), no gradient."""
        s, following = self.settings, rows["following"]
        if s.correction != "vtrace":
            target, expected = self.critic.target(rows["partial"], rows["coefficient"], following)
            weight = correction.clipped(ratio, s.ratio_clip) if s.correction == "clipped" else 1.0
            return target, weight * (expected - value)
        value = self.critic.value(rows["judged"]) if "judged" in rows else value
        arrays = (ratio, rows["reward"], value, self.critic.value(following), rows["discount"], rows["carry"])
        windows = (array.reshape(self.window, -1) for array in arrays)
        target, advantage = vtrace.vtrace(*windows, rho_clip=s.ratio_clip)
        return target.reshape(-1), advantage.reshape(-1)

    def follow(self, clock: Clock) -> None:
        """A target network of its own becomes the learned one when that is due."""
        s = self.settings
        due = clock.updates % s.target_every == 0 if s.target == "every_k" else clock.version != self.followed
        if self.target is not self.learned and due:
            polyak(self.target, self.learned, 1.0)
            self.followed = clock.version

    # -- running moments of observations; see `optional_verbs.Normalising` --

    @property
    def moment_entries(self) -> int:
        """Entries of an observation that are counted."""
        return self.network.see.numbers if self.settings.normalise else 0

    def set_moments(self, moments: Moments) -> None:
        """Show networks what they learn from by these moments."""
        for one in (self.network, self.learned, self.target):
            one.see.put(moments)

    def moments_in(self, flat: Floats) -> Moments:
        """The moments that travel in published weights (P,)."""
        return moments_in(self, flat, "network.see.normaliser")
