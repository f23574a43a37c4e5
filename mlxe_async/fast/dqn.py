"""DQN's fast twin: its loss differentiated by hand, its networks evaluated by numpy.

Derived from the text of `algorithms.dqn.DQN`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from mlxe_async.algorithms.dqn import DQN, DQNSettings
from mlxe_async.algorithms.interface import Clock, Metrics, Rows
from mlxe_async.algorithms.parts.exploration import mixture
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
from mlxe_async.fast.target_values import SELDOM, TargetValues
from mlxe_async.maths import gradients, metrics, together
from mlxe_async.networks import Floats
from mlxe_async.rows import Array

METRICS = ("loss", "value", "td_error")


def why_not(dqn: DQN) -> str:
    """Why updates are left to the file; "" if its twin knows all that the settings ask for."""
    for switch in ("dueling", "prioritised", "value_rescaling"):
        if getattr(dqn.settings, switch):
            return f"{switch} = true is not what the fast twin of dqn was derived from"
    return why_not_networks((dqn.learned, dqn.target))


def gradient_of(settings: DQNSettings) -> Callable[[Floats, Mapping[str, Array]], Any]:
    """DQN's loss, of all kinds.

    The function takes values (M, A), and the columns `next_q` and `choosing_q` (M, A), `action`, `partial`,
    `coefficient` and `weight` (M,). It gives the gradient by the values, and the loss, the mean value of the actions
    that were taken, and the mean distance from their targets.
    """
    survival, huber = settings.value_scale == "survival", settings.loss == "huber"

    def found(q: Floats, rows: Mapping[str, Array]) -> Any:
        count = np.arange(len(q))
        raw, best = q[count, rows["action"]], np.ascontiguousarray(rows["choosing_q"].T).argmax(0)
        value, following = (sigmoid(x) if survival else x for x in (raw, rows["next_q"][count, best]))
        target = rows["partial"] + rows["coefficient"] * following
        error = target - value
        distance = np.abs(error)
        losses: Array
        slope: Array
        if survival:
            losses, slope = cross_entropy(raw, target), error
        elif huber:
            losses, slope = np.where(distance <= 1, error * error, 2 * distance - 1) / 2, np.clip(error, -1, 1)
        else:
            losses, slope = error * error / 2, error
        by_q = np.zeros_like(q)
        by_q[count, rows["action"]] = slope * rows["weight"] * np.float32(-1 / len(q))
        return (by_q,), (float(losses.dot(rows["weight"])) / len(q), float(value.mean()), float(distance.mean()))

    return found


class DQNTwin:
    """Does what `DQN.update` does.

    Args:
        dqn: the very built-in class; what it learned lies with it.
    """

    def __init__(self, dqn: DQN) -> None:
        self._dqn, self._by_hand = dqn, gradient_of(dqn.settings)
        self.attach()

    def attach(self) -> None:
        """Work on the networks that the algorithm learns now."""
        dqn = self._dqn
        self._worked_on = (dqn.network, dqn.learned, dqn.target, dqn.optimiser.gradient)
        self._quick, self._target = (
            quick_of(dqn.device, one.see, {"q": cast("Any", one.q)}) for one in (dqn.learned, dqn.target)
        )
        self.target_values = self._kept_values()
        self._recorded = RecordedLoss(dqn.optimiser.gradient, lambda rows: dqn.loss(rows)[::2])

    def _kept_values(self) -> TargetValues | None:
        """Keep the target network's values where pictures go through it and it seldom moves."""
        dqn, s, target = self._dqn, self._dqn.settings, self._target
        see, is_mirrored = dqn.target.see, s.mirror and dqn.spaces.symmetry is not None
        if target is None or not see.convolutions or is_mirrored or s.target_every < SELDOM:
            return None

        def evaluate(following: Array) -> Floats:
            return target.outputs(shown(see, following, dqn.spaces), ("q",))[0]

        return TargetValues([*dqn.target.parameters()], evaluate, cast("int", dqn.spaces.actions))

    @property
    def attached(self) -> bool:
        """True if they are still these."""
        dqn = self._dqn
        now = (dqn.network, dqn.learned, dqn.target, dqn.optimiser.gradient)
        return all(one is other for one, other in zip(self._worked_on, now, strict=True))

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, None]:
        """As `DQN.update`."""
        dqn, s, columns = self._dqn, self._dqn.settings, as_columns(self._dqn.columns(batch))
        if clock.updates % s.target_every == 0:
            polyak(dqn.target, dqn.learned, s.target_rate)
        if self._quick is None or self._target is None:
            found: dict[str, Any] = self._recorded(dqn.tensors(columns))
        else:
            found = self._by_arrays(columns, self._quick, self._target)
        if dqn.device == "cpu":
            together.gradient(dqn.optimiser.gradient.numpy())
        norm = gradients.clip_grad_norm_(dqn.optimiser.gradient, s.max_gradient_norm)
        told = metrics.as_floats(found | {"gradient_norm": norm})
        rate = dqn.rate(clock)
        dqn.optimiser.step(rate)
        dqn.publish(clock)
        return told | {"epsilon": dqn.epsilon.item(), "learning_rate": rate}, None

    def log_probs(self, vector: Floats, obs: Array) -> tuple[Array, float]:
        """Log mu (N, A) of published weights (P,) and epsilon, and the largest logit."""
        import torch

        one: Any = acting(self._dqn, vector)
        with torch.no_grad():
            logits = one.network(torch.from_numpy(np.ascontiguousarray(obs))) / one.settings.temperature
        log_probs = logits.log_softmax(-1).numpy()
        return mixture(log_probs, one.settings.behaviour, one.epsilon.item()), float(logits.abs().max())

    def _by_arrays(self, rows: dict[str, Array], quick: Quick, target: Quick) -> dict[str, Any]:
        """Put the gradient of the loss in place; returns what it measured."""
        obs, following = (shown(self._dqn.learned.see, rows[name], self._dqn.spaces) for name in ("obs", "cut_obs"))
        next_q = None if self.target_values is None else self.target_values.take()
        if next_q is None:
            (next_q,) = target.outputs(following, ("q",))
        choosing_q = quick.outputs(following, ("q",))[0] if self._dqn.settings.double else next_q
        values = quick.forward(obs)["q"]
        (by_q,), measured = self._by_hand(values, rows | {"next_q": next_q, "choosing_q": choosing_q})
        quick.backward({"q": by_q}, fresh=True)
        return dict(zip(METRICS, measured, strict=True))
