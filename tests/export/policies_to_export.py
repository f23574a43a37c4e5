"""Policies with drawn weights, for whatever task and algorithm, as if a run had saved them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from mlxe_async import load_settings
from mlxe_async.algorithms import load_algorithm
from mlxe_async.policy import Policy
from mlxe_async.tasks.vector import VectorTask

RUNS = Path(__file__).parents[1] / "runs"


def policy_of(task, *, scale=0.3, **algorithm):
    """A policy of the algorithm for the task: weights are moved away from where they begin, moments are some."""
    if str(RUNS) not in sys.path:
        sys.path.append(str(RUNS))
    written = {"name": "ppo", **algorithm}
    settings = load_settings({"task": task, "algorithm": written})
    vector = VectorTask(settings.task.model_dump(), 1, evaluation=True)
    vector.close()
    kind = load_algorithm(written["name"])
    more = {name: value for name, value in written.items() if name != "name"}
    table = {**more, **kind.defaults_for(vector.spaces, more)}
    settings = load_settings({"task": task, "algorithm": {**table, "name": written["name"]}})
    one = kind(kind.Settings(**table), vector.spaces, seed=1, learns=False)
    flat, rng, start = one.weights(), np.random.default_rng(2), 0
    for name, shape in one.parameters:
        size = int(np.prod(shape))
        if "normaliser" not in name and "epsilon" not in name:
            flat[start : start + size] += rng.normal(0, scale / np.sqrt(max(shape, default=1)), size)
        start += size
    return Policy(settings, vector.spaces, flat.astype(np.float32), 7)
