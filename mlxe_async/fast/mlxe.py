"""MLxE's fast twin: losses on replayed rows differentiated by hand, the network by numpy.

Derived from the text of `algorithms.mlxe.paper.MLxE`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mlxe_async.algorithms.interface import Clock, Metrics, Rows
from mlxe_async.algorithms.mlxe.paper import MLxE, MLxESettings
from mlxe_async.algorithms.parts.layers import polyak
from mlxe_async.fast.quick import (
    Quick,
    RecordedLoss,
    acting,
    as_columns,
    cross_entropy,
    quick_of,
    shown,
    sigmoid,
    why_not_networks,
)
from mlxe_async.maths import categorical, gradients, metrics, together
from mlxe_async.networks import Floats
from mlxe_async.networks.heads import ActorCritic
from mlxe_async.rows import Array

HEADS = ("policy", "value")
METRICS = ("loss", "value_loss", "entropy", "effective_share", "explained_variance")


def gradient_of(settings: MLxESettings) -> Callable[[Floats, Floats, Mapping[str, Array]], Any] | None:
    """MLxE's loss with corrections "clipped" and "none", and values that are one number.

    The function takes logits (M, A), values (M, 1), and the columns (M,) `action`, `log_prob`, `partial`,
    `coefficient`, `following` and `weight`. It gives the gradients by logits and values, and what `METRICS` names.
    """
    s, survival = settings, settings.value_scale == "survival"
    if s.correction == "vtrace" or s.value_scale == "categorical":
        return None
    largest, critics, entropys = (np.float32(x) for x in (s.ratio_clip, s.value_coefficient, s.entropy))

    def found(logits: Floats, values: Floats, rows: Mapping[str, Array]) -> Any:
        taken = (rows["action"], np.arange(len(logits)))
        log_probs, probs = categorical.by_action(logits)
        log_prob, raw = log_probs[taken], values[:, 0]
        value, following = (sigmoid(x) if survival else x for x in (raw, rows["following"]))
        target = rows["partial"] + rows["coefficient"] * following
        ratio = np.minimum(np.exp(np.clip(log_prob - rows["log_prob"], -20, 20)), largest)
        error, weight = target - value, together.shares(rows["weight"])
        by_log_prob = error * -weight if s.correction == "none" else ratio * error * -weight
        surprise = probs * log_probs
        randomness = -surprise.sum(0)
        by_logits = (surprise + probs * randomness) * (entropys * weight) - probs * by_log_prob
        by_logits[taken] += by_log_prob
        by_value = error * (-critics * weight)
        critic = cross_entropy(raw, target) if survival else np.float32(0.5) * error * error
        means = (float(log_prob.dot(by_log_prob)), float(critic.dot(weight)), float(randomness.dot(weight)))
        total = means[0] + s.value_coefficient * means[1] - s.entropy * means[2]
        share = float(ratio.sum()) ** 2 / max(float(ratio.dot(ratio)) * len(ratio), 1e-12)
        unexplained = float(np.square(error - error.dot(weight)).dot(weight))
        explained = metrics.explained(unexplained, target, weight)
        return (by_logits.T, by_value[:, None]), (total, *means[1:], share, explained)

    return found


def why_not(mlxe: MLxE) -> str:
    """Why updates are left to the file; "" if its twin knows all networks."""
    return why_not_networks((mlxe.learned, mlxe.target))


class MLxETwin:
    """Does what `MLxE.update` does.

    Args:
        mlxe: the very built-in class; what it learned lies with it.
    """

    def __init__(self, mlxe: MLxE) -> None:
        self._mlxe, self._by_hand = mlxe, gradient_of(mlxe.settings)
        self.attach()

    def attach(self) -> None:
        """Work on the networks that the algorithm learns now."""
        mlxe = self._mlxe
        self._worked_on = (mlxe.network, mlxe.learned, mlxe.target, mlxe.optimiser.gradient)
        self._quick = self._quick_of(mlxe.learned)
        self._target = self._quick if mlxe.target is mlxe.learned else self._quick_of(mlxe.target)
        self._recorded = RecordedLoss(mlxe.optimiser.gradient, lambda rows: mlxe.loss(rows | mlxe.bootstrapped(rows)))
        self._loss_of, self._given = copy.copy(mlxe), _Given()
        self._loss_of.learned = self._given  # type: ignore[assignment] # it answers as the network would

    def _quick_of(self, network: ActorCritic) -> Quick | None:
        heads: Any = {"policy": network.actor, "value": network.critic}
        return quick_of(self._mlxe.device, network.see, heads, network.common)

    @property
    def attached(self) -> bool:
        """True if they are still these."""
        mlxe = self._mlxe
        now = (mlxe.network, mlxe.learned, mlxe.target, mlxe.optimiser.gradient)
        return all(one is other for one, other in zip(self._worked_on, now, strict=True))

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, None]:
        """As `MLxE.update`."""
        mlxe = self._mlxe
        mlxe.follow(clock)
        lead = batch["action"].ndim
        columns = as_columns({n: c.reshape(-1, *c.shape[lead:]) for n, c in mlxe.columns(batch).items()})
        if self._quick is None or self._target is None:
            found: dict[str, Any] = self._recorded(mlxe.tensors(columns))
        else:
            found = self._by_arrays(columns, self._quick, self._target)
        if mlxe.device == "cpu":
            together.gradient(mlxe.optimiser.gradient.numpy())
        norm = gradients.clip_grad_norm_(mlxe.optimiser.gradient, mlxe.settings.max_gradient_norm)
        told = metrics.as_floats(found | {"gradient_norm": norm})
        mlxe.optimiser.step(mlxe.settings.rate(clock.episodes))
        if mlxe.learned is not mlxe.network:
            polyak(mlxe.network, mlxe.learned, mlxe.settings.average)
        return told | {"learning_rate": mlxe.optimiser.learning_rate}, None

    def log_probs(self, vector: Floats, obs: Array) -> tuple[Array, float] | None:
        """Log mu (N, A) of published weights (P,), and the largest logit; None where mu depends on an acting clock."""
        import torch

        if self._mlxe.settings.behaviour != "softmax":
            return None
        with torch.no_grad():
            logits: Any = acting(self._mlxe, vector).network.scores(torch.from_numpy(np.ascontiguousarray(obs)))
        return logits.log_softmax(-1).numpy(), float(logits.abs().max())

    def _by_arrays(self, rows: dict[str, Array], quick: Quick, target: Quick) -> dict[str, Any]:
        """Put the gradient of the loss in place; returns what it measured."""
        rows = rows | self._bootstrapped(rows, target)
        outputs = quick.forward(self._shown(rows["obs"]))
        given = [outputs[head] for head in HEADS]
        if self._by_hand:
            by_outputs, measured = self._by_hand(given[0], given[1], rows)
            found: dict[str, Any] = dict(zip(METRICS, measured, strict=True))
        else:
            by_outputs, found = self._by_autograd(given, rows)
        self._mlxe.optimiser.zero_grad()
        quick.backward(dict(zip(HEADS, by_outputs, strict=True)))
        return found

    def _shown(self, obs: Array) -> Array:
        return shown(self._mlxe.learned.see, obs, self._mlxe.spaces)

    def _bootstrapped(self, rows: dict[str, Array], target: Quick) -> dict[str, Array]:
        """As `MLxE.bootstrapped`."""
        own = self._mlxe.settings.correction == "vtrace" and target is not self._quick
        seen = {"following": rows[self._mlxe.successor]} | ({"judged": rows["obs"]} if own else {})
        found = {name: target.outputs(self._shown(obs), ("value",))[0] for name, obs in seen.items()}
        return {name: value[:, 0] if value.shape[-1] == 1 else value for name, value in found.items()}

    def _by_autograd(self, given: list[Floats], rows: dict[str, Array]) -> tuple[list[Array], dict[str, Any]]:
        """The gradients of the written loss by the outputs (M, n), where they are not derived by hand."""
        import torch

        leaves = [torch.from_numpy(one).requires_grad_() for one in given]
        self._given.outputs = tuple(leaves)
        loss, found = self._loss_of.loss({name: torch.from_numpy(column) for name, column in rows.items()})
        return [one.numpy() for one in torch.autograd.grad(loss, leaves)], found


class _Given:
    """Answers as a network does, with outputs that are known already."""

    outputs: tuple[Any, ...] = ()

    def __call__(self, _obs: Any) -> tuple[Any, ...]:
        return self.outputs
