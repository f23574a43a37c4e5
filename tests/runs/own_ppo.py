"""PPO (Schulman et al. 2017) on plain torch modules: for bounded actions, and with a recurrent cell."""

from typing import ClassVar

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import nn

from mlxe_async.algorithms import Algorithm
from mlxe_async.algorithms.distributions import Categorical, Gaussian, MultiCategorical, raw_action
from mlxe_async.maths import returns, rollouts
from mlxe_async.rows import Column


class PPOSettings(BaseModel):
    discount: float = Field(0.99, ge=0, le=1)
    gae_lambda: float = Field(0.95, ge=0, le=1)
    clip: float = Field(0.2, gt=0)
    epochs: int = Field(10, ge=1)
    minibatches: int = Field(4, ge=1, description="Groups of environments, or of rows, into which a rollout is cut.")
    entropy: float = Field(0.0, ge=0)
    learning_rate: float = Field(1e-3, gt=0)
    rows_per_update: int = Field(2048, ge=0)


class OwnPPO(Algorithm):
    Settings = PPOSettings
    off_policy = "corrects"
    defaults: ClassVar = {
        "schedule": {"sync": "rollout", "rollout_steps": 128, "envs_per_executor": 8, "max_owed_updates": 2}
    }

    def build_learner(self):
        modules = [value for value in vars(self).values() if isinstance(value, nn.Module)]
        parameters = [one for module in modules for one in module.parameters()]
        parameters += [value for value in vars(self).values() if isinstance(value, nn.Parameter)]
        self.learned = parameters
        self.optimiser = torch.optim.Adam(parameters, self.settings.learning_rate, eps=1e-5)

    def update(self, batch, clock):
        s, batch = self.settings, self.with_advantages(batch)
        for rows in self.minibatches(batch):
            policy, value = self.judged(rows)
            ratio = (policy.log_prob(rows[self.chosen]) - rows["log_prob"]).exp()
            gain = rows["advantage"]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            actor = -torch.minimum(ratio * gain, ratio.clamp(1 - s.clip, 1 + s.clip) * gain).mean()
            critic, entropy = 0.5 * (value - rows["target"]).square().mean(), policy.entropy().mean()
            self.optimiser.zero_grad()
            (actor + 0.5 * critic - s.entropy * entropy).backward()
            nn.utils.clip_grad_norm_(self.learned, 0.5)
            self.optimiser.step()
        return {"policy_loss": actor, "value_loss": critic, "entropy": entropy}

    def with_advantages(self, batch):
        """The rollouts (T, B, ...) with `advantage` and the critic's `target`."""
        ends, ended, missing = rollouts.unknown(batch)
        value, after = self.values(batch, missing)
        following = rollouts.following(value, after, missing)
        arrays = (batch["reward"], value, following, ended, ends, self.settings.discount, self.settings.gae_lambda)
        advantage = returns.generalised_advantage(*arrays)
        return batch | {"advantage": advantage, "target": advantage + value}


class GaussianPPO(OwnPPO):
    """For a box of actions, with a deviation that does not depend on the observation."""

    chosen = "raw_action"

    def build(self):
        (inputs,), (outputs,) = self.spaces.observation_shape, self.spaces.action_shape
        self.extra_columns = (raw_action(self.spaces),)
        self.actor = nn.Sequential(
            nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
        )
        self.critic = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.log_std = nn.Parameter(torch.zeros(outputs))

    def policy(self, obs, acting=None):
        return Gaussian(self.actor(obs), self.log_std, self.spaces)

    def judged(self, rows):
        return self.policy(rows["obs"]), self.critic(rows["obs"])[:, 0]

    @torch.no_grad()
    def values(self, batch, missing):
        seen = self.tensors({"obs": batch["obs"], "after": batch["next_obs"][missing]})
        return [self.critic(seen[name])[..., 0].double().numpy() for name in ("obs", "after")]

    def minibatches(self, batch):
        rows = self.tensors({name: column[batch["valid"]] for name, column in batch.items()})
        for _ in range(self.settings.epochs):
            for chosen in torch.randperm(len(rows["obs"])).chunk(self.settings.minibatches):
                yield {name: column[chosen] for name, column in rows.items()}


