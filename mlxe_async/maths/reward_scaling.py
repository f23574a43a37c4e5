"""Rewards divided by the deviation of the running discounted return, as usual for PPO and TRPO; never shifted.

The running return of an environment is R_t = discount * R_(t-1) + r_t, and begins at 0 with each episode. Rollouts are
pieces of episodes, so the executor carries it: its column says what R was before a rollout's first row. Whatever
becomes of a rollout, dropped, late, generated again or learned from after a resume, its own rows suffice.

An algorithm that scales its rewards

    declares       carry = (reward_scaling.CARRY,)
    and follows    def after_step(self, acting, reward):
                       reward_scaling.follow(acting.carry, reward, self.settings.discount)

and its learner has a `RewardScale`, which counts each row of a batch once, before the batch is scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.maths import normaliser
from mlxe_async.rows import Column

CARRY = Column("discounted_return", "<f8", per_rollout=True)
"""R before each row; of a rollout only the first row's is kept."""
LIMIT = 10.0
PREFIX = "reward_scale."
Doubles = NDArray[np.float64]


def follow(carry: Mapping[str, NDArray[Any]], reward: NDArray[np.floating], discount: float) -> None:
    """Add the rewards (B,) of a step to what each environment carries, in place."""
    running = carry[CARRY.name]
    running *= discount
    running += reward


def discounted(rows: Mapping[str, NDArray[Any]], discount: float) -> Doubles:
    """R (T, B) after each row of time-major rollouts; of rows that are not valid it means nothing.

    Args:
        rows: `reward`, `episode` and `step` (T, B), and `discounted_return` (B,): R before the first row.
        discount: per step.
    """
    reward, episode, step = rows["reward"], rows["episode"], rows["step"]
    goes_on = step > 0
    # An environment that was made anew leaves a gap: its next episode begins with a row of another number.
    goes_on[1:] &= (episode[1:] == episode[:-1]) & (step[1:] == step[:-1] + 1)
    result, running = np.empty(reward.shape, np.float64), rows[CARRY.name].astype(np.float64)
    for t in range(len(reward)):
        running = np.where(goes_on[t], discount * running, 0.0) + reward[t]
        result[t] = running
    return result


class RewardScale:
    """Counts running returns and divides rewards by their deviation.

    Args:
        discount: of the running return, per step.
        limit: scaled rewards are cut to +- this.
    """

    def __init__(self, discount: float, limit: float = LIMIT) -> None:
        self._discount, self._limit = discount, limit
        self.moments = normaliser.nothing(1)
        "Moments of all running returns so far."

    @property
    def deviation(self) -> float:
        """The deviation that rewards are divided by; 1 before the first row."""
        return float(np.sqrt(self.moments.variance[0] + normaliser.EPSILON)) if self.moments.rows else 1.0

    def count(self, batch: Mapping[str, NDArray[Any]]) -> None:
        """Count the valid rows of rollouts (T, B), each batch once: see `discounted`, and `valid` (T, B)."""
        returns = discounted(batch, self._discount)[batch["valid"].astype(bool)]
        self.moments = normaliser.merge(self.moments, returns[:, None])

    def scaled(self, reward: NDArray[np.floating]) -> NDArray[np.float32]:
        """Rewards (...) over the deviation, cut to the limit."""
        return (reward / self.deviation).clip(-self._limit, self._limit).astype(np.float32)

    def state(self) -> dict[str, NDArray[Any]]:
        """All that counting goes on from, as arrays of shapes that never change."""
        return {f"{PREFIX}{name}": np.array(value, np.float64) for name, value in self.moments._asdict().items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from there; the inverse of `state`."""
        mean, variance, rows = (state[f"{PREFIX}{name}"] for name in normaliser.Moments._fields)
        self.moments = normaliser.Moments(mean.copy(), variance.copy(), float(rows))
