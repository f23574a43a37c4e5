"""The gradient of PPO's loss by the network's outputs, by hand and in numpy.

The loss itself is written in `algorithms.ppo`, for autograd. On some dozens of rows autograd takes longer for it than
both ways through a small network take, because each of its sixty steps costs microseconds whatever its size; here it is
twenty array operations. It is used only where it agrees with autograd on `examples`, so that a loss that somebody
changed is learned from as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.maths import categorical
from mlxe_async.rows import Array

Floats = NDArray[np.float32]


def gradients(
    logits: Floats,
    value: Floats,
    action: Array,
    behaviour_log_prob: Floats,
    advantage: Floats,
    target: Floats,
    *,
    clip: float,
    value_coefficient: float,
    entropy: float,
) -> tuple[tuple[Floats, Floats], tuple[float, float, float, Floats]]:
    """Of the clipped surrogate (normalised advantages), half the squared error of the values, and the entropy.

    Args:
        logits: (M, A).
        value: (M, 1).
        action: (M,), integers.
        behaviour_log_prob: (M,).
        advantage: (M,), as it is.
        target: of the values (M,).
        clip: see `PPOSettings`, as the other two.
        value_coefficient: weight of the values' loss.
        entropy: weight of the entropy.

    Returns:
        The gradients of the total loss by logits (M, A) and value (M, 1); and the loss of the policy, that of the
        values, the entropy, and the log-probabilities (M,) of the actions.
    """
    rows, taken = len(action), (action, np.arange(len(action)))
    log_probs, probs = categorical.by_action(logits)
    log_prob = log_probs[taken]
    centred = advantage - advantage.mean()
    normalised = centred / (np.sqrt(np.square(centred).mean()) + np.float32(1e-8))
    ratio = np.exp(log_prob - behaviour_log_prob)
    gain = ratio * normalised
    bounded = np.minimum(np.maximum(ratio, np.float32(1 - clip)), np.float32(1 + clip)) * normalised
    # Within the bounds both are the same number; beyond them only what is smaller still has a slope.
    by_log_prob = np.where(gain <= bounded, gain, np.float32(0)) * np.float32(-1 / rows)
    surprise = probs * log_probs
    row_entropy = -surprise.sum(0)
    by_logits = (surprise + probs * row_entropy) * np.float32(entropy / rows) - probs * by_log_prob
    by_logits[taken] += by_log_prob
    error = value[:, 0] - target
    by_value = error[:, None] * np.float32(value_coefficient / rows)
    losses = (
        -float(np.minimum(gain, bounded).mean()),
        0.5 * float(error.dot(error)) / rows,
        float(row_entropy.mean()),
    )
    return (by_logits.T, by_value), (*losses, log_prob)


def by_hand(settings: Any) -> Callable[..., Any]:
    """`gradients` with the constants of PPO's settings, as `differentiation.ByHand` is called."""
    weighed = {"clip": settings.clip, "value_coefficient": settings.value_coefficient, "entropy": settings.entropy}

    def found(logits: Floats, value: Floats, rows: Mapping[str, Array]) -> Any:
        columns = (rows[name] for name in ("action", "log_prob", "advantage", "target"))
        by_outputs, measured = gradients(logits, value, *columns, **weighed)
        return by_outputs, (*measured, rows["log_prob"])

    return found


def means(measured: Sequence[tuple[Any, ...]], clip: float) -> list[float]:
    """Over all minibatches at once: the losses, the approximate KL and the share of the ratios that was clipped.

    Args:
        measured: for each minibatch its losses, and log-probabilities (M,) of policy and behaviour.
        clip: ratios further than this from 1 are counted.
    """
    import torch

    *losses, log_prob, behaviour = (
        torch.cat([torch.as_tensor(one).reshape(-1) for one in column]) for column in zip(*measured, strict=True)
    )
    moved = (log_prob - behaviour).exp() - 1
    seen = [*losses, moved - (log_prob - behaviour), moved.abs().gt(clip).float()]
    result: list[float] = torch.stack([one.mean() for one in seen]).tolist()
    return result


def examples(rows: int, inputs: int, actions: int) -> dict[str, Array]:
    """Columns of a minibatch whose ratios and advantages are on both sides of everything that may be bounded."""
    rng = np.random.default_rng(0)
    columns: dict[str, Array] = {
        name: rng.normal(size=size).astype(np.float32)
        for name, size in (("obs", (rows, inputs)), ("advantage", rows), ("target", rows))
    }
    columns["log_prob"] = (rng.normal(size=rows) - np.log(actions)).astype(np.float32)
    columns["action"] = rng.integers(actions, size=rows)
    return columns
