"""Code of tabular algorithms: one value for each state and action, in a table.

A state is the combination of all integers that an observation is made of: a Discrete or MultiDiscrete space, or a Dict
or Tuple of these. The learner's `values` are doubles; `table`, which is published and acts, has them rounded to single
precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.algorithms.interface import Acting, Algorithm, Clock, Metrics, Rows
from mlxe_async.algorithms.parts import fields
from mlxe_async.algorithms.parts.exploration import NEVER, ValueExplorationFields
from mlxe_async.algorithms.parts.fields import key
from mlxe_async.algorithms.parts.policies import number_of_actions
from mlxe_async.maths import annealing, categorical, rollouts
from mlxe_async.networks import Floats, Parameters
from mlxe_async.rows import Array, Spaces

if TYPE_CHECKING:
    import torch
    from torch import nn

Doubles = NDArray[np.float64]
MOST_ENTRIES = 10**7
"""Largest size of a table in bytes: it is copied with every publication."""


class TabularFields(ValueExplorationFields):
    """Settings of all tabular algorithms."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    discount: float = fields.discount(0.99)
    initial: float = key(0.0, "Value of what was never tried; higher than real ones tries all of it.", stays=True)
    learning_rate: float = key(0.1, "Share of each error that is learned; higher forgets sooner.", gt=0, le=1)
    learning_rate_last: float = key(0.1, "Share after anneal_steps; higher keeps following chance.", ge=0, le=1)
    anneal_steps: int = fields.anneal_steps(100_000)
    rows_per_update: int = fields.rows_per_update(0)


class Sequence(NamedTuple):
    """The consecutive rows (L,) of one episode; lists where the rows are gone through one by one.

    Args:
        state: where each row's step began.
        action: what was done.
        reward: what came of it.
        after: the state it led to.
        terminated: whether the world ended with the last row.
    """

    state: list[int]
    action: list[int]
    reward: NDArray[np.floating]
    after: list[int]
    terminated: bool


