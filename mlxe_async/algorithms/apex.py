"""Ape-X: DQN from prioritised replay, with many executors that each explore differently and judge their own rows.

Papers: Horgan et al. 2018 (Ape-X), Schaul et al. 2016 (prioritised replay), Wang et al. 2016 (dueling heads),
van Hasselt et al. 2016 (Double).
Where we differ: the learner does `replay_ratio` rows for each row that comes, whatever the speeds, where the paper lets
both run; layers are normalised; Adam, not RMSProp; gradients of the shared layers are not rescaled.

Environment i of N over all executors acts with epsilon^(1 + epsilon_exponent i / (N - 1)). An executor stores Q(s, a)
and max Q of each step, and max Q where a segment stops: the n-step error of these is a row's first priority.

What do I change to make ...
  another ladder              `ladder`, a pure function.
  another loss or target      `q_loss` and `td_target` of `dqn`, pure functions.
  other priorities            the last lines of `update`, and of `derive_many`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mlxe_async.algorithms.distributions import Categorical, as_array
from mlxe_async.algorithms.dqn import q_loss, td_target
from mlxe_async.algorithms.interface import Acting, Clock, Metrics, Priorities, Rows, Tensors
from mlxe_async.algorithms.parts import fields, value_fields
from mlxe_async.algorithms.parts.exploration import mixture
from mlxe_async.algorithms.parts.fields import key
from mlxe_async.algorithms.parts.policies import number_of_actions
from mlxe_async.algorithms.parts.replay import ends_of, stored, target_columns, tensors_of
from mlxe_async.algorithms.parts.value_based import ValueBased
from mlxe_async.algorithms.parts.value_fields import Loss
from mlxe_async.algorithms.parts.value_networks import streams
from mlxe_async.maths import metrics, returns
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.maths.priorities import Doubles, td_priority
from mlxe_async.networks import Floats
from mlxe_async.optimisers import Adam
from mlxe_async.rows import Array, Column

if TYPE_CHECKING:
    import torch

FLOOR = 1e-3
"""Constant added to each error, so that no row has probability 0."""


class ApeXSettings(fields.ReplayedFields, fields.ValueNetworkFields):
    """The fields of `[algorithm]` beside `name = "apex"`."""

    discount: float = fields.discount(0.99)
    n_step: int = fields.n_step(3)
    return_scale: float = fields.return_scale(1.0)
    loss: Loss = value_fields.loss("huber")
    epsilon: float = key(0.4, "Share of random actions in the first environment; higher explores more.", gt=0, le=1)
    epsilon_exponent: float = key(7.0, "Higher makes the others greedier.", "epsilon < 1", ge=0)
    batch: int = fields.batch(64)
    start_rows: int = fields.start_rows(1000)
    replay_ratio: float = key(16.0, "Rows learned from for each that comes; higher replays more often.", gt=0, le=1e4)
    priority_exponent: float = key(0.6, "Higher draws rows with large errors more often.", gt=0, le=1)
    priority_correction: float = key(0.4, "Higher undoes more of the bias of such draws.", ge=0, le=1)
    target_every: int = fields.target_every(128)
    target_rate: float = fields.target_rate(1.0)
    learning_rate: float = fields.learning_rate(5e-4)
    learning_rate_last: float = fields.learning_rate_last(1e-4)
    anneal_steps: int = fields.anneal_steps(100_000)
    max_gradient_norm: float = fields.max_gradient_norm(10.0)

    @property
    def how_to_draw(self) -> Priorities:
        """The priorities that the memory is told."""
        return Priorities("td", exponent=self.priority_exponent, correction=self.priority_correction)


def ladder(first: int, envs: int, total: int, epsilon: float, exponent: float) -> Doubles:
    """Epsilons (B,) of environments `first` to first + B - 1 of `total`: epsilon^(1 + exponent i / (total - 1))."""
    place = np.arange(first, first + envs) / max(1, total - 1)
    result: Doubles = epsilon ** (1 + exponent * place)
    return result


class ApeX(ValueBased):
    """Each environment acts by the values with an epsilon of its own; learns from `batch` rows at a time."""

    Settings = ApeXSettings
    settings: ApeXSettings
    undone: float
    """Rows that are still to be learned from, less than a batch."""
    extra_columns = (Column("q_taken", "<f4"), Column("q_best", "<f4"))
    stop_columns = (Column("q_after", "<f4"),)
    defaults: ClassVar = {
        "schedule": {"envs_per_executor": 4, "sync": "rollout", "rollout_steps": 32}
        | {"updates_per_publish": 16, "max_owed_updates": 64},
        "memory": {"capacity_rows": 100_000},
    }

    @classmethod
    def is_dueling(cls, settings: Any) -> bool:  # noqa: ARG003 - always
        """Return whether there are two streams."""
        return True

    @classmethod
    def is_noisy(cls, settings: Any) -> bool:  # noqa: ARG003 - never
        """Return whether layers are under noise."""
        return False

    def build(self) -> None:
        """Two streams on what they share: the value of a state, and how much better each action is."""
        actions = number_of_actions(type(self), self.spaces)
        self.network, self.undone = streams(self.settings, self.spaces, actions, dueling=True), 0.0
        super().build()
        self.derived_columns = (*target_columns(self.spaces), Column("initial_priority", "<f4"))

    def build_learner(self) -> None:
        """Make the learned network, its target, and Adam."""
        super().build_learner()
        self.optimiser = Adam(self.learned.parameters(), eps=1e-8)

    # -- executors --

    def exploring(self, env_steps: int) -> float:  # noqa: ARG002 - it stays
        """Epsilon of the first environment."""
        return self.settings.epsilon

    def act(self, obs: Array, rng: np.random.Generator, acting: Acting) -> Rows:
        """Draw from the mixtures, and keep what the values said."""
        with self.inference():
            q = as_array(self.network(self.observed(obs)))
        rows = self.explored(q, acting).act(rng)
        return rows | {"q_taken": q[np.arange(len(q)), rows["action"]], "q_best": q.max(-1)}

    def policy(self, obs: Any, acting: Acting | None = None) -> Categorical:
        """Each environment's epsilon / A + (1 - epsilon) [action = best]."""
        return self.explored(as_array(self.network(obs)), acting or Acting())

    def explored(self, q: Floats, acting: Acting) -> Categorical:
        """The policy of `policy`, given the values (B, A)."""
        envs, s = len(q), self.settings
        share = ladder(acting.executor * envs, envs, acting.executors * envs, s.epsilon, s.epsilon_exponent)
        return Categorical(mixture(q, "epsilon_greedy", share[:, None]), normalised=True)

    def at_stop(self, next_obs: Array) -> Rows:
        """The largest Q of `next_obs`, for rows that no later step of the rollout values."""
        with self.inference():
            return {"q_after": as_array(self.network(self.observed(next_obs))).max(-1)}

    def derive_many(self, segments: Rows, lengths: Array) -> Rows:
        """Each row's target as partial + coefficient * Q'(cut_obs), and its error when it was acted as its priority."""
        s, (ended, _) = self.settings, ends_of(segments, lengths)
        split = returns.n_step_many(self.scaled(segments["reward"]), lengths, ended, s.discount, s.n_step)
        after, last = np.roll(segments["q_best"], -1), np.cumsum(lengths) - 1
        is_known = (segments["truncated"] | segments["cut"])[last].astype(bool)
        # An executor that died in the middle of an episode has not valued where its last step led to.
        after[last] = np.where(is_known, segments["q_after"][last], segments["q_best"][last])
        error = split.partial + split.coefficient * after[split.cut] - segments["q_taken"]
        return stored(split, segments["next_obs"]) | {"initial_priority": td_priority(error, FLOOR, np.inf)}

    def updates_due(self, *, rows: int, new_rows: int, new_segments: int) -> int:  # noqa: ARG002 - counted by rows
        """Return the updates that learn from `replay_ratio` rows per row after `start_rows`, remainders kept."""
        s, self.rows_seen = self.settings, self.rows_seen + new_rows
        counted = min(new_rows, max(0, max(self.rows_seen, rows) - s.start_rows))
        due, self.undone = divmod(self.undone + counted * s.replay_ratio, s.batch)
        return int(due)

    # -- the learner --

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, Array]:
        """One step towards the targets, and the errors as new priorities; now and then the target network follows."""
        s, rows = self.settings, tensors_of(self, batch)
        self.prepare(clock)
        loss, error, found = self.loss(rows)
        self.optimiser.zero_grad()
        loss.backward()
        found["gradient_norm"] = clip_grad_norm_(self.optimiser.gradient, s.max_gradient_norm)
        self.optimiser.step(self.rate(clock))
        self.publish(clock)
        # Of the whole run so far: batch * updates / inserts since learning began.
        ratio = s.batch * (clock.updates + 1) / max(1, clock.env_steps - s.start_rows)
        measured = metrics.as_floats(found) | {"learning_rate": self.rate(clock), "replay_ratio": ratio}
        return measured, td_priority(error.numpy(force=True), FLOOR, np.inf)

    def loss(self, rows: Tensors) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """The weighted loss () of a minibatch; each row's TD error (M,) and what is told of it, without gradient."""
        import torch

        with torch.no_grad():
            next_q, choosing_q = self.target(rows["cut_obs"]), self.learned(rows["cut_obs"])
        target = td_target(rows["partial"], rows["coefficient"], next_q, choosing_q)
        q = self.learned(rows["obs"]).gather(-1, rows["action"][:, None])[:, 0]
        loss, error = (q_loss(q, target, self.settings.loss) * rows["weight"]).mean(), target - q.detach()
        return loss, error, {"loss": loss.detach(), "value": q.detach().mean(), "td_error": error.abs().mean()}
