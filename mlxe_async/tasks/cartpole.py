"""What may be changed about CartPole for learning: starts, reward, features and the mirror image.

Each is a switch of its own in `[task]`; other environments declare theirs (see `help`). They are plain functions on
whole batches, called by `VectorTask` between the environment and the learner, because a `gymnasium` wrapper for each
would cost more than the physics. Evaluation keeps the features, which the network needs, and nothing else.

Observation entries: cart position x, cart velocity, pole angle theta, pole velocity.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.rows import Symmetry

Floats = NDArray[np.float32]

X_LIMIT = 2.4
THETA_LIMIT = 12 * 2 * math.pi / 360
FAILURE_REWARD = -10.0
ADVERSE_X = 1.5
ADVERSE_THETA = 0.15
START_BOUND = 0.05

_SHAPE_WEIGHTS = np.array([1 / X_LIMIT, 0, 1 / THETA_LIMIT, 0, 0], np.float32)


def squared_position(obs: Floats) -> None:
    """Write x squared into the fifth entry of observations (B, 5), in place."""
    np.multiply(obs[:, 0], obs[:, 0], out=obs[:, 4])


def shaped_reward(next_obs: Floats, terminated: NDArray[np.bool_]) -> Floats:
    """`1 + (1 - |x|/2.4) + (1 - |theta|/0.2094)` of the state reached, and -10 instead of it where the pole fell.

    Args:
        next_obs: observations that the steps led to (B, 4 or 5), with the final one at the end of an episode.
        terminated: whether the world ended (B,); a truncated step keeps the ordinary reward.

    Returns:
        Rewards (B,).
    """
    reward: Floats = 3.0 - np.abs(next_obs).dot(_SHAPE_WEIGHTS[: next_obs.shape[1]])
    reward[terminated] = FAILURE_REWARD
    return reward


def adverse_probability(finished_episodes: int) -> float:
    """Probability of each of the four adverse starts: 0.2 at first, then `0.2 / log_5 E`, never under 0.05."""
    if finished_episodes <= 1:
        return 0.2
    return min(0.2, max(0.05, 0.2 / math.log(finished_episodes, 5)))


def make_start_adverse(env: Any, finished_episodes: int) -> Floats | None:
    """Perhaps move a CartPole that was just reset to a hard place, drawn from the environment's own generator.

    One draw in five ways: x = -1.5, x = +1.5, theta = -0.15, theta = +0.15, or left as it is.

    Args:
        env: the environment, of which the inner `state` is changed.
        finished_episodes: E, episodes finished before this one begins.

    Returns:
        The new observation (4,), or None when the start was left as it is.
    """
    inner = env.unwrapped
    way = int(inner.np_random.random() / adverse_probability(finished_episodes))
    if way >= 4:
        return None
    coordinate, magnitude = ((0, ADVERSE_X), (2, ADVERSE_THETA))[way // 2]
    inner.state[coordinate] = magnitude if way % 2 else -magnitude
    return np.array(inner.state, dtype=np.float32)


class CartPoleHelp:
    """All of it, in the form in which other environments declare theirs (see `help`).

    Attributes:
        symmetry: left and right exchanged: the state changes its sign, the two pushes change places; x squared stays.
        limits: the pole has fallen, or the cart has left the track, where an entry is as large as this.
    """

    symmetry = Symmetry((-1.0, -1.0, -1.0, -1.0, 1.0), (1, 0))
    limits = (X_LIMIT, None, THETA_LIMIT, None, None)

    def features(self, obs: Floats) -> Floats:
        """X squared (B, 1)."""
        return obs[:, :1] * obs[:, :1]

    def shaped_reward(
        self,
        obs: Floats,  # noqa: ARG002 - the parts that CartPole needs not have the names that others rely on
        action: NDArray[Any],  # noqa: ARG002 - see above
        next_obs: Floats,
        reward: NDArray[Any],  # noqa: ARG002 - see above
        terminated: NDArray[np.bool_],
    ) -> Floats:
        """See `shaped_reward` of this module."""
        return shaped_reward(next_obs, terminated)

    def adverse_start(self, env: Any, finished_episodes: int) -> Floats | None:
        """See `make_start_adverse`."""
        return make_start_adverse(env, finished_episodes)
