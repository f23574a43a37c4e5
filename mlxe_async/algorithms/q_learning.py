"""Q-learning: each step moves one entry of a table towards the reward and the best value of the state it led to.

Paper: Watkins 1989; Watkins and Dayan 1992 (convergence).
Where we differ: executors act by the table that was published last, which is older than the one that is learned by up
to a rollout. What is learned does not depend on how actions were chosen, so every schedule is sound.

What do I change to make ...
  another target              `td_target`, a pure function; what is done with its error: `learn`.
  the step sizes of theory    no code: learning_rate_last = 0.0, which falls in a straight line.
  curiosity without chance    no code: initial above all returns, epsilon_first = 0.0, epsilon_last = 0.0.
  Sarsa                       no code: name = "sarsa": it values what it really does next.
  values of large spaces      no code: name = "dqn".
"""

from __future__ import annotations

from collections.abc import Iterator

from mlxe_async.algorithms.parts.tabular import Doubles, Sequence, Tabular, TabularFields


class QLearningSettings(TabularFields):
    """The fields of `[algorithm]` beside `name = "q_learning"`."""


def td_target(reward: float, discount: float, next_q: Doubles) -> float:
    """Reward + discount * max_a Q(s', a), of the values (A,) there; a discount of 0 where the world ended."""
    return reward + discount * float(next_q.max())


class QLearning(Tabular):
    """Learns the values of acting greedily, however it acts."""

    Settings = QLearningSettings
    settings: QLearningSettings
    off_policy = "learns"

    def learn(self, rows: Sequence, rate: float) -> Iterator[float]:
        """One step of one entry for each row."""
        table, last = self.values, len(rows.state) - 1
        for t, (state, action, reward, after) in enumerate(
            zip(rows.state, rows.action, rows.reward.tolist(), rows.after, strict=True)
        ):
            discount = 0.0 if rows.terminated and t == last else self.settings.discount
            error = td_target(reward, discount, table[after]) - float(table[state, action])
            table[state, action] += rate * error
            yield error
