"""Gymnasium's CartPole for many rows at once, equal to it bit for bit.

One test of a policy is a million steps, at six microseconds each too slow one by one. Here a tick of all rows is
some twenty numpy calls into arrays made beforehand. Equality is a matter of doing the same float64 operations in the
same order as `CartPoleEnv.step`; the tests compare every bit over long rollouts.

Whether a row has fallen is looked at once per block of ticks: what a fallen row does afterwards does not matter, and
checking each tick would cost a quarter of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from mlxe_async.tasks.cartpole import PUBLISHED, START_BOUND, THETA_LIMIT, X_LIMIT

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

BLOCK = 64
_X, _THETA = PUBLISHED.adverse_x, PUBLISHED.adverse_angle
ADVERSE_WAYS = ((0, -_X), (0, _X), (2, -_THETA), (2, _THETA))  # coordinate of the state, and where it is put

_GRAVITY = np.array(9.8)
_POLE_MASS = np.array(0.1)
_TOTAL_MASS = np.array(0.1 + 1.0)
_HALF_LENGTH = np.array(0.5)
_POLE_MASS_LENGTH = np.array(0.1 * 0.5)
_FOUR_THIRDS = np.array(4.0 / 3.0)
_TAU = np.array(0.02)
_FORCES = np.array([-10.0, 10.0])
_LIMITS = np.array([X_LIMIT, THETA_LIMIT])[:, None]


def start_state(seed: int) -> Doubles:
    """The state (4,) in which `gymnasium.make("CartPole-v1").reset(seed=seed)` starts."""
    generator, _ = seeding.np_random(seed)
    return generator.uniform(low=-START_BOUND, high=START_BOUND, size=(4,))


class CartPolePhysics:
    """N carts with poles, moved together.

    Args:
        states: cart position, cart velocity, pole angle, pole velocity of each row (N, 4), copied.
        features: 4, or 5 to have the squared position as fifth entry of each observation.

    Attributes:
        obs: what gymnasium would show (N, features) float32, written by `observe`; one array for good.
    """

    def __init__(self, states: Doubles, features: int = 4) -> None:
        rows = len(states)
        # Everything a tick touches lies in one flat array, ordered so that neighbours are treated by one call:
        # x, theta, their speeds, then the two accelerations (where cos stands while it is needed next to the speed).
        everything = np.empty((6, rows))
        self._state = everything[:4].reshape(4 * rows)
        self._derivative = everything[2:].reshape(4 * rows)
        self._places = everything[:2]
        _, self._theta, _, self._theta_speed, self._cart_acceleration, self._pole_acceleration = everything
        self._speed_and_cos = everything[3:5].reshape(2 * rows)
        self._change = np.empty(4 * rows)
        self._push_and_below = np.empty(2 * rows)
        self._push, self._below = self._push_and_below[:rows], self._push_and_below[rows:]
        self._squares_factor = np.repeat([_POLE_MASS_LENGTH, _POLE_MASS], rows)
        self._sin, self._spare = np.empty((2, rows))
        self._track = np.empty((BLOCK, 2, rows))
        self._tracks = list(self._track)
        self._ticks = 0
        self.obs: Floats = np.zeros((rows, features), np.float32)
        # (N, 4) and (N, 5): entry 2 * coordinate + (0 for the place, 1 for its speed)
        self._shown = self.obs[:, :4].reshape(rows, 2, 2)
        self._by_row = everything[:4].reshape(2, 2, rows).transpose(2, 1, 0)
        self._by_row[...] = np.asarray(states, np.float64).reshape(rows, 2, 2)
        self.observe()

    @property
    def state(self) -> Doubles:
        """A copy of the states (N, 4) in gymnasium's order."""
        return self._by_row.reshape(-1, 4)

    def place(self, rows: NDArray[np.integer], states: Doubles) -> None:
        """Put some rows (M,) into other states (M, 4)."""
        self._by_row[rows] = np.asarray(states, np.float64).reshape(-1, 2, 2)

    def lay_down(self, rows: NDArray[np.integer]) -> None:
        """Put fallen rows (M,) upright in the middle."""
        self.place(rows, np.zeros((len(rows), 4)))
        self.observe()

    def observe(self) -> None:
        """Bring `obs` up to date."""
        np.copyto(self._shown, self._by_row, "same_kind")
        if self.obs.shape[1] == 5:
            np.multiply(self.obs[:, 0], self.obs[:, 0], out=self.obs[:, 4])

    def tick(self, actions: NDArray[np.integer]) -> None:
        """Push every cart once: 0 to the left, 1 to the right, (N,). At most `BLOCK` times between two `fallen`.

        Raises:
            IndexError: an action is not 0 or 1, or the block is full.
        """
        sin, push, below, spare, pole = self._sin, self._push, self._below, self._spare, self._pole_acceleration
        track = self._tracks[self._ticks]
        # The constants are 0-d arrays because a Python float costs numpy as much again as the operation.
        cos = self._cart_acceleration
        np.sin(self._theta, sin)
        np.cos(self._theta, cos)
        # push = (force + 0.05 speed^2 sin) / 1.1 and below = 0.5 (4/3 - 0.1 cos^2 / 1.1)
        np.square(self._speed_and_cos, self._push_and_below)
        np.multiply(self._push_and_below, self._squares_factor, self._push_and_below)
        np.multiply(push, sin, push)
        np.add(push, _FORCES[actions], push)
        np.divide(self._push_and_below, _TOTAL_MASS, self._push_and_below)
        np.subtract(_FOUR_THIRDS, below, below)
        np.multiply(below, _HALF_LENGTH, below)
        # pole = (9.8 sin - cos push) / below
        np.multiply(cos, push, spare)
        np.multiply(sin, _GRAVITY, pole)
        np.subtract(pole, spare, pole)
        np.divide(pole, below, pole)
        # cart = push - 0.05 pole cos / 1.1
        np.multiply(pole, _POLE_MASS_LENGTH, spare)
        np.multiply(spare, cos, spare)
        np.divide(spare, _TOTAL_MASS, spare)
        np.subtract(push, spare, self._cart_acceleration)
        # Euler: places move with the old speeds.
        np.multiply(self._derivative, _TAU, self._change)
        np.add(self._state, self._change, self._state)
        np.copyto(track, self._places)
        self._ticks += 1

    def fallen(self) -> NDArray[np.int64]:
        """When each row fell, in ticks counted from 0 since the last call (N,); -1 where it stands. Empties the block.

        A row falls in the tick after which |x| > 2.4 or |theta| > 12 degrees.
        """
        track = np.abs(self._track[: self._ticks])
        self._ticks = 0
        out = (track > _LIMITS).any(1)  # (ticks, N)
        if not out.any():
            return np.full(out.shape[1], -1)
        return np.where(out.any(0), out.argmax(0), -1)


class CartPoleSimulator:
    """What CartPole offers for its tests: many rows of it, stepped at once.

    It gives a reward of 1 for every step, and ends an episode by itself only.
    """

    def starts(self, seeds: Sequence[int], *, adverse: bool) -> Doubles:
        """The states (B, 4) in which resets with these seeds begin.

        Adverse ones are the standard ones with one coordinate overwritten: a quarter of them, in this order, has the
        cart at -1.5, at +1.5, the pole at -0.15 and at +0.15 rad.
        """
        states = np.stack([start_state(seed) for seed in seeds])
        if adverse:
            for quarter, (coordinate, place) in zip(np.array_split(states, 4), ADVERSE_WAYS, strict=True):
                quarter[:, coordinate] = place
        return states

    def batch(self, states: Doubles, features: int) -> CartPolePhysics:
        """Carts with poles in these states (N, 4)."""
        return CartPolePhysics(states, features)
