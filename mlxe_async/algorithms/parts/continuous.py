"""What SAC, TD3 and DDPG share: their keys, critics of observations and actions, one-step targets, bounded actions.

Critics judge actions in [-1, 1]; the environment gets them within its bounds. Until the first update actions are
uniformly random. The number `noise` says so; it travels with the weights, so that a saved policy acts by its actor.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from mlxe_async.algorithms.distributions import LARGEST, bounded, bounds, to_unit
from mlxe_async.algorithms.interface import STAYS, Acting, Priorities, Rows, needs
from mlxe_async.algorithms.parts import fields
from mlxe_async.algorithms.parts.acting import Evaluated
from mlxe_async.algorithms.parts.bootstrapping import Replays, ends_of, stored, target_columns
from mlxe_async.algorithms.parts.fields import SOME, Sizes, key
from mlxe_async.maths import returns
from mlxe_async.maths.normaliser import Moments
from mlxe_async.networks import Activation, Floats, Network
from mlxe_async.networks.mixed import pictures_in
from mlxe_async.optimisers import FlatOptimiser
from mlxe_async.rows import MASK, Array, Spaces

if TYPE_CHECKING:
    import torch

    from mlxe_async.networks import TorchNetwork

RANDOM = -1.0
"""`noise` before the first update."""
LARGEST_UNIT = 1 - 1e-6  # of an action of which there is a raw one
BOOTSTRAPS = needs(discount={"above": 0})


class ContinuousFields(BaseModel):
    """Keys that all three have."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    layers: Sizes = key(
        (256, 256), "Hidden layers of the actor and of each critic; more represent finer actions, but slower.", STAYS
    )
    activation: Activation = key(
        "relu", "relu learns sharp values fast, tanh bounds what is far away.", STAYS | needs(layers=SOME)
    )
    normalise: bool = key(False, "Show networks (obs - mean) / deviation of what was seen so far.", STAYS)
    discount: float = fields.discount(0.99)
    n_step: int = fields.n_step(1, BOOTSTRAPS)
    return_scale: float = key(1.0, "Factor for rewards; higher makes values larger.", gt=0)
    batch: int = fields.batch(256)
    start_rows: int = key(1000, "Rows of random actions to gather before learning begins; more are more diverse.", ge=1)
    train_every: int = key(1, "New rows until updates are due; higher replays every row less often.", ge=1, le=10**6)
    updates_each: int = key(1, "Updates that are due then; more learn more from every row, but slower.", ge=1, le=10**4)
    learning_rate: float = key(1e-3, "The actor's; higher learns faster, until it forgets or diverges.", gt=0)
    critic_learning_rate: float = key(1e-3, "The critics'; higher learns faster, until values diverge.", gt=0)
    target_rate: float = key(
        *(0.005, "Share of the way that targets go in an update; higher follows faster.", BOOTSTRAPS), gt=0, le=1
    )
    max_gradient_norm: float = fields.max_gradient_norm(0.0)


def td_target(partial: torch.Tensor, coefficient: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`partial` rewards up to s' + `coefficient` * V(s') (M,): the discount up to s', 0 where the world ended."""
    return (partial + coefficient * value).detach()


