"""What may be changed about CartPole for learning: starts, reward, features and the mirror image.

Each is a switch of its own in `[task]`; other environments declare theirs (see `help`). They are methods on
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
        """`1 + (1 - |x|/2.4) + (1 - |theta|/0.2094)` of the state reached, and -10 instead of it where the pole fell.

        The settings say how much the two brackets weigh, and what stands for -10. A truncated step keeps the ordinary
        reward.
        """
        centre, upright = self._settings.centre_weight, self._settings.upright_weight
        weights = np.array([centre / X_LIMIT, 0, upright / THETA_LIMIT, 0, 0], np.float32)
        shaped: Floats = np.float32(1.0 + centre + upright) - np.abs(next_obs).dot(weights[: next_obs.shape[1]])
        shaped[terminated] = self._settings.failure_reward
        return shaped

    def adverse_start(self, env: Any, finished_episodes: int) -> Floats | None:
        """Perhaps move a CartPole that was just reset to a hard place, drawn from the environment's own generator.

        One draw in five ways: x = -1.5, x = +1.5, theta = -0.15, theta = +0.15, or left as it is.

        Args:
            env: the environment, of which the inner `state` is changed.
            finished_episodes: E, episodes finished before this one begins.

        Returns:
            The new observation (4,), or None when the start was left as it is.
        """
        inner = env.unwrapped
        way = self.way_of(inner.np_random.random(), finished_episodes)
        if way is None:
            return None
        coordinate, place = way
        inner.state[coordinate] = place
        return np.array(inner.state, dtype=np.float32)

    def adverse_starts(self, vector: Any, began: NDArray[np.bool_], finished_episodes: int) -> Floats:
        """The same for those of gymnasium's vector whose episodes have just begun (B,): what these show now (M, 4)."""
        envs = np.flatnonzero(began)
        for env, drawn in zip(envs.tolist(), vector.np_random.random(len(envs)).tolist(), strict=True):
            way = self.way_of(drawn, finished_episodes)
            if way is not None:
                vector.state[way[0], env] = way[1]
        shown: Floats = vector.state[:, envs].T.astype(np.float32)
        return shown

    def adverse_probability(self, finished_episodes: int) -> float:
        """Probability of each of the four adverse starts: 0.2 at first, then `0.2 / log_5 E`, never under 0.05."""
        first, least = self._settings.adverse_first, self._settings.adverse_least
        if finished_episodes <= 1:
            return first
        return min(first, max(least, first / math.log(finished_episodes, self._settings.adverse_base)))

    def way_of(self, drawn: float, finished_episodes: int) -> tuple[int, float] | None:
        """The coordinate that a number drawn from [0, 1) says is to be overwritten, and by what; None: none is."""
        probability = self.adverse_probability(finished_episodes)
        way = int(drawn / probability) if probability else 4
        if way >= 4:
            return None
        coordinate, magnitude = ((0, self._settings.adverse_x), (2, self._settings.adverse_angle))[way // 2]
        return coordinate, magnitude if way % 2 else -magnitude
