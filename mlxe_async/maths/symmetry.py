"""Mirror images of rows, for tasks that declare a symmetry: twice the data from the same steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlxe_async.rows import Array, Symmetry


def mirror(
    obs: Array, next_obs: Array, action: NDArray[np.integer], flipped: NDArray[np.bool_], symmetry: Symmetry
) -> tuple[Array, Array, Array]:
    """Observations (..., M, O) twice and discrete actions (..., M), those of the `flipped` (M,) samples mirrored."""
    sign = np.asarray(symmetry.observation_sign, obs.dtype)
    if obs.shape != next_obs.shape or obs.shape[:-1] != action.shape or obs.shape[-2:] != (len(flipped), len(sign)):
        raise ValueError(
            f"mirror: expected observations (..., {len(flipped)}, {len(sign)}) and actions (..., {len(flipped)}), "
            f"got {obs.shape}, {next_obs.shape} and {action.shape}"
        )
    factor = np.where(flipped[:, None], sign, np.ones_like(sign))
    order = np.asarray(symmetry.action_order, action.dtype)
    return obs * factor, next_obs * factor, np.where(flipped, order[action], action)