def critic_loss(q: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Half the mean squared error of each critic (C, M), added up; moves q only."""
    return 0.5 * (q - target.detach()).square().mean(-1).sum()


def box_entries(kind: type, spaces: Spaces) -> int:
    """Entries D of an action within finite bounds.

    Raises:
        ValueError: actions are of another kind, or have no bounds; by the algorithm's name.
    """
    low, high = bounds(spaces)
    if spaces.action_kind != "box" or not bool(((low > -LARGEST) & (low < high) & (high < LARGEST)).all()):
        what = spaces.action_name if spaces.action_kind != "box" else "no bounds, or none that differ"
        raise ValueError(f"algorithm.name: {kind.__name__.lower()} needs actions with finite bounds, got {what}")
    return len(low)


def refuse_pictures(kind: type, spaces: Spaces) -> None:
    """Refuse pictures, for algorithms whose networks have no convolutions; by the algorithm's name.

    Raises:
        ValueError: there is one, alone or among other parts, with what to do about it.
    """
    found = pictures_in(spaces)
    if not found:
        return
    words = ", ".join(f"{part.name} {' x '.join(map(str, part.shape))} bytes" for part in found)
    tops = {part.name.partition(".")[0]: None for part in spaces.parts if part.name != MASK}
    rest = [name for name in tops if name not in {part.name.partition(".")[0] for part in found}]
    leave = f"leave it out by observe = {json.dumps(rest)} of [task]" if rest else "show numbers by a wrapper"
    raise ValueError(
        f"algorithm.name: {kind.__name__.lower()} has no convolutions for pictures, got {words}; {leave}, or take an "
        'algorithm that has, such as "ppo"'
    )


class Continuous(Replays):
    """An actor, which is published, and critics, which stay in the learner. There `network` is the actor.

    An author writes `make_networks`, which makes the shapes of both; `act`; `best`; and `update`.
    """

    settings: Any
    memory, off_policy, priorities = "replay", "learns", Priorities()
    counted = ("rows_seen", "unused", "noise")
    defaults: ClassVar = {
        "schedule": {"envs_per_executor": 1, "sync": "rollout", "rollout_steps": 16}
        | {"updates_per_publish": 16, "max_owed_updates": 128},
        "memory": {"capacity_rows": 200_000},
    }
    heads: ClassVar[tuple[str, ...]] = ("q1", "q2")
    """The critics' names."""
    critics: TorchNetwork
    critic_target: TorchNetwork

    def make_networks(self, outputs: int, judged: int, values: int = 1) -> None:
        """The shapes of an actor with so many outputs, and of critics of observations with `judged` more entries.

        Raises:
            ValueError: observations are pictures, or have some among their parts.
        """
        refuse_pictures(type(self), self.spaces)
        s, entries = self.settings, self.spaces.entries
        self.noise = RANDOM
        self.shape = Network(entries, (), {"policy": (*s.layers, outputs)}, s.activation)
        self.critic_shape = Network(entries + judged, (), dict.fromkeys(self.heads, (*s.layers, values)), s.activation)
        self.derived_columns = target_columns(self.spaces) if s.n_step > 1 else ()

    def build_learner(self) -> None:
        """Critics and their targets; optimisers of actor and critics."""
        from mlxe_async.networks.learning import torch_network

        fresh = self.critic_shape.initial(int(self.rng.integers(2**31)))
        self.critics, self.critic_target = (torch_network(self.critic_shape, fresh, self.device) for _ in range(2))
        self.optimiser, self.critic_optimiser = (
            FlatOptimiser("adam", one.flat, one.gradient, eps=1e-8) for one in (self.network, self.critics)
        )

    # -- memory --

    def derive_many(self, segments: Rows, lengths: Array) -> Rows:
        """Of n steps: each row's target as partial + coefficient * V(cut_obs)."""
        s, (ended, _) = self.settings, ends_of(segments, lengths)
        if s.n_step == 1:
            return {}
        reward = segments["reward"] * s.return_scale
        return stored(returns.n_step_many(reward, lengths, ended, s.discount, s.n_step), segments["next_obs"])

    def updates_due(self, *, rows: int, new_rows: int, new_segments: int) -> int:  # noqa: ARG002 - rows are what counts
        """`updates_each` per `train_every` new rows, remainders kept; from `start_rows` on."""
        self.rows_seen += new_rows
        if max(self.rows_seen, rows) < self.settings.start_rows:
            return 0
        due = self.one_per(self.settings.train_every, new_rows)
        return due * int(self.settings.updates_each)

    def columns(self, batch: Rows) -> Rows:
        """What an update needs of a batch (M, ...): observations as networks see them, actions as critics do."""
        s, rows = self.settings, {"action": self.unit(batch)}
        if s.n_step > 1:
            rows |= {name: batch[name] for name in ("partial", "coefficient")}
        else:
            rows["partial"] = batch["reward"] * np.float32(s.return_scale)
            rows["coefficient"] = s.discount * (1 - batch["terminated"].astype(np.float32))
        following = batch["cut_obs" if s.n_step > 1 else "next_obs"]
        return rows | {"obs": self.seen(batch["obs"]), "following": self.seen(following)}

    def unit(self, batch: Rows) -> Array:
        """A batch's actions in [-1, 1] (M, D)."""
        return np.asarray(to_unit(batch["action"], self.spaces))

    def tensors_of(self, batch: Rows) -> dict[str, Any]:
        """The columns as tensors."""
        return self.network.tensors(self.columns(batch))

    def normal(self, like: torch.Tensor) -> torch.Tensor:
        """Normal numbers of the shape of `like`, by this object's own generator, which is kept and resumed."""
        return self.network.tensors({"normal": self.rng.standard_normal(tuple(like.shape), np.float32)})["normal"]

    def judged(self, critics: TorchNetwork, obs: torch.Tensor, action: torch.Tensor, *heads: str) -> torch.Tensor:
        """Values (C, M) of actions in [-1, 1] (M, D) by these critics; left out, by all."""
        import torch

        return torch.cat(critics(torch.cat([obs, action], -1), *(heads or self.heads)), -1).T

    # -- acting --

    def best(self, scores: Array) -> Array:
        """The action that tests take, by the actor's outputs (..., B, outputs)."""
        raise NotImplementedError(f"{type(self).__name__} has no best(scores)")

    def uniform(self, rows: int, rng: np.random.Generator) -> Rows:
        """Uniformly random actions within the bounds, with their density in [-1, 1]."""
        unit = rng.uniform(-1, 1, (rows, math.prod(self.spaces.action_shape)))
        log_prob = self.uniform_log_prob(rows)
        raw = np.arctanh(unit.clip(-LARGEST_UNIT, LARGEST_UNIT)).reshape(rows, *self.spaces.action_shape)
        return {"action": self.bounded(unit), "raw_action": raw.astype(np.float32), "log_prob": log_prob}

    def uniform_log_prob(self, rows: int) -> Floats:
        """What `uniform` stores (B,)."""
        return np.full(rows, -math.prod(self.spaces.action_shape) * math.log(2), np.float32)

    def behaviour_log_prob(self, obs: Array, action: Array, acting: Acting | None = None) -> Floats:
        """The log-probability that `act` stores, of discrete actions, or of raw ones (B, *shape)."""
        if self.noise == RANDOM and self.spaces.actions is None:
            return self.uniform_log_prob(len(obs))
        return super().behaviour_log_prob(obs, action, acting)

    def greedy(self, obs: Array, acting: Acting | None = None) -> Array:  # noqa: ARG002 - nothing is carried in tests
        """The best action."""
        return self.best(self.scores(self.outputs, obs))

    def greedy_many(self, flats: Floats, obs: Array) -> Array:
        """The best actions of several versions."""
        if self._versions is None or self._versions[0] is not flats:
            self._versions: tuple[Floats, Evaluated] | None = (flats, self.evaluator(flats))
        return self.best(self.scores(self._versions[1], obs))

    def best_of(self, network: Evaluated, obs: torch.Tensor) -> torch.Tensor:
        """The best actions (B, *shape) as the environment takes them, by torch: tanh of the first D outputs."""
        if self.spaces.action_kind != "box":
            return super().best_of(network, obs)
        entries = math.prod(self.spaces.action_shape)
        found: torch.Tensor = bounded(self.scores(network, obs)[..., :entries].tanh(), self.spaces)
        return found

    def bounded(self, unit: Array) -> Array:
        """Actions in [-1, 1] (..., D) as the environment takes them (..., *shape)."""
        low, high = bounds(self.spaces)
        action = (low + 0.5 * (unit + 1) * (high - low)).astype(np.float32).clip(low, high)  # rounding may lead beyond
        return np.asarray(action.reshape((*unit.shape[:-1], *self.spaces.action_shape)))

    # -- what travels behind the weights: the moments, if there are any, then the noise --

    def load(self, flat: Floats) -> None:
        """Act with these weights, and explore as came with them, from now on."""
        super().load(flat)
        self.noise = float(flat[-1])

    def travelling(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Moments and noise."""
        return (*super().travelling(), ("exploration.noise", (1,)))

    def tail(self) -> Any:
        """Moments and noise."""
        return np.append(super().tail(), self.noise)

    def put_tail(self, tail: Floats) -> None:
        """Learn on with these moments and this noise."""
        super().put_tail(tail[:-1])
        self.noise = float(tail[-1])

    def moments_in(self, flat: Floats) -> Moments:
        """The moments that travel in published weights (P,)."""
        return super().moments_in(flat[:-1])

    def _split(self, flat: Floats) -> tuple[Floats, Moments | None]:
        return super()._split(flat[..., :-1])
