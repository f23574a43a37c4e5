"""Sarsa: the value of a state and an action follows n rewards and the value of what was really done after them.

Papers: Rummery and Niranjan 1994; n steps as in Sutton and Barto 2018, section 7.2; the expectation at ends, van Seijen
et al. 2009.
Where we differ: executors act by the table that was published last. Where an episode goes on and its next action is not
known, at a truncation or at a rollout's end, the values there are weighed by the probabilities of the policy.
It values the policy that acted. Rows of an older policy would be valued as if they were its own: such a run is refused.

What do I change to make ...
  another target              `bootstrapped`; the rewards before it: `maths.returns.n_step`.
  one step, as published      no code: n_step = 1.
  Expected Sarsa              have `bootstrapped` return `self.expected(state)` wherever an episode goes on.
  Q-learning                  no code: name = "q_learning": any rows will do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mlxe_async.algorithms.parts import fields
from mlxe_async.algorithms.parts.tabular import Sequence, Tabular, TabularFields
from mlxe_async.maths import returns


class SarsaSettings(TabularFields):
    """The fields of `[algorithm]` beside `name = "sarsa"`."""

    n_step: int = fields.n_step(4)


class Sarsa(Tabular):
    """Learns the values of its own policy, exploration included, from rollouts that this policy made."""

    Settings = SarsaSettings
    settings: SarsaSettings
    off_policy = "ignores"

    def learn(self, rows: Sequence, rate: float) -> Iterator[float]:
        """One step of one entry for each row, by the table as the rows before have left it."""
        s, table = self.settings, self.values
        split = returns.n_step(rows.reward, rows.terminated, s.discount, s.n_step)
        for t, (partial, coefficient, cut) in enumerate(zip(*(column.tolist() for column in split), strict=True)):
            future = coefficient * self.bootstrapped(rows, cut) if coefficient else 0.0
            error = partial + future - float(table[rows.state[t], rows.action[t]])
            table[rows.state[t], rows.action[t]] += rate * error
            yield error

    def bootstrapped(self, rows: Sequence, cut: int) -> float:
        """The value of what follows row `cut`: of the action that was taken there, or expected where none was."""
        if cut + 1 < len(rows.state):
            return float(self.values[rows.state[cut + 1], rows.action[cut + 1]])
        return self.expected(rows.after[cut])

    def expected(self, state: int) -> float:
        """Sum of pi(a|s) Q(s, a) at a state, of the policy that this table and epsilon make."""
        q = self.values[state]
        return float(np.exp(self.log_probs(q[None])[0].astype(np.float64)) @ q)
