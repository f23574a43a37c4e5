"""Mirror images of rows, for tasks that declare a symmetry: twice the data from the same steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlxe_async.rows import Array, Symmetry


def mirror_observations(obs: Array, flipped: NDArray[np.bool_], symmetry: Symmetry) -> Array:
    """Observations (..., M, O), those of the `flipped` (M,) samples negated where the symmetry says so."""
    sign = np.asarray(symmetry.observation_sign, obs.dtype)
    if obs.shape[-1] != len(sign) or obs.shape[-2] != len(flipped):
        raise ValueError(f"mirror_observations: expected (..., {len(flipped)}, {len(sign)}), got {obs.shape}")
    mirrored: Array = np.where(flipped[:, None], obs * sign, obs)
    return mirrored


def mirror_actions(action: NDArray[np.integer], flipped: NDArray[np.bool_], symmetry: Symmetry) -> Array:
    """Discrete actions (..., M), those of the `flipped` (M,) samples exchanged for their mirror images."""
    mirrored: Array = np.where(flipped, np.asarray(symmetry.action_order, action.dtype)[action], action)
    return mirrored
