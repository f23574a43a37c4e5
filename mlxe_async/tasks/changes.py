"""A cost for each change of action: what is learned then is to hold still where nothing is won by moving.

In training it is taken off the reward that is learned from. Returns and tests know nothing of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlxe_async.rows import Array, Spaces


class ActionChanges:
    """Charges B environments for actions that differ from the one before in the same episode.

    Args:
        cost: of one change, in units of reward.
        count: B.
        spaces: what the environments take: actions to choose from, of any number of entries.

    Attributes:
        charged: changes so far.
    """

    def __init__(self, cost: float, count: int, spaces: Spaces) -> None:
        self._cost, self.charged = np.float32(cost), 0
        self._before = np.zeros((count, *spaces.action_shape), np.int64)
        self._is_known = np.zeros(count, np.bool_)

    def begin(self, which: Any) -> None:
        """Episodes of these environments, by index or mask, begin: their first actions change nothing."""
        self._is_known[which] = False

    def charge(self, reward: Array, actions: Array, ok: Array) -> None:
        """Take the cost off rewards (B,), in place, of environments that stepped with another action than before.

        Args:
            reward: to learn from.
            actions: that were taken (B, ...).
            ok: which environments stepped (B,).
        """
        chosen = np.asarray(actions)
        differs = (chosen != self._before).reshape(len(chosen), -1).any(1)
        changed = differs & self._is_known & ok
        reward[changed] -= self._cost
        self._before[ok] = chosen[ok]
        self._is_known |= ok
        self.charged += int(changed.sum())
