"""What algorithms share that learn from rollouts of an actor and a critic: keys, advantages, and what is annealed."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from mlxe_async.algorithms.interface import STAYS, Acting, Clock, Metrics, Rows, Tensors
from mlxe_async.algorithms.parts import fields
from mlxe_async.algorithms.parts.policies import ActsByPolicy, PolicyFields
from mlxe_async.maths import annealing, returns, reward_scaling, rollouts
from mlxe_async.rows import Array, Spaces


class OnPolicyFields(PolicyFields):
    """Keys of all of them; each has defaults of its own."""

    normalise: bool = fields.normalise(True)
    discount: float = fields.discount(0.99)
    value_coefficient: float = fields.value_coefficient(0.5)
    entropy: float = fields.entropy(0.01)
    learning_rate: float = fields.learning_rate(1e-3)
    learning_rate_last: float = fields.learning_rate_last(1e-4)
    anneal_steps: int = fields.anneal_steps(500_000)
    max_gradient_norm: float = fields.max_gradient_norm(0.5)
    reward_scaling: bool = fields.key(
        False, "Divide rewards by the deviation of the discounted return: losses of any task are alike.", STAYS
    )


class LearnsFromRollouts(ActsByPolicy):
    """Acts by a policy, and learns it and a critic from whole rollouts, each in one call of `update`."""

    memory = "rollouts"
    defaults: ClassVar = {
        "schedule": {"envs_per_executor": 8, "sync": "rollout", "rollout_steps": 64, "max_owed_updates": 2}
    }

    now: Metrics
    """What `annealed` says of the present update."""

    def __init__(self, settings: Any, spaces: Spaces, **more: Any) -> None:
        super().__init__(settings, spaces, **more)
        self.now = self.annealed(Clock())

    def build(self) -> None:
        """An actor and a critic, side by side or on layers that they share."""
        self.shape = self.actor_and_critic()
        self.scale_rewards()

    def scale_rewards(self) -> None:
        """Carry what rewards are scaled by, if the settings say so."""
        self.reward_scale = reward_scaling.RewardScale(self.settings.discount)
        self.carry = (reward_scaling.CARRY,) if self.settings.reward_scaling else ()

    def after_step(self, acting: Acting, reward: Array) -> None:
        """Follow the discounted return of each environment."""
        if self.carry:
            reward_scaling.follow(acting.carry, reward, self.settings.discount)

    def scaled(self, batch: Rows) -> Rows:
        """Rollouts (T, B, ...) whose rewards are scaled, if the settings say so; asked once for each batch."""
        if not self.carry:
            return batch
        self.reward_scale.count(batch)
        rows = {name: column for name, column in batch.items() if name != reward_scaling.CARRY.name}
        return rows | {"reward": self.reward_scale.scaled(batch["reward"])}

    def state(self) -> Rows:
        """All that the next update depends on."""
        return super().state() | (self.reward_scale.state() if self.carry and self.learns else {})

    def restore(self, state: Rows) -> None:
        """Go on from there."""
        super().restore(state)
        if self.carry and self.learns:
            self.reward_scale.restore(state)

    def annealed(self, clock: Clock) -> Metrics:
        """The learning rate now; and what `annealed` names, which falls to 0 meanwhile."""
        s: Any = self.settings
        rate = annealing.linear(s.learning_rate, s.learning_rate_last, s.anneal_steps, clock.env_steps)
        left = annealing.linear(1.0, 0.0, s.anneal_steps, clock.env_steps)
        names = ("clip", "entropy")
        known = {name: getattr(s, name) for name in names if hasattr(s, name)}
        return {"learning_rate": rate} | {n: v * left if n in s.annealed else v for n, v in known.items()}

    def valid_rows(self, batch: Rows, **more: Array) -> Tensors:
        """The valid rows (N, ...) of rollouts (T, B, ...) and of more columns, one environment's beside the other's."""
        valid = batch["valid"].astype(bool)
        return self.network.tensors({name: column[valid] for name, column in {**batch, **more}.items()})

    def with_advantages(self, batch: Rows, lambda_: float | None = None) -> Tensors:
        """The valid rows with `value`, `advantage` and the critic's `target`, by the values of now.

        Lambda is `gae_lambda` of the settings where nothing else is said.
        """
        obs = self.seen(batch["obs"])
        value = self.values(obs)
        arrays = (batch["reward"], value, *self.around(batch, value), self.settings.discount)
        advantage = returns.generalised_advantage(*arrays, self.settings.gae_lambda if lambda_ is None else lambda_)
        columns = {"value": value, "advantage": advantage, "target": advantage + value}
        return self.valid_rows(batch, obs=obs, **columns, **self.masked(batch))

    def around(self, batch: Rows, value: Array) -> tuple[Array, Array, Array]:
        """V(next_obs), where the world ended, and where nothing flows back, all (T, B) as `value`, V(obs), is."""
        ends, ended, missing = rollouts.unknown(batch)
        after = self.values(self.seen(batch["next_obs"][missing]))
        return rollouts.following(value, after, missing), ended, ends

    def values(self, obs: Array) -> Array:
        """V (...) of what the network is shown (..., O), in double precision for the sums to come."""
        import torch

        flat = self.network.tensors({"obs": obs.reshape(-1, obs.shape[-1])})["obs"]
        with torch.no_grad():
            value = self.network(flat, "value")[0]
        return np.asarray(value.reshape(obs.shape[:-1]).numpy(force=True), np.float64)
