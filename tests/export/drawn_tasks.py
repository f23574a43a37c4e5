"""An environment whose space of observations is drawn by a number: any leaves, any depth."""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tasks"))

from many_spaces import Drawn, drawn_space


class BySeed(Drawn):
    """Episodes of seven steps.

    Args:
        number: draws the space.
    """

    def __init__(self, number):
        super().__init__(observation=drawn_space(np.random.default_rng(number)), end_at=7)
