"""Fast twins of SAC, TD3 and DDPG: losses differentiated by hand, networks by `stacked`.

Derived for `algorithms.sac.SAC`, `algorithms.td3.TD3` and `algorithms.ddpg.DDPG` as they are written there. Autograd
makes fresh memory for each layer's result, and goes back through both critics for all rows, although the lower one
alone judges the actor in each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from mlxe_async.algorithms.ddpg import DDPG
from mlxe_async.algorithms.distributions import HALF_LOG_2PI
from mlxe_async.algorithms.interface import Clock, Metrics, Rows
from mlxe_async.algorithms.parts.soft import earned, halves
from mlxe_async.algorithms.sac import LOG_STD, SAC
from mlxe_async.algorithms.td3 import TD3
from mlxe_async.fast.quick import as_columns, why_not_plain
from mlxe_async.fast.stacked import Scratch, Stacked
from mlxe_async.maths import annealing, gradients, together
from mlxe_async.maths.normaliser import normalise
from mlxe_async.networks import Floats
from mlxe_async.optimisers import as_one
from mlxe_async.rows import Array

KNOWN = ("Dense", "ModuleList", "Linear", "ReLU", "Tanh", "Body", "ModuleDict", "Normaliser")
"""Modules that the twins were derived for, each of exactly the class of torch or of `networks.bodies`."""
LOG_2 = np.float32(math.log(2))


class Drawn(NamedTuple):
    """Actions that a squashed Gaussian gave, and what its gradient needs; all (M, D) but `log_prob` (M,)."""

    action: Floats
    log_prob: Floats
    spread: Floats
    """Deviation times the normal numbers."""
    unbounded: Array
    """Where the logarithm of the deviation is within its bounds."""


def why_not(algorithm: SAC | DDPG | TD3) -> str:
    """Why its networks and spaces are left to the file; "" if they are those that the twin was derived for."""
    name = type(algorithm).__name__.lower()
    if algorithm.device != "cpu":
        return f"the fast twin of {name} knows no device but the CPU"
    if isinstance(algorithm, SAC) and algorithm.discrete:
        return "its actions are discrete"
    modules = [one for one in vars(algorithm).values() if isinstance(one, nn.Module)]
    return why_not_plain([part for one in modules for part in one.modules()], KNOWN)


def drawn(scores: Floats, normal: Floats) -> Drawn:
    """`TanhGaussian.rsample` of an actor's outputs (M, 2 D) and normal numbers (M, D)."""
    mean, raw_log_std = halves(scores)
    log_std = np.minimum(np.maximum(raw_log_std, LOG_STD[0]), LOG_STD[1])  # `clip` takes three times as long
    spread = np.exp(log_std) * normal
    raw = mean + spread
    size = np.abs(raw)
    shrink = 2 * (LOG_2 - size - np.log1p(np.exp(-2 * size)))  # log(1 - tanh^2), which is even
    log_prob = -np.add.reduce(np.float32(0.5) * np.square(normal) + log_std + np.float32(HALF_LOG_2PI) + shrink, -1)
    return Drawn(np.tanh(raw), log_prob, spread, log_std == raw_log_std)


def by_scores(found: Drawn, by_action: Floats, by_log_prob: np.float32) -> Floats:
    """The gradient by an actor's outputs (M, 2 D), given that by actions (M, D) and by each log-probability."""
    # a = tanh(u); log pi has -log(1 - a^2), of which the slope by u is 2 a; and -log_std.
    by_raw = by_action * (1 - np.square(found.action)) + (2 * by_log_prob) * found.action
    by_log_std = (by_raw * found.spread - by_log_prob) * found.unbounded
    return np.asarray(np.concatenate([by_raw, by_log_std], -1))


