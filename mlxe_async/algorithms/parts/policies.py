"""Policies for whatever actions a task takes: what the algorithms share that learn a distribution.

One of A actions is drawn from a softmax, several choices from one softmax each, numbers (Box) from normal distributions
whose -1 and 1 are the task's bounds. A mask of allowed actions counts wherever there is one.
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import numpy as np

from mlxe_async.algorithms.distributions import (
    LARGEST,
    MASKED,
    Categorical,
    Distribution,
    Gaussian,
    MultiCategorical,
    bounded,
    to_unit,
)
from mlxe_async.algorithms.interface import Rows
from mlxe_async.algorithms.parts import fields
from mlxe_async.networks.mixed import pictures_in
from mlxe_async.rows import MASK, Array, Spaces

LOWEST, HIGHEST = -5.0, 2.0  # of a log-deviation
OF_NUMBERS = 'task.action_kind == "box"'


class PolicyFields(fields.ActorCriticFields):
    """Settings of the entropy bonus and of the deviation of continuous actions."""

    deviation: Literal["free", "computed"] = fields.key(
        "free",
        "Deviation of continuous actions. free: learned numbers; computed: by the actor, for each observation.",
        OF_NUMBERS,
        stays=True,
    )
    log_std: float = fields.key(
        0.0,
        "First logarithm of the deviation, in units of half the action's range; higher explores further.",
        f'{OF_NUMBERS} and deviation == "free"',
        stays=True,
        ge=-5,
        le=2,
    )


def number_of_actions(kind: type, spaces: Spaces) -> int:
    """Return how many discrete actions there are, for an algorithm that knows no others.

    Raises:
        ValueError: actions are of another kind, or the task says which are allowed; by the algorithm's name.
    """
    name = kind.__name__.lower()
    if spaces.actions is None:
        raise ValueError(f"algorithm.name: {name} needs a task with discrete actions, got {spaces.action_name}")
    if spaces.masked:
        raise ValueError(f"algorithm.name: {name} knows nothing of masks; set task.action_mask = false")
    return spaces.actions


def box_entries(kind: type, spaces: Spaces) -> int:
    """Entries D of an action within finite bounds.

    Raises:
        ValueError: actions are of another kind, or have no bounds; by the algorithm's name.
    """
    low, high = spaces.bounds
    if spaces.action_kind != "box" or not bool(((low > -LARGEST) & (low < high) & (high < LARGEST)).all()):
        what = spaces.action_name if spaces.action_kind != "box" else "no bounds, or none that differ"
        raise ValueError(f"algorithm.name: {kind.__name__.lower()} needs actions with finite bounds, got {what}")
    return len(low)


def refuse_pictures(kind: type, spaces: Spaces) -> None:
    """Refuse pictures, for algorithms whose networks have no convolutions; by the algorithm's name.

    Raises:
        ValueError: there is one, alone or among other parts, with what to do about it.
    """
    found = pictures_in(spaces)
    if not found:
        return
    words = ", ".join(f"{part.name} {' x '.join(map(str, part.shape))} bytes" for part in found)
    tops = {part.name.partition(".")[0]: None for part in spaces.parts if part.name != MASK}
    rest = [name for name in tops if name not in {part.name.partition(".")[0] for part in found}]
    leave = f"leave it out by observe = {json.dumps(rest)} of [task]" if rest else "show numbers by a wrapper"
    raise ValueError(
        f"algorithm.name: {kind.__name__.lower()} has no convolutions for pictures, got {words}; {leave}, or take an "
        'algorithm that has, such as "ppo"'
    )


def numbers_of(spaces: Spaces) -> int:
    """Entries of an action of numbers; 0 of all other actions."""
    return math.prod(spaces.action_shape) if spaces.action_kind == "box" else 0


def unit_actions(batch: Rows, spaces: Spaces) -> Array:
    """A batch's actions in [-1, 1] (M, D), as tanh of raw ones if there are any; discrete ones as they are (M,)."""
    if spaces.actions is not None:
        return batch["action"]
    raw = batch.get("raw_action")
    return np.asarray(to_unit(batch["action"], spaces) if raw is None else np.tanh(raw.reshape(len(raw), -1)))


def outputs_of(spaces: Spaces) -> int:
    """Outputs of an actor: a mean for each number of an action, or a logit for each choice."""
    return numbers_of(spaces) or sum(spaces.action_sizes)


def distribution(spaces: Spaces, scores: Any, log_std: Any, mask: Any = None) -> Distribution:
    """Distribution of actions, by an actor's outputs (B, n), log-deviations, and a mask (B, n); arrays or tensors."""
    if spaces.action_kind == "box":
        return Gaussian(scores, _within(log_std), spaces, scaled=True)
    if spaces.action_kind == "discrete":
        return Categorical(scores, mask)
    return MultiCategorical(scores, spaces.action_sizes, spaces.action_shape, mask)


def _within(log_std: Any) -> Any:
    """Log-deviations within their bounds; numbers that are learned are put back there, where they have a gradient."""
    if getattr(log_std, "requires_grad", False) and log_std.is_leaf:
        log_std.data.clamp_(LOWEST, HIGHEST)
    return log_std.clip(LOWEST, HIGHEST)


def best(spaces: Spaces, scores: Any, obs: Any) -> Any:
    """The most probable actions (B, ...) as the environment takes them, by an actor's outputs (B, n), by torch."""
    import torch

    if spaces.action_kind == "box":
        return bounded(scores, spaces)
    mask = spaces.mask(obs)
    if mask is not None:
        scores = scores.masked_fill(~mask, MASKED)
    pieces = [each.argmax(-1) for each in scores.split(spaces.action_sizes, -1)]
    return spaces.for_environment(torch.stack(pieces, -1).reshape((scores.shape[0], *spaces.action_shape)))
