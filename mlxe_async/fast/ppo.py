"""PPO's fast twin: the loss of a minibatch differentiated by hand, and each row evaluated once where that is enough.

Derived from the text of `algorithms.ppo.PPO`. On some dozens of rows autograd takes longer for the loss than
both ways through a small network take, because each of its sixty steps costs microseconds whatever its size; here it
is twenty array operations. On a GPU, where launching costs more than computing, autograd's step is recorded instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from mlxe_async.algorithms.interface import Clock, Metrics, Rows
from mlxe_async.algorithms.ppo import PPO
from mlxe_async.fast.quick import KNOWN, Quick, RecordedLoss, acting, as_columns, quick_of, shown, why_not_plain
from mlxe_async.maths import (
    categorical,
    correction,
    gradients,
    metrics,
    returns,
    reward_scaling,
    rollouts,
    together,
)
from mlxe_async.networks import Floats
from mlxe_async.rows import Array

HEADS = ("actor", "critic")
COLUMNS = ("log_prob", "action")
UNKNOWN = ("ends", "ended", "missing")
"""`rollouts.unknown` tells these, as columns."""
LEARNED = ("obs", "next_obs", "reward", "valid", *COLUMNS, *UNKNOWN)
"""The columns that a piece of whole sequences is learned from."""
MEASURES = ("policy_loss", "value_loss", "entropy", "explained_variance")
Measured = tuple[float, float, float, float, Floats, Floats]
"""Of a minibatch: the four of `MEASURES`, log pi (M,) and log mu (M,)."""


def gradient(
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
) -> tuple[tuple[Floats, Floats], tuple[float, float, float, float, Floats]]:
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
        The gradients of the total loss by logits (M, A) and value (M, 1); and the four of `MEASURES`, and the
        log-probabilities (M,) of the actions.
    """
    rows, taken = len(action), (action, np.arange(len(action)))
    others = together.give_moments(advantage) if together.are_several() else None
    log_probs, probs = categorical.by_action(logits)
    log_prob = log_probs[taken]
    ratio = np.exp(log_prob - behaviour_log_prob)
    clipped = np.minimum(np.maximum(ratio, np.float32(1 - clip)), np.float32(1 + clip))
    surprise = probs * log_probs
    row_entropy = -surprise.sum(0)
    by_logits = (surprise + probs * row_entropy) * np.float32(entropy / rows)
    error = value[:, 0] - target
    by_value = error[:, None] * np.float32(value_coefficient / rows)
    if others is None:
        centred = advantage - _mean(advantage)
        unexplained = _mean(np.square(centred))
    else:
        mean, unexplained = map(np.float32, others())
        centred = advantage - mean
    normalised = centred / (np.sqrt(unexplained) + np.float32(1e-8))
    gain, bounded = ratio * normalised, clipped * normalised
    # Within the bounds both are the same number; beyond them only what is smaller still has a slope.
    by_log_prob = np.where(gain <= bounded, gain, np.float32(0)) * np.float32(-1 / rows)
    by_logits -= probs * by_log_prob
    by_logits[taken] += by_log_prob
    losses = (
        -float(_mean(np.minimum(gain, bounded))),
        0.5 * float(error.dot(error)) / rows,
        float(_mean(row_entropy)),
        metrics.explained(float(unexplained), target),
    )
    return (by_logits.T, by_value), (*losses, log_prob)


def _mean(numbers: Floats) -> np.float32:
    """Return what `numbers.mean()` is, to the last bit, in a third of its time."""
    total: np.float32 = np.add.reduce(numbers)
    return total / np.float32(len(numbers))


def why_not(ppo: PPO) -> str:
    """Why these settings and spaces are left to the file; "" if they are those that the twin was derived for."""
    s, spaces = ppo.settings, ppo.spaces
    if spaces.action_kind != "discrete" or spaces.masked:
        return "its actions are not one choice of all"
    if any(one != reward_scaling.CARRY for one in ppo.carry):
        return "its executors carry something from step to step"
    off = {"annealed": (), "kl_penalty_target": 0.0, "value_clip": 0.0, "value_epochs": 0}
    if own := [name for name, value in off.items() if getattr(s, name) != value]:
        return f"the fast twin of ppo knows no {own[0]}"
    if ppo.see.convolutions and ppo.see.numbers:
        return "parts of its observations are pictures"
    parts = (part for one in _networks(ppo) for part in one.modules())
    return why_not_plain([*parts], KNOWN)


def _networks(ppo: PPO) -> tuple[Any, ...]:
    return ppo.see, ppo.common, ppo.actor, ppo.critic


