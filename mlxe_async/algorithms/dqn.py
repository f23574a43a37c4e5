"""DQN: values of actions, learned from replay against a slowly changing copy of themselves.

Papers: Mnih et al. 2015 (replay, target network), van Hasselt et al. 2016 (Double, `double = true`).
Where we differ: layers are normalised and targets count a few rewards before they ask the network, without which
CartPole takes several times the steps; truncated and cut episodes go on with the value of their true last observation;
exploration falls with environment steps, and its epsilon is one more number of the published weights.
On request a running average is published, and values are logits of 1 - E discount^T, T steps to failure: cross-entropy
fits them evenly whether failure is near or far. The stored log-probability is that of the mixture drawn from.

What do I change to make ...
  DQN as published            no code: double = false, n_step = 1, layer_norm = false.
  another loss or target      `q_loss`, `td_target`, pure functions; what they need of later rows: `derive_many`.
  prioritised replay          `priorities = Priorities("td")`; `update` returns `error.abs().numpy() + 0.01`, not None.
  softmax exploration         no code: behaviour = "softmax", temperature. Others: a case in `exploration.mixture`.
  a slow moving target        no code: target_every = 1, target_rate = 0.005.
  a dueling network           heads "value" and "advantage" in `__init__`, what they add up to in `_values`, `_actor`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field

from mlxe_async.algorithms.acting import number_of_actions, refuse_half_a_network
from mlxe_async.algorithms.bootstrapping import DerivesTogether, ends_of, stored
from mlxe_async.algorithms.exploration import ValueExplorationFields, mixture
from mlxe_async.algorithms.fields import ReplayedFields, ValueNetworkFields
from mlxe_async.algorithms.interface import (
    STAYS,
    Acting,
    Clock,
    Metrics,
    Priorities,
    Rows,
    flat_observations,
    needs,
)
from mlxe_async.algorithms.states import Resumes
from mlxe_async.maths import annealing, categorical, gradients, metrics, returns, symmetry
from mlxe_async.networks import Floats, Network, NumpyNetwork, TorchNetwork
from mlxe_async.optimisers import FlatOptimiser
from mlxe_async.rows import Array, Column, Spaces

if TYPE_CHECKING:
    import torch
    from torch import nn

Loss = Literal["huber", "square"]
Scale = Literal["return", "survival"]
Tensors = dict[str, "torch.Tensor"]
BOOTSTRAPS = needs(discount={"above": 0})


class DQNSettings(ReplayedFields, ValueExplorationFields, ValueNetworkFields):
    """The fields of `[algorithm]` beside `name = "dqn"`."""

    discount: float = Field(0.99, ge=0, le=1, description="Higher looks further ahead; values grow and learn slower.")
    n_step: int = Field(
        3,
        ge=1,
        le=1000,
        description="Higher learns of consequences sooner, but off its policy.",
        json_schema_extra=BOOTSTRAPS,
    )
    double: bool = Field(
        True,
        description="Values are less exaggerated: one network chooses, the other one judges.",
        json_schema_extra=BOOTSTRAPS,
    )
    value_scale: Scale = Field(
        "return", description="survival: sigmoid(Q) = 1 - E discount^T, T steps to failure.", json_schema_extra=STAYS
    )
    return_scale: float = Field(
        1.0,
        gt=0,
        description="Factor for rewards; higher makes values and steps larger.",
        json_schema_extra=needs(value_scale=["return"]),
    )
    loss: Loss = Field(
        "huber",
        description="huber grows only linearly with large errors, square trusts them fully.",
        json_schema_extra=needs(value_scale=["return"]),
    )
    batch: int = Field(64, ge=1, description="Rows per update; more are smoother and slower.")
    start_rows: int = Field(1000, ge=1, description="Rows to gather before learning begins; more are more diverse.")
    train_every: int = Field(
        2,
        ge=1,
        description="New rows per update; higher replays every row less often.",
        json_schema_extra=needs(min_updates=[0]),
    )
    min_updates: int = Field(0, ge=0, description="If not 0, updates per finished episode, instead of train_every.")
    target_every: int = Field(
        128,
        ge=1,
        description="Updates between moves of the target network; higher is slower.",
        json_schema_extra=BOOTSTRAPS,
    )
    target_rate: float = Field(
        1.0, gt=0, le=1, description="Share of the way it moves; higher follows faster.", json_schema_extra=BOOTSTRAPS
    )
    learning_rate: float = Field(1e-3, gt=0, description="Higher learns faster, until it forgets or diverges.")
    learning_rate_last: float = Field(1e-4, ge=0, description="Rate after anneal_steps; higher keeps learning faster.")
    anneal_steps: int = Field(
        100_000,
        ge=1,
        description="Environment steps until that rate; more fall slower.",
        json_schema_extra=needs(learning_rate={"not": "learning_rate_last"}),
    )
    max_gradient_norm: float = Field(10.0, ge=0, description="Longer gradients are cut to this; 0 never cuts.")


def q_loss(q: torch.Tensor, target: torch.Tensor, kind: Loss | Literal["survival"]) -> torch.Tensor:
    """Half the squared error, Huber's loss (linear beyond 1), or cross-entropy of a logit. All (M,); moves q only."""
    if kind == "survival":  # -target log sigmoid(q) - (1 - target) log(1 - sigmoid(q)), safe for large |q|
        return q.relu() - q * target.detach() + (-q.abs()).exp().log1p()
    error = target.detach() - q
    if kind == "square":
        return 0.5 * error.square()
    return 0.5 * error.square().where(error.abs() <= 1, 2 * error.abs() - 1)


