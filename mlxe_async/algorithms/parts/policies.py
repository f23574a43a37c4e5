"""Policies for whatever actions a task takes: what the algorithms share that learn a distribution.

One of A actions is drawn from a softmax, several choices from one softmax each, numbers (Box) from normal distributions
whose -1 and 1 are the task's bounds. A mask of allowed actions counts wherever there is one.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from mlxe_async.algorithms.distributions import MASKED, Categorical, Distribution, Gaussian, MultiCategorical, bounded
from mlxe_async.algorithms.parts import fields
from mlxe_async.rows import Spaces

LOWEST, HIGHEST = -5.0, 2.0  # of a log-deviation that a network computes
OF_NUMBERS = 'task.action_kind == "box"'


class PolicyFields(fields.ActorCriticFields):
    """How a policy is shaped."""

    deviation: Literal["free", "computed"] = fields.key(
        "free",
        "Of actions that are numbers. free: learned numbers; computed: by the actor, for each observation.",
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
    """How many discrete actions there are, for an algorithm that knows no others.

    Raises:
        ValueError: actions are of another kind, or the task says which are allowed; by the algorithm's name.
    """
    name = kind.__name__.lower()
    if spaces.actions is None:
        raise ValueError(f"algorithm.name: {name} needs a task with discrete actions, got {spaces.action_name}")
    if spaces.masked:
        raise ValueError(f"algorithm.name: {name} knows nothing of masks; set task.action_mask = false")
    return spaces.actions


def numbers_of(spaces: Spaces) -> int:
    """Entries of an action of numbers; 0 of all other actions."""
    return math.prod(spaces.action_shape) if spaces.action_kind == "box" else 0


def outputs_of(spaces: Spaces) -> int:
    """Outputs of an actor: a mean for each number of an action, or a logit for each choice."""
    return numbers_of(spaces) or sum(spaces.action_sizes)


def distribution(spaces: Spaces, scores: Any, log_std: Any, mask: Any = None) -> Distribution:
    """Of actions, by an actor's outputs (B, n), log-deviations, and what a mask (B, n) allows; arrays or tensors."""
    if spaces.action_kind == "box":
        return Gaussian(scores, log_std.clip(LOWEST, HIGHEST), spaces, scaled=True)
    if spaces.action_kind == "discrete":
        return Categorical(scores, mask)
    return MultiCategorical(scores, spaces.action_sizes, spaces.action_shape, mask)


def best(spaces: Spaces, scores: Any, obs: Any) -> Any:
    """The most probable actions (B, ...) as the environment takes them, by an actor's outputs (B, n), by torch."""
    import torch

    if spaces.action_kind == "box":
        return bounded(scores, spaces)
    mask = spaces.mask(obs)
    if mask is not None:
        scores = scores.masked_fill(~mask, MASKED)
    pieces = [each.argmax(-1) for each in scores.split(spaces.action_sizes, -1)]
    return spaces.for_environment(torch.stack(pieces, -1).reshape((len(scores), *spaces.action_shape)))
