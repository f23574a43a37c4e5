"""Losses on replayed rows, differentiated by hand in numpy: of an actor and a critic, and of action values.

Each is the gradient of what its algorithm writes for autograd, for the kinds of it that are common; `None` for others.
Where somebody changes the loss, the two disagree, and autograd's is used (see `differentiation.Differentiator`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.maths import categorical
from mlxe_async.rows import Array

Floats = NDArray[np.float32]


def actor_critic(settings: Any) -> Callable[..., Any] | None:
    """A3C's loss with corrections "clipped" and "none", and values that are one number.

    The function takes logits (M, A), values (M, 1), and the columns (M,) `action`, `log_prob`, `partial`,
    `coefficient`, `following` and `weight`. It gives the gradients by logits and values, and the total loss, the
    critic's, the entropy, and the effective share of the weights.
    """
    s, survival = settings, settings.value_scale == "survival"
    if s.correction == "vtrace" or s.value_scale == "categorical":
        return None
    largest, critics, entropys = (np.float32(x) for x in (s.ratio_clip, s.value_coefficient, s.entropy))

    def found(logits: Floats, values: Floats, rows: Mapping[str, Array]) -> Any:
        taken = (rows["action"], np.arange(len(logits)))
        log_probs, probs = categorical.by_action(logits)
        log_prob, raw = log_probs[taken], values[:, 0]
        value, following = (_chance(x) if survival else x for x in (raw, rows["following"]))
        target = rows["partial"] + rows["coefficient"] * following
        ratio = np.minimum(np.exp(np.clip(log_prob - rows["log_prob"], -20, 20)), largest)
        error, weight = target - value, rows["weight"] / rows["weight"].sum()
        by_log_prob = error * -weight if s.correction == "none" else ratio * error * -weight
        surprise = probs * log_probs
        chance = -surprise.sum(0)
        by_logits = (surprise + probs * chance) * (entropys * weight) - probs * by_log_prob
        by_logits[taken] += by_log_prob
        by_value = error * (-critics * weight)
        critic = _cross_entropy(raw, target) if survival else np.float32(0.5) * error * error
        means = (float(log_prob.dot(by_log_prob)), float(critic.dot(weight)), float(chance.dot(weight)))
        total = means[0] + s.value_coefficient * means[1] - s.entropy * means[2]
        share = float(ratio.sum()) ** 2 / max(float(ratio.dot(ratio)) * len(ratio), 1e-12)
        return (by_logits.T, by_value[:, None]), (total, *means[1:], share)

    return found


def action_values(settings: Any) -> Callable[..., Any]:
    """DQN's loss, of all kinds.

    The function takes values (M, A), and the columns `next_q` and `choosing_q` (M, A), `action`, `partial`,
    `coefficient` and `weight` (M,). It gives the gradient by the values, and the loss, the mean value of the actions
    that were taken, and the mean distance from their targets.
    """
    survival, huber = settings.value_scale == "survival", settings.loss == "huber"

    def found(q: Floats, rows: Mapping[str, Array]) -> Any:
        count = np.arange(len(q))
        raw, best = q[count, rows["action"]], np.ascontiguousarray(rows["choosing_q"].T).argmax(0)
        value, following = (_chance(x) if survival else x for x in (raw, rows["next_q"][count, best]))
        target = rows["partial"] + rows["coefficient"] * following
        error = target - value
        distance = np.abs(error)
        losses: Array
        slope: Array
        if survival:
            losses, slope = _cross_entropy(raw, target), error
        elif huber:
            losses, slope = np.where(distance <= 1, error * error, 2 * distance - 1) / 2, np.clip(error, -1, 1)
        else:
            losses, slope = error * error / 2, error
        by_q = np.zeros_like(q)
        by_q[count, rows["action"]] = slope * rows["weight"] * np.float32(-1 / len(q))
        return (by_q,), (float(losses.dot(rows["weight"])) / len(q), float(value.mean()), float(distance.mean()))

    return found


def _chance(logit: Floats) -> Floats:
    """The sigmoid."""
    return np.asarray(np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * logit)))


def _cross_entropy(logit: Floats, target: Floats) -> Floats:
    """-target log sigmoid(logit) - (1 - target) log(1 - sigmoid(logit)), safe for large |logit|."""
    return np.asarray(np.maximum(logit, 0) - logit * target + np.log1p(np.exp(-np.abs(logit))))


def examples(heads: Mapping[str, tuple[int, ...]], rows: int = 64, inputs: int = 4) -> dict[str, Array]:
    """Columns of a minibatch whose ratios and errors are on both sides of everything that may be bounded.

    Args:
        heads: sizes of each head's layers.
        rows: how many.
        inputs: length of an observation, which no loss looks at.
    """
    rng = np.random.default_rng(0)
    actions, values = heads["q" if "q" in heads else "policy"][-1], heads.get("value", (1,))[-1]
    sizes: dict[str, Any] = {"obs": (rows, inputs), "partial": rows, "next_q": (rows, actions)}
    sizes |= {"choosing_q": (rows, actions), "following": (rows, values) if values > 1 else rows}
    columns: dict[str, Array] = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    columns |= {name: rng.random(rows).astype(np.float32) for name in ("coefficient", "weight")}
    columns["log_prob"] = (rng.normal(size=rows) - np.log(actions)).astype(np.float32)
    columns["action"] = rng.integers(actions, size=rows)
    return columns