class PPOTwin:
    """Does what `PPO.update` does.

    Args:
        ppo: the very built-in class; what it learned lies with it.
    """

    def __init__(self, ppo: PPO) -> None:
        self._ppo = ppo
        self.attach()

    def attach(self) -> None:
        """Work on the network that the algorithm learns now."""
        ppo = self._ppo
        self._worked_on = (*_networks(ppo), ppo.optimiser.gradient)
        self._quick = quick_of(ppo.device, ppo.see, {"actor": ppo.actor, "critic": ppo.critic}, ppo.common)
        self._recorded = RecordedLoss(ppo.optimiser.gradient, ppo.loss)
        s = ppo.settings
        self._gradient = partial(gradient, clip=s.clip, value_coefficient=s.value_coefficient, entropy=s.entropy)

    @property
    def attached(self) -> bool:
        """True if it is still that one."""
        now = (*_networks(self._ppo), self._ppo.optimiser.gradient)
        return all(one is other for one, other in zip(self._worked_on, now, strict=True))

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, None]:
        """As `PPO.update`."""
        ppo = self._ppo
        ppo.now, batch = ppo.annealed(clock), ppo.scaled(batch)
        rate = ppo.now["learning_rate"]
        found = self._by_tensors(batch, rate) if self._quick is None else self._by_arrays(batch, rate, self._quick)
        ppo.count(batch)
        return found | {"learning_rate": rate}, None

    def log_probs(self, vector: Floats, obs: Array) -> tuple[Array, float]:
        """Log pi (N, A) of published weights (P,), and the largest logit."""
        import torch

        with torch.no_grad():
            policy: Any = acting(self._ppo, vector).policy(torch.from_numpy(np.ascontiguousarray(obs)))
        logits = policy.logits.numpy()
        return categorical.log_softmax(logits), float(np.abs(logits).max())

    # -- on the CPU: by arrays --

    def _by_arrays(self, batch: Rows, rate: float, quick: Quick) -> Metrics:
        s, measured = self._ppo.settings, []
        if s.minibatches == "sequences":
            steps = (self._at_once(piece, quick) for piece in self._sequences(batch))
        else:
            steps = (self._minibatch(rows, quick) for rows in self._shuffled(self._with_advantages(batch, quick)))
        for found in steps:
            measured.append(found)
            if s.max_kl and correction.is_beyond(_approximate_kl(found[-2] - found[-1]).mean(), s.max_kl):
                break
            together.gradient(self._ppo.optimiser.gradient.numpy())
            gradients.clip_grad_norm_(self._ppo.optimiser.gradient, s.max_gradient_norm)
            self._ppo.optimiser.step(rate)
        return _means(measured, s.clip) | {"minibatches": len(measured)}

    def _pieces(self, batch: Rows) -> Iterator[Rows]:
        for _ in range(self._ppo.settings.epochs):
            yield from rollouts.columns(batch, self._ppo.settings.minibatch)

    def _sequences(self, batch: Rows) -> Iterator[Rows]:
        """The same, with what follows from the rows alone found once for all of them."""
        known = {**batch, **dict(zip(UNKNOWN, rollouts.unknown(batch), strict=True))}
        return self._pieces({name: known[name] for name in LEARNED})

    def _shuffled(self, rows: Rows) -> Iterator[Rows]:
        count, s = len(rows["action"]), self._ppo.settings
        sizes = rollouts.pieces(count, s.minibatch)
        ends = np.cumsum(sizes)
        for _ in range(s.epochs):
            order = self._ppo.rng.permutation(count)
            gathered = {name: column.take(order, axis=0) for name, column in rows.items()}
            for end, size in zip(ends, sizes, strict=True):
                together.learn_from(size)
                yield {name: column[end - size : end] for name, column in gathered.items()}

    def _minibatch(self, rows: Rows, quick: Quick) -> Measured:
        """The gradient of the loss of a minibatch (M, ...), and what it measured."""
        outputs = quick.forward(rows["obs"])
        known = (rows[name] for name in ("action", "log_prob", "advantage", "target"))
        found, measured = self._gradient(*(outputs[head] for head in HEADS), *known)
        self._ppo.optimiser.zero_grad()
        quick.backward(dict(zip(HEADS, found, strict=True)))
        return *measured, rows["log_prob"]

    def _at_once(self, batch: Rows, quick: Quick) -> Measured:
        """The same of sequences (T, B, ...), by one evaluation: its values make the advantages, its loss the step."""
        s, shape = self._ppo.settings, batch["valid"].shape
        ends, ended, missing = (batch[name] for name in UNKNOWN)
        outputs = quick.forward(self._shown(batch["obs"]), self._shown(batch["next_obs"][missing]))
        rows = batch["valid"].size
        value = outputs["critic"][:rows, 0].reshape(shape)
        next_value = rollouts.following(value, outputs["critic"][rows:, 0], missing)
        arrays = (batch["reward"], value, next_value, ended, ends)
        advantage = returns.generalised_advantage(*arrays, s.discount, s.gae_lambda)
        columns = {"advantage": advantage, "target": advantage + value} | {name: batch[name] for name in COLUMNS}
        known = as_columns({name: column.reshape(-1) for name, column in columns.items()})
        outputs, some = {head: outputs[head][:rows] for head in HEADS}, None
        if not batch["valid"].all():
            some = np.flatnonzero(batch["valid"])
            known, outputs = ({name: one.take(some, axis=0) for name, one in all_.items()} for all_ in (known, outputs))
        given = (known[name] for name in ("action", "log_prob", "advantage", "target"))
        found, measured = self._gradient(*(outputs[head] for head in HEADS), *given)
        back = dict(zip(HEADS, found, strict=True))
        if some is not None:
            back = {head: np.zeros((rows, one.shape[1]), np.float32) for head, one in back.items()}
            for head, one in zip(HEADS, found, strict=True):
                back[head][some] = one
        self._ppo.optimiser.zero_grad()
        quick.backward(back)
        return *measured, known["log_prob"]

    def _with_advantages(self, batch: Rows, quick: Quick) -> Rows:
        """As `PPO.with_advantages`, the columns alone that the loss needs."""
        seen, valid = self._shown(batch["obs"]), batch["valid"].astype(bool)
        after = self._shown(batch["next_obs"][rollouts.unknown(batch)[2]])
        rows = self._judged(batch, self._values(seen, quick).reshape(valid.shape), self._values(after, quick))
        return rows | as_columns({"obs": seen if valid.all() else seen[valid.reshape(-1)]})

    def _shown(self, obs: Array) -> Array:
        return shown(self._ppo.see, obs, self._ppo.spaces)

    def _judged(self, batch: Rows, value: Array, after: Array) -> Rows:
        """The valid rows' columns but for what the network sees, by the values of observations and of last ones."""
        s, (ends, ended, missing) = self._ppo.settings, rollouts.unknown(batch)
        arrays = (batch["reward"], value, rollouts.following(value, after, missing), ended, ends)
        advantage = returns.generalised_advantage(*arrays, s.discount, s.gae_lambda)
        columns = {"advantage": advantage, "target": advantage + value} | {name: batch[name] for name in COLUMNS}
        valid = batch["valid"].astype(bool)
        return as_columns({name: column[valid] for name, column in columns.items()})

    def _values(self, seen: Array, quick: Quick) -> Array:
        """V (N,) of what is shown (N, ...), in double precision for the sums to come."""
        return quick.outputs(seen, ("critic",))[0][:, 0].astype(np.float64)

    # -- on a GPU: by tensors --

    def _by_tensors(self, batch: Rows, rate: float) -> Metrics:
        ppo, s, measured = self._ppo, self._ppo.settings, []
        if s.minibatches == "sequences":
            minibatches: Iterator[Any] = (self._tensors(piece) for piece in self._pieces(batch))
        else:
            minibatches = rollouts.shuffled(self._tensors(batch), s.minibatch, s.epochs, ppo.rng)
        for rows in minibatches:
            found = self._recorded(rows)
            measured.append(found)
            if s.max_kl and correction.is_beyond(found["approximate_kl"], s.max_kl):
                break
            gradients.clip_grad_norm_(self._ppo.optimiser.gradient, s.max_gradient_norm)
            ppo.optimiser.step(rate)
        return metrics.means(measured) | {"minibatches": len(measured)}

    def _tensors(self, batch: Rows) -> dict[str, Any]:
        """As `PPO.with_advantages`, observations uploaded once, and the columns alone that the loss needs."""
        import torch

        ppo, valid = self._ppo, batch["valid"].astype(bool)
        obs = ppo.tensors({"obs": batch["obs"].reshape(-1, *ppo.spaces.observation_shape)})["obs"]
        after = ppo.value_of(batch["next_obs"][rollouts.unknown(batch)[2]])
        with torch.no_grad():
            found = ppo.critic(ppo.common(ppo.see(obs))).reshape(valid.shape)
        value = found.numpy(force=True).astype(np.float64)
        rows = ppo.tensors(self._judged(batch, value, after) | as_columns({"value": value[valid]}))
        return rows | {"obs": obs if valid.all() else obs[torch.as_tensor(valid.reshape(-1), device=obs.device)]}


def _approximate_kl(log_ratio: Floats) -> Floats:
    """Of each row; see `maths.correction.approximate_kl`."""
    return np.asarray(np.expm1(log_ratio) - log_ratio)


def _means(measured: Sequence[Measured], clip: float) -> Metrics:
    """Over the minibatches: the losses, the approximate KL, and the share of the ratios that was clipped."""
    *measures, log_prob, behaviour = zip(*measured, strict=True)
    sizes = np.array([len(one) for one in log_prob])
    log_ratio = np.concatenate(log_prob) - np.concatenate(behaviour)
    first = np.cumsum(sizes) - sizes
    rows = (_approximate_kl(log_ratio), np.abs(np.expm1(log_ratio)) > clip)
    kl, clipped = (float((np.add.reduceat(one, first, dtype=np.float64) / sizes).mean()) for one in rows)
    means = {name: float(np.mean(one)) for name, one in zip(MEASURES, measures, strict=True)}
    explained = means.pop("explained_variance")
    return means | {"approximate_kl": kl, "clipped_share": clipped, "explained_variance": explained}
