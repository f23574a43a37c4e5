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
from mlxe_async.settings.task import CartPole

Floats = NDArray[np.float32]

X_LIMIT = 2.4
THETA_LIMIT = 12 * 2 * math.pi / 360
START_BOUND = 0.05

VECTOR = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"
"""Many CartPoles that are stepped by one call, as gymnasium registers them."""


PUBLISHED = CartPole()
"""The constants of the study that this program goes back to."""


def squared_position(obs: Floats) -> None:
    """Write x squared into the fifth entry of observations (B, 5), in place."""
    np.multiply(obs[:, 0], obs[:, 0], out=obs[:, 4])


def shaped_reward(next_obs: Floats, terminated: NDArray[np.bool_], settings: CartPole = PUBLISHED) -> Floats:
    """`1 + (1 - |x|/2.4) + (1 - |theta|/0.2094)` of the state reached, and -10 instead of it where the pole fell.

    Args:
        next_obs: observations that the steps led to (B, 4 or 5), with the final one at the end of an episode.
        terminated: whether the world ended (B,); a truncated step keeps the ordinary reward.
        settings: weights of the two brackets, and what stands for -10.

    Returns:
        Rewards (B,).
    """
    centre, upright = settings.centre_weight, settings.upright_weight
    weights = np.array([centre / X_LIMIT, 0, upright / THETA_LIMIT, 0, 0], np.float32)
    reward: Floats = np.float32(1.0 + centre + upright) - np.abs(next_obs).dot(weights[: next_obs.shape[1]])
    reward[terminated] = settings.failure_reward
    return reward


def adverse_probability(finished_episodes: int, settings: CartPole = PUBLISHED) -> float:
    """Probability of each of the four adverse starts: 0.2 at first, then `0.2 / log_5 E`, never under 0.05."""
    first, least = settings.adverse_first, settings.adverse_least
    if finished_episodes <= 1:
        return first
    return min(first, max(least, first / math.log(finished_episodes, settings.adverse_base)))


def way_of(drawn: float, finished_episodes: int, settings: CartPole) -> tuple[int, float] | None:
    """The coordinate that a number drawn from [0, 1) says is to be overwritten, and by what; None: none is."""
    probability = adverse_probability(finished_episodes, settings)
    way = int(drawn / probability) if probability else 4
    if way >= 4:
        return None
    coordinate, magnitude = ((0, settings.adverse_x), (2, settings.adverse_angle))[way // 2]
    return coordinate, magnitude if way % 2 else -magnitude


def make_start_adverse(env: Any, finished_episodes: int, settings: CartPole = PUBLISHED) -> Floats | None:
    """Perhaps move a CartPole that was just reset to a hard place, drawn from the environment's own generator.

    One draw in five ways: x = -1.5, x = +1.5, theta = -0.15, theta = +0.15, or left as it is.

    Args:
        env: the environment, of which the inner `state` is changed.
        finished_episodes: E, episodes finished before this one begins.
        settings: the places, and how often.

    Returns:
        The new observation (4,), or None when the start was left as it is.
    """
    inner = env.unwrapped
    way = way_of(inner.np_random.random(), finished_episodes, settings)
    if way is None:
        return None
    coordinate, place = way
    inner.state[coordinate] = place
    return np.array(inner.state, dtype=np.float32)


def make_starts_adverse(
    vector: Any, began: NDArray[np.bool_], finished_episodes: int, settings: CartPole = PUBLISHED
) -> Floats:
    """The same for those of a vector of CartPoles whose episodes have just begun.

    Args:
        vector: gymnasium's, of which the inner `state` (4, B) is changed.
        began: which of them (B,).
        finished_episodes: E.
        settings: the places, and how often.

    Returns:
        What these show now (M, 4), moved or not.
    """
    envs = np.flatnonzero(began)
    for env, drawn in zip(envs.tolist(), vector.np_random.random(len(envs)).tolist(), strict=True):
        way = way_of(drawn, finished_episodes, settings)
        if way is not None:
            vector.state[way[0], env] = way[1]
    shown: Floats = vector.state[:, envs].T.astype(np.float32)
    return shown


class CartPoleHelp:
    """All of it, in the form in which other environments declare theirs (see `help`).

    Args:
        settings: the constants.

    Attributes:
        symmetry: left and right exchanged: the state changes its sign, the two pushes change places; x squared stays.
        limits: the pole has fallen, or the cart has left the track, where an entry is as large as this.
    """

    symmetry = Symmetry((-1.0, -1.0, -1.0, -1.0, 1.0), (1, 0))
    limits = (X_LIMIT, None, THETA_LIMIT, None, None)

    def __init__(self, settings: CartPole = PUBLISHED) -> None:
        self._settings = settings

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
        return shaped_reward(next_obs, terminated, self._settings)

    def adverse_start(self, env: Any, finished_episodes: int) -> Floats | None:
        """See `make_start_adverse`."""
        return make_start_adverse(env, finished_episodes, self._settings)

    def adverse_starts(self, vector: Any, began: NDArray[np.bool_], finished_episodes: int) -> Floats:
        """See `make_starts_adverse`."""
        return make_starts_adverse(vector, began, finished_episodes, self._settings)
