"""Where the rows of a rollout belong together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def ends(rows: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Where nothing flows back from the next row (T, B): ends of episodes, cuts, gaps, and the last valid row.

    Args:
        rows: the columns `terminated`, `truncated`, `cut`, `valid`, `episode` and `step` of time-major rollouts, all
            (T, B). A row that is not valid is padding.
    """
    result: NDArray[np.bool_] = (rows["terminated"] | rows["truncated"] | rows["cut"]).astype(bool)
    episode, step = rows["episode"], rows["step"]
    # An environment that had to be made anew leaves a gap, with no mark on the row before it.
    follows = rows["valid"][1:].astype(bool) & (episode[1:] == episode[:-1]) & (step[1:] == step[:-1] + 1)
    result[:-1] |= ~follows
    result[-1] = True
    return result