def td_target(
    partial: torch.Tensor, coefficient: torch.Tensor, next_q: torch.Tensor, choosing_q: torch.Tensor
) -> torch.Tensor:
    """Rewards seen + coefficient * Q'(s', a'), where a' maximises `choosing_q`. -> (M,).

    Args:
        partial: discounted sum of the rewards (M,) up to s'; for one step the reward.
        coefficient: the discount (M,) up to s', 0 where the world ended (but not where it was merely left).
        next_q: Q' (M, A) of the target network at s'.
        choosing_q: `next_q` itself for DQN, the learned network's values (M, A) at s' for Double DQN.
    """
    best = choosing_q.argmax(-1, keepdim=True)
    return partial + coefficient * next_q.gather(-1, best)[:, 0]


class DQN(DerivesTogether, Resumes):
    """Acts by its values, mostly greedily, and learns them by `batch` rows at a time."""

    Settings: ClassVar[type[BaseModel]] = DQNSettings
    settings: DQNSettings
    memory: ClassVar[Literal["replay", "rollouts"]] = "replay"
    kept, counted = ("_learned", "_average", "_target"), ("_seen", "_unused", "_epsilon")
    published = ("_learned", "_average", "_epsilon")
    off_policy = "learns"
    extra_columns: tuple[Column, ...] = ()
    window, priorities = 1, Priorities()
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "schedule": {
            "envs_per_executor": 4,
            "sync": "rollout",
            "rollout_steps": 32,
            "updates_per_publish": 32,
            "max_owed_updates": 256,
        },
        "memory": {"capacity_rows": 100_000},
    }

    def __init__(
        self, settings: DQNSettings, spaces: Spaces, *, seed: int, learns: bool, threads: int = 1, device: str = "cpu"
    ) -> None:
        self.settings, self.spaces, s = settings, spaces, settings
        self.actions = number_of_actions(type(self), spaces)
        refuse_half_a_network(type(self), DQN, learned="_values", acted="_actor")
        inputs = spaces.entries
        self.network = Network(inputs, (), {"q": (*s.layers, self.actions)}, s.activation, s.input_scale, s.layer_norm)
        self.parameters = (*self.network.parameters, ("exploration.epsilon", (1,)))
        cut = Column("cut_obs", spaces.observation_dtype, spaces.observation_shape)
        self.derived_columns = (Column("partial", "<f4"), Column("coefficient", "<f4"), cut)
        self.batch_rows, self._seen, self._unused = s.batch, 0, 0
        self.load(initial := np.append(self.network.initial([seed, 0]), np.float32(s.epsilon_first)))
        if learns:
            self.begin_to_learn(seed, threads, device)
            self.set_weights(initial)

    # -- acting: numpy alone --

    def load(self, flat: Floats) -> None:
        """Act with these weights, and explore with the epsilon that came with them, from now on."""
        self._flat = np.array(flat)
        self._q, self.epsilon = self._actor(flat), float(flat[-1])
        self._versions: tuple[Floats, Callable[[Array], Floats]] | None = None

    def act(self, obs: Array, rng: np.random.Generator, clock: Acting) -> Rows:  # noqa: ARG002 - epsilon travels
        """Sample from the behaviour, with the log-probability of that mixture."""
        log_probs = self._log_probs(obs)
        action = categorical.sample(log_probs, rng)
        return {"action": action, "log_prob": categorical.of_action(log_probs, action)}

    def greedy(self, obs: Array, acting: Acting | None = None) -> Array:  # noqa: ARG002 - nothing is carried
        """The action of the largest value."""
        return np.asarray(self._q(obs).argmax(-1))

    def greedy_many(self, flats: Floats, obs: Array) -> Array:
        """The actions of the largest values of several versions."""
        if self._versions is None or self._versions[0] is not flats:
            self._versions = (flats, self._actor(flats))
        return np.asarray(self._versions[1](obs).argmax(-1))

    def behaviour_log_prob(self, obs: Array, action: Array) -> Floats:
        """The log-probability that `act` stores."""
        return categorical.of_action(self._log_probs(obs), action)

    def _log_probs(self, obs: Array) -> Floats:
        """Log mu (B, A): softmax(Q / temperature), or epsilon / A + (1 - epsilon) [action = best]."""
        log_probs = categorical.log_softmax(self._q(obs) / np.float32(self.settings.temperature))
        return mixture(log_probs, self.settings.behaviour, self.epsilon)

    def module(self) -> nn.Module:
        """The network of the values as a plain torch module: outputs by head."""
        from mlxe_async.networks.plain import PlainNetwork

        return PlainNetwork(self.network, self._flat[:-1])

    def _actor(self, flat: Floats) -> Callable[[Array], Floats]:
        """Values (..., B, A) as a function of observations, for one version (P,) or several (V, P)."""
        network = NumpyNetwork(self.network, flat[..., :-1])
        return lambda obs: network("q", flat_observations(obs, self.spaces))

    # -- memorizing: numpy alone --

    def derive_many(self, segments: Rows, lengths: Array) -> Rows:
        """Each row's target as partial + coefficient * Q'(cut_obs), so that it can be replayed alone."""
        s, (ended, _) = self.settings, ends_of(segments, lengths)
        reward = segments["reward"] * s.return_scale
        if s.value_scale == "survival":  # the sum of (1 - discount) discount^i over T steps is 1 - discount^T
            reward = np.full(reward.shape, 1 - s.discount)
        split = returns.n_step_many(reward, lengths, ended, s.discount, s.n_step)
        return stored(split, segments["next_obs"])

    def updates_due(self, *, rows: int, new_rows: int, new_segments: int) -> int:
        """`min_updates` per new segment, or one per `train_every` new rows, remainders kept; from `start_rows` on."""
        self._seen += new_rows
        if max(self._seen, rows) < self.settings.start_rows:
            return 0
        due, self._unused = divmod(self._unused + new_rows, self.settings.train_every)
        return self.settings.min_updates * new_segments if self.settings.min_updates else due

    # -- learning: torch --

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, Floats | None]:
        """One step towards the targets; every `target_every` updates the target network becomes the learned one."""
        s, rows = self.settings, self._tensors(batch)
        if clock.updates % s.target_every == 0:
            self._target.flat.lerp_(self._learned.flat, s.target_rate)
        loss, _error, found = self._loss(rows)
        self._learned.gradient.zero_()
        loss.backward()
        found["gradient_norm"] = gradients.shorten(self._learned.gradient, s.max_gradient_norm)
        known = self._step(clock)
        return metrics.as_floats(found) | known, None

    def _step(self, clock: Clock) -> Metrics:
        """A step of the optimiser, and what follows it."""
        s = self.settings
        rate = annealing.linear(s.learning_rate, s.learning_rate_last, s.anneal_steps, clock.env_steps)
        self._optimiser.step(rate)
        self._average.lerp_(self._learned.flat, s.average or 1.0)
        self._epsilon = annealing.linear(s.epsilon_first, s.epsilon_last, s.epsilon_steps, clock.env_steps)
        return {"epsilon": self._epsilon, "learning_rate": rate}

    def _loss(self, rows: Tensors) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """The loss () of a minibatch; each row's TD error (M,) and what is told of it, both without gradient."""
        s = self.settings
        with self._torch.no_grad():
            next_q = self._values(self._target, rows["cut_obs"])
            choosing_q = self._values(self._learned, rows["cut_obs"]) if s.double else next_q
            target = td_target(rows["partial"], rows["coefficient"], self._value(next_q), choosing_q)
        q = self._values(self._learned, rows["obs"]).gather(-1, rows["action"][:, None])[:, 0]
        loss = (q_loss(q, target, "survival" if s.value_scale == "survival" else s.loss) * rows["weight"]).mean()
        value = self._value(q.detach())
        error = target - value
        return loss, error, {"loss": loss.detach(), "value": value.mean(), "td_error": error.abs().mean()}

    def _values(self, network: TorchNetwork, obs: torch.Tensor) -> torch.Tensor:
        """Q (M, A), on the network's own scale, of observations (M, O)."""
        return network(obs, "q")[0]

    def _value(self, q: torch.Tensor) -> torch.Tensor:
        return q.sigmoid() if self.settings.value_scale == "survival" else q

    def _tensors(self, batch: Rows) -> Tensors:
        """All columns (M, ...) of a batch, `columns` in place of those of the same names."""
        return self._learned.tensors(batch | self.columns(batch))

    def columns(self, batch: Rows) -> Rows:
        """What the loss needs of a batch (M, ...): half of the rows mirrored if the task declares a symmetry."""
        obs, cut_obs = (flat_observations(batch[name], self.spaces) for name in ("obs", "cut_obs"))
        action = batch["action"]
        if self.settings.mirror and self.spaces.symmetry:
            flipped: Array = self._rng.random(len(action)) < 0.5
            obs, cut_obs, action = symmetry.mirror(obs, cut_obs, action, flipped, self.spaces.symmetry)
        rows = {"obs": obs, "cut_obs": cut_obs, "partial": batch["partial"], "coefficient": batch["coefficient"]}
        return rows | {"action": action, "weight": batch.get("weight", np.ones(len(action)))}

    def weights(self) -> Floats:
        """The running average, or the learned network's weights; then epsilon."""
        return np.append(self._average.numpy(force=True), np.float32(self._epsilon))

    def set_weights(self, flat: Floats) -> None:
        """Learn on from these weights, the target network's too; the optimiser's memory starts empty."""
        self._learned, self._target = (TorchNetwork(self.network, flat[:-1], self._device) for _ in range(2))
        self._average = self._learned.flat.clone()
        self._optimiser = FlatOptimiser("adam", self._learned.flat, self._learned.gradient, eps=1e-8)
        self._epsilon = float(flat[-1])
