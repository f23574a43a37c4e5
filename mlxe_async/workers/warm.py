"""A small algorithm, made and asked when this module is imported: what is set up at first use is set up then.

The nursery imports it before it forks. What torch and this package set up there lies on pages that all children share;
each executor would have more than a megabyte of its own otherwise.
"""

from __future__ import annotations

import numpy as np

from mlxe_async.algorithms import Acting, load_algorithm
from mlxe_async.networks.flat import parameter_count
from mlxe_async.rows import Spaces


def _make_and_ask(name: str = "dqn") -> None:
    kind = load_algorithm(name)
    made = kind(kind.Settings.model_validate({"layers": (8,)}), Spaces((4,), actions=2), seed=0, learns=False)
    made.load(np.zeros(parameter_count(made.parameters), np.float32))
    made.act(np.zeros((2, 4), np.float32), np.random.default_rng(0), Acting())


_make_and_ask()