class RecurrentPPO(OwnPPO):
    """With gated recurrent units, whose states each environment carries from step to step: actor's, then critic's."""

    chosen = "action"
    cells = 32

    def build(self):
        (inputs,) = self.spaces.observation_shape
        self.carry = (Column("hidden", "<f4", (2 * self.cells,), per_rollout=True),)
        self.units = nn.ModuleList([nn.GRUCell(inputs, self.cells) for _ in range(2)])
        self.heads = nn.ModuleList([nn.Linear(self.cells, outputs) for outputs in (self.spaces.actions, 1)])

    def policy(self, obs, acting=None):
        hidden = self.stepped(obs, torch.from_numpy(acting.carry["hidden"]))
        acting.carry["hidden"] = hidden.numpy().copy()
        return Categorical(self.outputs(hidden)[..., :-1])

    def stepped(self, obs, hidden):
        pairs = zip(self.units, hidden.chunk(2, -1), strict=True)
        return torch.cat([unit(10 * obs, state) for unit, state in pairs], -1)

    def outputs(self, hidden):
        """Logits and value (..., A + 1) for the states (..., 2 H)."""
        pairs = zip(self.heads, hidden.chunk(2, -1), strict=True)
        return torch.cat([head(state) for head, state in pairs], -1)

    def unrolled(self, rows):
        """Outputs (T, B, A + 1) of whole sequences, from the state that was stored with their first row (B, 2 H)."""
        hidden, found = rows["hidden"], []
        for obs, first in zip(rows["obs"], rows["first"], strict=True):
            hidden = self.stepped(obs, hidden * ~first[:, None])
            found.append(hidden)
        return self.outputs(torch.stack(found)), found

    def judged(self, rows):
        outputs, _ = self.unrolled(rows)
        valid = rows["valid"]
        for name in ("action", "log_prob", "advantage", "target"):
            rows[name] = rows[name][valid]
        return Categorical(outputs[..., :-1][valid]), outputs[..., -1][valid]

    @torch.no_grad()
    def values(self, batch, missing):
        rows = self.tensors(batch | {"first": batch["step"] == 0})
        outputs, states = self.unrolled(rows)
        after = self.outputs(self.stepped(rows["next_obs"][missing], torch.stack(states)[missing]))[..., -1]
        return outputs[..., -1].double().numpy(), after.double().numpy()

    def minibatches(self, batch):
        rows = self.tensors(batch | {"first": batch["step"] == 0})
        for _ in range(self.settings.epochs):
            for chosen in np.array_split(self.rng.permutation(batch["step"].shape[1]), self.settings.minibatches):
                yield {
                    name: column[chosen if name == "hidden" else (slice(None), chosen)] for name, column in rows.items()
                }


class ChoosingPPO(OwnPPO):
    """For several choices at once, of which a mask allows some, and observations of several parts."""

    chosen = "action"

    def build(self):
        self.body = nn.Sequential(nn.Linear(self.spaces.entries, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, sum(self.spaces.action_sizes)), nn.Linear(32, 1)

    def policy(self, obs, acting=None):
        logits = self.actor(self.body(self.spaces.vector(obs)))
        return MultiCategorical(logits, self.spaces.action_sizes, self.spaces.action_shape, self.spaces.mask(obs))

    def judged(self, rows):
        return self.policy(rows["obs"]), self.critic(self.body(self.spaces.vector(rows["obs"])))[:, 0]

    @torch.no_grad()
    def values(self, batch, missing):
        seen = self.tensors({"obs": batch["obs"], "after": batch["next_obs"][missing]})
        bodies = [self.body(self.spaces.vector(seen[name])) for name in ("obs", "after")]
        return [self.critic(body)[..., 0].double().numpy() for body in bodies]

    minibatches = GaussianPPO.minibatches