class Tabular(Algorithm):
    """Acts by a table, mostly greedily; an author writes `learn`, what is learned from the rows of a sequence."""

    memory, takes_arrays, has_gradients = "rollouts", True, False
    settings: Any
    defaults: ClassVar = {
        "schedule": {"envs_per_executor": 4, "sync": "rollout", "rollout_steps": 16, "max_owed_updates": 2}
    }
    table: torch.Tensor
    """Values (S, A) of what acts."""
    epsilon: torch.Tensor
    """Share of random actions (1,); it is published with the table."""
    values: Doubles
    """The learner's."""

    @classmethod
    def parameters_for(cls, settings: Any, spaces: Spaces) -> Parameters:  # noqa: ARG003 - no setting changes a table
        """Return what acts, told by the spaces alone."""
        return (("table", cls._shape(spaces)), ("epsilon", (1,)))

    def build(self) -> None:
        """The table, and what each entry of an observation adds to the number of its state.

        Raises:
            ValueError: there is more in an observation than integers, or there are too many states.
        """
        import torch

        s, shape, sizes = self.settings, self._shape(self.spaces), self.spaces.observation_sizes
        self.table, self.epsilon = torch.full(shape, s.initial), torch.tensor([s.epsilon_first])
        units = [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]
        self.places = np.concatenate([np.arange(size) * unit for size, unit in zip(sizes, units, strict=True)])

    def build_learner(self) -> None:
        """The values that are learned."""
        self.values = np.full(self._shape(self.spaces), self.settings.initial, np.float64)

    def reloaded(self) -> None:
        """Learn on from this table."""
        self.values[:] = self.table.numpy()

    @classmethod
    def _shape(cls, spaces: Spaces) -> tuple[int, int]:
        """Return how many states and actions there are, if a table can hold them."""
        name, sizes = cls.__name__, spaces.observation_sizes
        actions = number_of_actions(cls, spaces)
        if not sizes:
            raise ValueError(
                f"algorithm.name: {name} has a value for each state and needs observations of integers alone (Discrete "
                f'or MultiDiscrete), got {spaces.observation_words}; try "dqn"'
            )
        states = math.prod(sizes)
        if states * actions > MOST_ENTRIES:
            raise ValueError(
                f"algorithm.name: {name} would need a table of {states} states and {actions} actions, "
                f'expected at most {MOST_ENTRIES} entries; try "dqn"'
            )
        return states, actions

    def learn(self, rows: Sequence, rate: float) -> Iterator[float]:
        """Learn from the rows of a sequence, one after the other; yields each error before it is learned from."""
        raise NotImplementedError(f"{type(self).__name__} has no learn(rows, rate)")

    def update(self, batch: Rows, clock: Clock) -> Metrics:
        """Learn from each row of rollouts (T, B, ...) once: one sequence after the other, each in the order of time."""
        s = self.settings
        rate = annealing.linear(s.learning_rate, s.learning_rate_last, s.anneal_steps, clock.env_steps)
        errors = np.array([error for rows in self.sequences(batch) for error in self.learn(rows, rate)])
        self.publish(clock)
        found = {"loss": 0.5 * np.square(errors).mean(), "td_error": np.abs(errors).mean(), "value": self.values.max()}
        measured = {name: float(one) for name, one in found.items()}
        return measured | {"epsilon": self.epsilon.item(), "learning_rate": rate}

    def publish(self, clock: Clock) -> None:
        """Have what acts be what is learned, and epsilon what its clock says."""
        import torch

        s = self.settings
        self.table.copy_(torch.from_numpy(self.values))
        self.epsilon.fill_(annealing.linear(s.epsilon_first, s.epsilon_last, s.epsilon_steps, clock.env_steps))

    def sequences(self, batch: Rows) -> Iterator[Sequence]:
        """The valid rows of rollouts (T, B, ...), split where an episode ends or is cut, or a row does not follow."""
        valid, last = batch["valid"].astype(bool), rollouts.ends(batch)
        state, after = self.states(batch["obs"]), self.states(batch["next_obs"])
        for env in range(valid.shape[1]):
            rows = np.flatnonzero(valid[:, env])
            for piece in np.split(rows, np.flatnonzero(last[rows, env]) + 1):
                if len(piece):
                    taken = [column[piece, env] for column in (state, batch["action"], batch["reward"], after)]
                    ended = bool(batch["terminated"][piece[-1], env])
                    yield Sequence(taken[0].tolist(), taken[1].tolist(), taken[2], taken[3].tolist(), ended)

    def states(self, obs: Array) -> NDArray[np.int64]:
        """The number (...) of the state that each stored observation (..., *O) is."""
        return np.asarray(obs @ self.places).astype(np.int64)

    # -- acting --

    def policy(self, obs: Array, acting: Acting | None = None) -> Categorical:
        """softmax(Q / temperature), or epsilon / A + (1 - epsilon) [action = best], shared where several are best."""
        values, epsilon = self.acting_values(obs), self.epsilon.item()
        if acting is None or self.settings.behaviour == "softmax" or acting.share(epsilon) == epsilon:
            return Categorical(self.log_probs(values), normalised=True)
        return Categorical(self.log_probs(values, acting.share(epsilon)), normalised=True)

    def acting_values(self, obs: Array) -> Doubles:
        """Q (B, A) of the table that acts."""
        return self.table.numpy()[self.states(obs)].astype(np.float64)

    def log_probs(self, q: Doubles, epsilon: float | None = None) -> Floats:
        """Log mu (B, A) of the behaviour at these values (B, A); with another `epsilon` than that of now."""
        if self.settings.behaviour == "softmax":
            return np.asarray(categorical.log_softmax(q / self.settings.temperature), np.float32)
        best = q == q.max(-1, keepdims=True)
        epsilon = self.epsilon.item() if epsilon is None else epsilon
        probability = epsilon / q.shape[-1] + (1 - epsilon) * best / best.sum(-1, keepdims=True)
        return np.asarray(np.log(np.maximum(probability, NEVER)), np.float32)

    def greedy(self, obs: Array, acting: Acting | None = None) -> Array:  # noqa: ARG002 - nothing is carried
        """The action with the highest value, the first of several."""
        return np.asarray(self.acting_values(obs).argmax(-1))

    def module(self) -> nn.Module:
        """There is none.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"{type(self).__name__} acts by a table: expected a torch module to hand out, it has none")