class Critics:
    """Critics of observations and actions, on the CPU.

    Args:
        algorithm: whose they are.
        targets: weights of the target critics, on one vector (C P,).
        judges: as many of the first ones judge the actor.
    """

    def __init__(self, algorithm: SAC | DDPG | TD3, targets: torch.Tensor, judges: int) -> None:
        optimiser, critics = algorithm.critic_optimiser, [*algorithm.critics]
        self.scratch = Scratch()  # the actor's own layers wait for the critics' judgement, and lie elsewhere
        self._learned = Stacked(critics, optimiser.weights, optimiser.gradient, self.scratch)
        self._targets = Stacked([*algorithm.critic_targets], targets, None, self.scratch)
        share = len(optimiser.weights) // len(critics)
        self._judges = self._learned
        if judges < len(critics):
            self._judges = Stacked(critics[:judges], optimiser.weights[: judges * share], None, self.scratch)

    def follow(self, obs: Floats, action: Floats) -> Floats:
        """The lowest target critic's value (M,)."""
        return np.asarray(self._targets.forward(obs, action)[..., 0].min(0))

    def learn(self, obs: Floats, action: Floats, target: Floats) -> dict[str, Any]:
        """Put the gradient of `continuous.critic_loss` in place; returns what it measured."""
        outputs = self._learned.forward(obs, action)
        error = outputs - target[:, None]
        self._learned.backward(error * np.float32(1 / len(obs)))
        loss = 0.5 * float(np.vdot(error, error)) / len(obs)
        return {"critic_loss": loss, "value": float(outputs.sum()) / outputs.size}

    def judge(self, obs: Floats, action: Floats) -> tuple[Floats, Floats]:
        """The lowest value (M,) of the critics that judge, and the gradient of its mean by the action (M, D)."""
        values = self._judges.forward(obs, action)
        lowest = values.min(0)
        lower = values == lowest
        share = np.float32(1 / len(obs)) * lower / lower.sum(0, dtype=np.float32)  # equal ones share it, as in torch
        return lowest[:, 0], self._judges.by_input(share, obs.shape[1])


class ContinuousTwin:
    """What the twins share.

    Args:
        algorithm: the very built-in class; what it learned lies with it.
    """

    judges = 0
    """Number of critics that judge the actor; 0: all."""

    def __init__(self, algorithm: Any) -> None:
        self._algorithm = algorithm
        self.attach()

    def attach(self) -> None:
        """Work on the networks that the algorithm learns now."""
        algorithm = self._algorithm
        self._decay = getattr(algorithm.settings, "critic_decay", 0.0)
        self._worked_on = algorithm.actor, algorithm.critics, algorithm.critic_targets
        self._critic_targets, _ = as_one([*algorithm.critic_targets.parameters()])
        self._actor = Stacked([algorithm.actor], algorithm.actor_optimiser.weights, algorithm.actor_optimiser.gradient)
        self._critics = Critics(algorithm, self._critic_targets, self.judges or len(algorithm.critics))

    @property
    def attached(self) -> bool:
        """True if these are still the ones."""
        algorithm = self._algorithm
        now = algorithm.actor, algorithm.critics, algorithm.critic_targets
        return all(one is other for one, other in zip(self._worked_on, now, strict=True))

    def _normal(self, shape: tuple[int, ...]) -> Floats:
        return np.asarray(self._algorithm.rng.standard_normal(shape, np.float32))

    def _columns(self, batch: Rows) -> dict[str, Array]:
        """The columns, observations as networks are shown them."""
        rows, moments = as_columns(self._algorithm.columns(batch)), self._algorithm.see.normaliser
        for name in ("obs", "following"):
            rows[name] = self._algorithm.spaces.vector(rows[name])
            if moments is not None:
                rows[name] = normalise(rows[name], moments.mean.numpy(), moments.variance.numpy())
        return rows

    def _critics_step(self, rows: Mapping[str, Array], value: Floats) -> dict[str, Any]:
        """Learn targets that are made of the values of what follows (M,)."""
        algorithm, s = self._algorithm, self._algorithm.settings
        found = self._critics.learn(rows["obs"], rows["action"], rows["partial"] + rows["coefficient"] * value)
        optimiser = algorithm.critic_optimiser
        together.gradient(optimiser.gradient.numpy())
        if self._decay:
            optimiser.gradient.add_(optimiser.weights, alpha=self._decay)
        norm = gradients.clip_grad_norm_(optimiser.gradient, s.max_gradient_norm).item()
        optimiser.step()
        return found | {"gradient_norm": norm}

    def _actor_step(self, by_output: Floats) -> None:
        """Climb, by the gradient of the loss by the actor's outputs for the rows of its last `forward`."""
        optimiser = self._algorithm.actor_optimiser
        self._actor.backward(by_output[None])
        together.gradient(optimiser.gradient.numpy())
        if longest := self._algorithm.settings.max_gradient_norm:
            gradients.clip_grad_norm_(optimiser.gradient, longest)
        optimiser.step()


