"""PPO (Schulman et al. 2017) in plain torch, for discrete actions: with a network of your own, or with a memory.

Write what `build` makes. `policy` is asked by executors; `update` by the learner, with rollouts (T, B, ...).
"""

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import nn

from mlxe_async.algorithms import Algorithm
from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.maths import returns, rollouts
from mlxe_async.rows import Column


class PPOSettings(BaseModel):
    """The keys of [algorithm]."""

    discount: float = Field(0.99, ge=0, le=1)
    gae_lambda: float = Field(0.95, ge=0, le=1)
    clip: float = Field(0.2, gt=0)
    epochs: int = Field(10, ge=1)
    minibatches: int = Field(4, ge=1, description="Groups of rows, or of environments, into which rollouts are cut.")
    entropy: float = Field(0.0, ge=0)
    learning_rate: float = Field(1e-3, gt=0)


class OwnPPO(Algorithm):
    """What both have in common: the loss, and the advantages."""

    Settings = PPOSettings
    off_policy = "corrects"  # by its ratios, so that "oa" is allowed
    defaults = {"schedule": {"sync": "rollout", "rollout_steps": 64, "envs_per_executor": 8, "max_owed_updates": 2}}

    def build_learner(self):
        modules = [value for value in vars(self).values() if isinstance(value, nn.Module)]
        self.learned = [one for module in modules for one in module.parameters()]
        self.optimiser = torch.optim.Adam(self.learned, self.settings.learning_rate, eps=1e-5)

    def update(self, batch, clock):
        s, batch = self.settings, self.with_advantages(batch)
        for rows in self.minibatches(batch):
            policy, value = self.judged(rows)
            ratio = (policy.log_prob(rows["action"]) - rows["log_prob"]).exp()
            gain = (rows["advantage"] - rows["advantage"].mean()) / (rows["advantage"].std() + 1e-8)
            actor = -torch.minimum(ratio * gain, ratio.clamp(1 - s.clip, 1 + s.clip) * gain).mean()
            critic, entropy = 0.5 * (value - rows["target"]).square().mean(), policy.entropy().mean()
            self.optimiser.zero_grad()
            (actor + 0.5 * critic - s.entropy * entropy).backward()
            nn.utils.clip_grad_norm_(self.learned, 0.5)
            self.optimiser.step()
        return {"policy_loss": actor, "value_loss": critic, "entropy": entropy}

    def with_advantages(self, batch):
        """The rollouts with `advantage` and the critic's `target`; values are asked where something follows."""
        ends, ended, missing = rollouts.unknown(batch)
        value, after = self.values(batch, missing)
        following = rollouts.following(value, after, missing)
        s = self.settings
        arrays = (batch["reward"], value, following, ended, ends, s.discount, s.gae_lambda)
        advantage = returns.generalised_advantage(*arrays)
        return batch | {"advantage": advantage, "target": advantage + value}


class Gated(nn.Module):
    """A network of one's own: any nn.Module will do. Logits and a value (..., A + 1)."""

    def __init__(self, inputs, actions, width=64):
        super().__init__()
        self.gate, self.value = nn.Linear(inputs, width), nn.Linear(inputs, width)
        self.middle, self.head = nn.Linear(width, width), nn.Linear(width, actions + 1)

    def forward(self, obs):
        gated = self.gate(obs).sigmoid() * self.value(obs).tanh()
        return self.head(gated + self.middle(gated).tanh())


class GatedPPO(OwnPPO):
    """PPO with that network."""

    def build(self):
        self.network = Gated(self.spaces.entries, self.spaces.actions)

    def policy(self, obs, acting=None):
        return Categorical(self.network(obs)[..., :-1])

    def judged(self, rows):
        outputs = self.network(rows["obs"])
        return Categorical(outputs[..., :-1]), outputs[..., -1]

    @torch.no_grad()
    def values(self, batch, missing):
        seen = self.tensors({"obs": batch["obs"], "after": batch["next_obs"][missing]})
        return [self.network(seen[name])[..., -1].double().numpy() for name in ("obs", "after")]

    def minibatches(self, batch):
        rows = self.tensors({name: column[batch["valid"]] for name, column in batch.items()})
        for _ in range(self.settings.epochs):
            groups = min(self.settings.minibatches, len(rows["obs"]))
            for chosen in np.array_split(self.rng.permutation(len(rows["obs"])), groups):
                yield {name: column[chosen] for name, column in rows.items()}


class RecurrentPPO(OwnPPO):
    """PPO with gated recurrent units, whose states each environment carries: the actor's, then the critic's."""

    cells = 32

    def build(self):
        inputs = self.spaces.entries
        self.carry = (Column("hidden", "<f4", (2 * self.cells,), per_rollout=True),)
        self.units = nn.ModuleList([nn.GRUCell(inputs, self.cells) for _ in range(2)])
        self.heads = nn.ModuleList([nn.Linear(self.cells, outputs) for outputs in (self.spaces.actions, 1)])

    def policy(self, obs, acting=None):
        hidden = self.stepped(obs, torch.from_numpy(acting.carry["hidden"]))
        acting.carry["hidden"] = hidden.numpy().copy()
        return Categorical(self.outputs(hidden)[..., :-1])

    def stepped(self, obs, hidden):
        """The states (..., 2 H) after observations of small numbers."""
        pairs = zip(self.units, hidden.chunk(2, -1), strict=True)
        return torch.cat([unit(10 * obs, state) for unit, state in pairs], -1)

    def outputs(self, hidden):
        """Logits and value (..., A + 1) for the states (..., 2 H)."""
        pairs = zip(self.heads, hidden.chunk(2, -1), strict=True)
        return torch.cat([head(state) for head, state in pairs], -1)

    def unrolled(self, rows):
        """Outputs (T, B, A + 1) from the state that was stored with the first row; zero where an episode begins."""
        hidden, found = rows["hidden"], []
        for obs, step in zip(rows["obs"], rows["step"], strict=True):
            hidden = self.stepped(obs, hidden * (step > 0)[:, None])
            found.append(hidden)
        return self.outputs(torch.stack(found)), torch.stack(found)

    def judged(self, rows):
        outputs, _ = self.unrolled(rows)
        for name in ("action", "log_prob", "advantage", "target"):
            rows[name] = rows[name][rows["valid"]]
        return Categorical(outputs[..., :-1][rows["valid"]]), outputs[..., -1][rows["valid"]]

    @torch.no_grad()
    def values(self, batch, missing):
        rows = self.tensors(batch)
        outputs, states = self.unrolled(rows)
        after = self.outputs(self.stepped(rows["next_obs"][missing], states[missing]))[..., -1]
        return outputs[..., -1].double().numpy(), after.double().numpy()

    def minibatches(self, batch):
        rows = self.tensors(batch)
        for _ in range(self.settings.epochs):
            count = batch["step"].shape[1]
            for some in np.array_split(self.rng.permutation(count), min(self.settings.minibatches, count)):
                yield {name: column[some if name == "hidden" else (slice(None), some)] for name, column in rows.items()}
