"""Code of algorithms that learn an actor and a critic from rollouts: keys, acting, advantages, annealing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mlxe_async.algorithms.distributions import Distribution, as_array, raw_action
from mlxe_async.algorithms.interface import Acting, Algorithm, Clock, Metrics, Rows, Tensors
from mlxe_async.algorithms.parts import fields, policies, recurrent
from mlxe_async.algorithms.parts.layers import body_of, layers, of_pictures, words_of
from mlxe_async.maths import annealing, returns, reward_scaling, rollouts
from mlxe_async.networks import Parameters
from mlxe_async.networks.seen import dense_parameters, seen_of
from mlxe_async.rows import Array, Spaces

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mlxe_async.networks.bodies import Body
    from mlxe_async.networks.cells import Cells
    from mlxe_async.networks.dense import Dense


class OnPolicyFields(policies.PolicyFields, fields.RecurrentFields):
    """Keys of all of them; each has defaults of its own."""

    normalise: bool = fields.normalise(True)
    discount: float = fields.discount(0.99)
    value_coefficient: float = fields.value_coefficient(0.5)
    entropy: float = fields.entropy(0.01)
    learning_rate: float = fields.learning_rate(1e-3)
    learning_rate_last: float = fields.learning_rate_last(1e-4)
    anneal_steps: int = fields.anneal_steps(500_000, f"{fields.RATE_FALLS} or annealed")
    max_gradient_norm: float = fields.max_gradient_norm(0.5)
    reward_scaling: bool = fields.reward_scaling(False)


class LearnsFromRollouts(Algorithm):
    """Acts by a policy, and learns it and a critic from whole rollouts, each in one call of `update`.

    An author writes `build`, which makes `actor`, `log_std` and `critic`; `build_learner`; and `update`.
    """

    settings: Any
    memory, takes_arrays = "rollouts", True
    defaults: ClassVar = {
        "schedule": {"envs_per_executor": 8, "sync": "rollout", "rollout_steps": 64, "max_owed_updates": 2}
    }
    of_pictures: ClassVar = {"body": "nature", "common": (512,), "policy": (), "value": (), "activation": "relu"}
    """Defaults for tasks that show pictures of bytes, alone or among other parts."""
    see: Body
    common: Dense
    cell: Cells | None
    """The recurrent cell behind the common layers, if there is one."""
    actor: Dense
    critic: Dense
    log_std: Any
    """Log-deviations (D,) of actions that are numbers, or what computes them; None of all other actions."""
    chosen: str
    """The column of what was drawn: the action, or the raw one."""
    now: Metrics
    """The value that `annealed` gives for the present update."""

    @classmethod
    def defaults_for(cls, spaces: Spaces, written: Mapping[str, Any]) -> dict[str, Any]:
        """Pictures of bytes go through convolutions, Mnih et al. 2015, and what goes with them."""
        return of_pictures(cls, spaces, written)

    @classmethod
    def parameters_for(cls, settings: Any, spaces: Spaces) -> Parameters:
        """Return what `build` publishes, told without torch; see `interface.Algorithm.parameters_for`."""
        s, seen, numbers = settings, seen_of(spaces, settings), policies.numbers_of(spaces)
        width, norm = s.common[-1] if s.common else seen.outputs, s.layer_norm
        found = [*seen.parameters("see"), *(seen.moments("see") if s.normalise else ())]
        found += dense_parameters("common", seen.outputs, s.common, layer_norm=norm)
        found += recurrent.parameters_of(s, width)
        width = width if s.cell == "none" else s.cell_size
        found += dense_parameters("actor", width, s.policy, policies.outputs_of(spaces), layer_norm=norm)
        if numbers and s.deviation == "computed":
            found += dense_parameters("log_std", width, s.policy, numbers, layer_norm=norm)
        elif numbers:
            found.append(("log_std", (numbers,)))
        return (*found, *(dense_parameters("critic", width, s.value, 1, layer_norm=norm) if cls.has_critic(s) else ()))

    @classmethod
    def has_critic(cls, settings: Any) -> bool:  # noqa: ARG003 - of some it depends on the settings
        """Return whether there is a critic."""
        return True

    def build(self) -> None:
        """Make what sees observations; an author goes on with layers that are `shared`, an actor and a critic."""
        s, spaces = self.settings, self.spaces
        actor, critic = (*s.policy, policies.outputs_of(spaces)), (*s.value, 1) if self.has_critic(s) else ()
        hidden = {"common": s.common, "cell": recurrent.sizes_of(s)}
        self.words = words_of(seen_of(spaces, s), **hidden, policy=actor, value=critic)
        self.see, self.now = body_of(spaces, s), self.annealed(Clock())
        self.chosen, self.extra_columns = "action", ()
        if policies.numbers_of(spaces):
            self.chosen, self.extra_columns = "raw_action", (raw_action(spaces),)
        vars(self)["defaults"] = recurrent.defaults_of(s, type(self))  # the class has those without a cell
        self.carry = ((reward_scaling.CARRY,) if s.reward_scaling else ()) + recurrent.carried(s)

    def shared(self) -> Cells | Dense:
        """Make the layers that actor and critic share, and a cell behind them if there is one. Returns the last."""
        self.common = layers(self.settings, self.see, self.settings.common)
        self.cell = recurrent.cells_of(self.settings, self.common)
        return self.cell or self.common

    def build_learner(self) -> None:
        """Make the scale of rewards, if they are scaled; an author goes on with an optimiser."""
        if self.settings.reward_scaling:
            self.reward_scale = reward_scaling.RewardScale(self.settings.discount)

    def deviation(self) -> Any:
        """Return the module of the log-deviations of actions that are numbers; None for all other actions."""
        import torch

        s, numbers = self.settings, policies.numbers_of(self.spaces)
        if numbers and s.deviation == "computed":
            return layers(s, self.cell or self.common, s.policy, numbers, last=0.01)
        return torch.nn.Parameter(torch.full((numbers,), s.log_std)) if numbers else None

    def learned(self) -> list[torch.Tensor]:
        """Everything that gradients move."""
        from torch import nn

        every = (self.see, self.common, self.cell, self.actor, self.log_std, vars(self).get("critic"))
        some = [one for one in every if one is not None]
        return [leaf for one in some for leaf in (one.parameters() if isinstance(one, nn.Module) else [one])]

    # -- acting --

    def policy(self, obs: Any, acting: Acting | None = None) -> Distribution:
        """The distribution that executors draw actions from; a state that is carried moves on."""
        features = self.common(self.see(obs))
        if self.cell is not None:
            features = self.cell.apart(recurrent.step(self.cell, features, acting))[0]
        return self.distribution(features, self.spaces.mask(obs))

    def distribution(self, features: Any, mask: Any = None) -> Distribution:
        """Distribution of actions, by the shared layers' outputs (B, n) and a mask (B, ...) of what is allowed."""
        log_std = self.log_std(features) if callable(self.log_std) else self.log_std
        if log_std is not None and isinstance(features, np.ndarray):
            log_std = as_array(log_std)
        return policies.distribution(self.spaces, self.actor(features), log_std, mask)

    def judged(self, rows: Tensors) -> tuple[Distribution, Any]:
        """The policy, and V (M,) if there is a critic, at the observations of rows (M, ...), see `valid_rows`."""
        actors, critics = self.features(rows)
        value = self.critic(critics)[:, 0] if self.has_critic(self.settings) else None
        return self.distribution(actors, self.spaces.mask(rows["obs"])), value

    def features(self, rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Features (M, n) that the actor is shown of rows (M, ...), and the critic's: the same without two cells."""
        shown = self.common(self.see(rows["obs"]))
        return (shown, shown) if self.cell is None else self.cell.apart(self.cell.through(shown, rows["sequences"])[0])

    def after_step(self, acting: Acting, reward: Array) -> None:
        """Follow the discounted return of each environment."""
        if self.settings.reward_scaling:
            reward_scaling.follow(acting.carry, reward, self.settings.discount)

    def module(self) -> nn.Module:
        """Evaluate the acting network: `actor` (B, n), `critic` (B, 1) and `log_std`, for observations (B, *O).

        With a cell also for states (B, S), zero where episodes begin; those after the step come as `memory`.
        """
        from mlxe_async.networks.heads import Heads, RecurrentHeads

        heads = {name: one for name in ("actor", "critic", "log_std") if (one := vars(self).get(name)) is not None}
        if self.cell is None:
            return Heads(self.see, self.common, heads)
        return RecurrentHeads(self.see, self.common, heads, self.cell)

    def deterministic_module(self) -> nn.Module:
        """The same, and behind it the best actions as the environment takes them; with a cell also its states."""
        from mlxe_async.networks.heads import Deterministic

        spaces, entries = self.spaces, 0 if self.cell is None else self.cell.entries
        return Deterministic(
            self.module(), lambda outputs, obs: policies.best(spaces, outputs(obs, "actor")[0], obs), entries
        )

    # -- learning --

    def scaled(self, batch: Rows) -> Rows:
        """Rollouts (T, B, ...) whose rewards are scaled, if the settings say so; asked once for each batch."""
        if not self.settings.reward_scaling:
            return batch
        self.reward_scale.count(batch)
        rows = {name: column for name, column in batch.items() if name != reward_scaling.CARRY.name}
        return rows | {"reward": self.reward_scale.scaled(batch["reward"])}

    def annealed(self, clock: Clock) -> Metrics:
        """The learning rate now; and what `annealed` names, which falls to 0 meanwhile."""
        s: Any = self.settings
        rate = annealing.linear(s.learning_rate, s.learning_rate_last, s.anneal_steps, clock.env_steps)
        left = annealing.linear(1.0, 0.0, s.anneal_steps, clock.env_steps)
        known = {name: getattr(s, name) for name in ("clip", "entropy") if hasattr(s, name)}
        return {"learning_rate": rate} | {n: v * left if n in s.annealed else v for n, v in known.items()}

    def count(self, batch: Rows) -> None:
        """Count a batch's valid observations; after an update: until then learner and behaviour see them alike."""
        if self.see.normaliser is not None:
            self.see.count(batch["obs"][batch["valid"].astype(bool)])

    def valid_rows(self, batch: Rows, **more: Array) -> Tensors:
        """The valid rows (N, ...) of rollouts (T, B, ...) and of more columns, one environment's beside the other's."""
        valid, every = batch["valid"].astype(bool), {**batch, **more}
        state = every.pop(recurrent.STATE, None) if self.cell is not None else None
        rows: dict[str, Any] = self.tensors({name: column[valid] for name, column in every.items()})
        return rows if state is None else rows | {"sequences": recurrent.sequences(batch, self.device)}

    def with_advantages(self, batch: Rows, lambda_: float | None = None) -> Tensors:
        """The valid rows with `value`, `advantage` and the critic's `target`, by the values of now."""
        return self.valid_rows(batch, **self.advantages(batch, lambda_))

    def advantages(self, batch: Rows, lambda_: float | None = None) -> Rows:
        """The columns `value`, `advantage` and `target` (T, B) by the values of now; lambda: `gae_lambda`."""
        ends, ended, missing = rollouts.unknown(batch)
        value, after = self.values(batch, missing)
        following = rollouts.following(value, after, missing)
        arrays = (batch["reward"], value, following, ended, ends, self.settings.discount)
        advantage = returns.generalised_advantage(*arrays, self.settings.gae_lambda if lambda_ is None else lambda_)
        return {"value": value, "advantage": advantage, "target": advantage + value}

    def around(self, batch: Rows, value: Array) -> tuple[Array, Array, Array]:
        """V(next_obs), where the world ended, and where nothing flows back, all (T, B) as `value`, V(obs), is."""
        ends, ended, missing = rollouts.unknown(batch)
        after = self.value_of(batch["next_obs"][missing]) if self.cell is None else self.values(batch, missing)[1]
        return rollouts.following(value, after, missing), ended, ends

    def values(self, batch: Rows, missing: Array) -> tuple[Array, Array]:
        """V of rollouts' rows (T, B), and of what `next_obs` shows after those that are `missing` (K,)."""
        if self.cell is not None:
            return recurrent.values(self, batch, missing)
        return self.value_of(batch["obs"]), self.value_of(batch["next_obs"][missing])

    def value_of(self, obs: Array) -> Array:
        """V (...) of observations (..., *O), in double precision for the sums to come; where there is no cell."""
        import torch

        lead = obs.shape[: obs.ndim - len(shape := self.spaces.observation_shape)]
        with torch.no_grad():
            value = self.critic(self.common(self.see(self.tensors({"obs": obs.reshape(-1, *shape)})["obs"])))
        return np.asarray(value.reshape(lead).numpy(force=True), np.float64)