class SACTwin(ContinuousTwin):
    """Does what `SAC.update` does, where actions are numbers."""

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, None]:  # noqa: ARG002 - nothing is annealed
        """As `SAC.update`."""
        sac: SAC = self._algorithm
        s, rows = sac.settings, self._columns(batch)
        temperature = np.exp(np.float32(sac.log_temperature.item()))
        count, seen = len(rows["obs"]), np.concatenate([rows["obs"], rows["following"]])
        outputs = self._actor.forward(seen)[0]
        later, now = (self._normal((count, outputs.shape[1] // 2)) for _ in range(2))  # as `update` draws them
        both = drawn(outputs, np.concatenate([now, later]))
        chosen, following = (Drawn(*(part[here] for part in both)) for here in (slice(count), slice(count, None)))
        value = self._critics.follow(rows["following"], following.action) - temperature * following.log_prob
        found = self._critics_step(rows | {"partial": earned(rows, temperature)}, value)

        lowest, by_action = self._critics.judge(rows["obs"], chosen.action)
        actor_loss = -float((lowest - temperature * chosen.log_prob).sum()) / count
        self._actor_step(by_scores(chosen, -by_action, np.float32(temperature / count)))

        entropy = -float(chosen.log_prob.sum()) / count
        if s.temperature_learning_rate:
            sac.temperature_optimiser.gradient.fill_(entropy - sac.target_entropy)
            together.gradient(sac.temperature_optimiser.gradient.numpy())
            sac.temperature_optimiser.step()
        self._critic_targets.lerp_(sac.critic_optimiser.weights, s.target_rate)
        sac.noise.zero_()
        told = {"critic_loss": found["critic_loss"], "actor_loss": actor_loss, "value": found["value"]}
        told |= {"gradient_norm": found["gradient_norm"], "entropy": entropy, "temperature": float(temperature)}
        return told, None


class DDPGTwin(ContinuousTwin):
    """Does what `DDPG.update` does, and TD3's with its changes."""

    judges = 1

    def attach(self) -> None:
        """As any twin; the actor has a target, too."""
        super().attach()
        self._actor_weights, _ = as_one([*self._algorithm.actor_target.parameters()])
        self._actor_target = Stacked([self._algorithm.actor_target], self._actor_weights, None, self._critics.scratch)

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, None]:
        """As `DDPG.update`."""
        algorithm: DDPG | TD3 = self._algorithm
        s, rows = algorithm.settings, self._columns(batch)
        found = self._critics_step(rows, self._critics.follow(rows["following"], self._following(rows["following"])))
        if not isinstance(algorithm, TD3) or clock.updates % algorithm.settings.policy_delay == 0:
            chosen = np.tanh(self._actor.forward(rows["obs"])[0])
            value, by_action = self._critics.judge(rows["obs"], chosen)
            self._actor_step(-by_action * (1 - np.square(chosen)))
            found["actor_loss"] = -float(value.sum()) / len(value)
            self._actor_weights.lerp_(algorithm.actor_optimiser.weights, s.target_rate)
            self._critic_targets.lerp_(algorithm.critic_optimiser.weights, s.target_rate)
        noise = annealing.linear(s.noise_first, s.noise_last, s.noise_steps, clock.env_steps)
        algorithm.noise.fill_(noise)
        return found | {"noise": noise}, None

    def _following(self, obs: Floats) -> Floats:
        """Target actions at s' (M, D)."""
        action: Floats = np.tanh(self._actor_target.forward(obs)[0])
        if not isinstance(self._algorithm, TD3):
            return action
        s, normal = self._algorithm.settings, self._normal(action.shape)
        noise = (np.float32(s.target_noise) * normal).clip(-s.target_noise_clip, s.target_noise_clip)
        return np.asarray((action + noise).clip(-1, 1))
