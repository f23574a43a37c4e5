"""PPO's fast twin: the loss of a minibatch differentiated by hand, and each row evaluated once where that is enough.

Derived from the text of `algorithms.ppo.PPO`. On some dozens of rows autograd takes longer for the loss than
both ways through a small network take, because each of its sixty steps costs microseconds whatever its size; here it
is twenty array operations. On a GPU, where launching costs more than computing, autograd's step is recorded instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mlxe_async.algorithms.interface import Clock, Metrics, Rows
from mlxe_async.algorithms.ppo import PPO
from mlxe_async.fast.quick import (
    KNOWN,
    Quick,
    RecordedLoss,
    acting,
    as_columns,
    clip_gradient,
    quick_of,
    shown,
    why_not_plain,
)
from mlxe_async.fast.sequences import Sequences
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
MEASURES = ("policy_loss", "value_loss", "entropy", "explained_variance")


class Measured(NamedTuple):
    """Measurements of a minibatch."""

    policy_loss: float
    value_loss: float
    entropy: float
    explained_variance: float
    log_ratio: Floats
    """log pi - log mu of its rows (M,); 0 in those that do not count."""
    rows: int
    """Number of those that do."""


def gradient(
    logits: Floats,
    value: Floats,
    action: Array,
    behaviour_log_prob: Floats,
    advantage: Floats,
    target: Floats,
    valid: Floats | None = None,
    *,
    clip: float,
    value_coefficient: float,
    entropy: float,
) -> tuple[tuple[Floats, Floats], Measured]:
    """Of the clipped surrogate (normalised advantages), half the squared error of the values, and the entropy.

    Args:
        logits: (M, A).
        value: (M, 1).
        action: (M,), integers.
        behaviour_log_prob: (M,).
        advantage: (M,), as it is.
        target: of the values (M,).
        valid: 1 where a row counts, else 0 (M,); None: all do.
        clip: see `PPOSettings`, as the other two.
        value_coefficient: weight of the values' loss.
        entropy: weight of the entropy.

    Returns:
        The gradients of the total loss by logits (M, A) and value (M, 1), 0 in rows that do not count; and what was
        measured.
    """
    rows = len(action) if valid is None else int(np.add.reduce(valid))
    others = None
    if together.are_several():
        others = together.give_moments(advantage if valid is None else advantage[valid > 0])
    taken = action * len(action)  # of the numbers (A, M), one after the other
    taken += np.arange(len(action))
    log_probs, probs = categorical.by_action(logits)
    log_ratio = log_probs.reshape(-1).take(taken)
    log_ratio -= behaviour_log_prob
    error = value[:, 0] - target
    if valid is not None:
        log_ratio *= valid
        error *= valid
    ratio = np.exp(log_ratio)
    clipped = np.minimum(np.maximum(ratio, np.float32(1 - clip)), np.float32(1 + clip))
    row_entropy = -np.add.reduce(probs * log_probs)
    total = np.add.reduce(advantage) if valid is None else advantage.dot(valid)
    mean, unexplained = (total / np.float32(rows), None) if others is None else map(np.float32, others())
    centred = advantage - mean
    if valid is not None:
        centred *= valid
    unexplained = centred.dot(centred) / np.float32(rows) if unexplained is None else unexplained
    centred /= np.sqrt(unexplained) + np.float32(1e-8)
    gain, bounded = ratio * centred, clipped * centred
    # Within the bounds both are the same number; beyond them only what is smaller still has a slope.
    by_log_prob = gain * (gain <= bounded)  # `where` takes four times as long
    by_log_prob *= np.float32(-1 / rows)
    share = np.float32(entropy / rows)
    by_logits = log_probs + row_entropy
    by_logits *= share if valid is None else share * valid
    by_logits -= by_log_prob
    by_logits *= probs
    by_logits.reshape(-1)[taken] += by_log_prob
    entropies = np.add.reduce(row_entropy) if valid is None else row_entropy.dot(valid)
    measured = Measured(
        -float(np.add.reduce(np.minimum(gain, bounded))) / rows,
        0.5 * float(error.dot(error)) / rows,
        float(entropies) / rows,
        metrics.explained(float(unexplained), target, None if valid is None else valid / np.float32(rows)),
        log_ratio,
        rows,
    )
    error *= np.float32(value_coefficient / rows)
    return (by_logits.T, error[:, None]), measured


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
        s, optimiser, measured = self._ppo.settings, self._ppo.optimiser, list[Measured]()
        if s.minibatches == "sequences":
            steps = self._of_sequences(batch, quick)
        else:
            steps = (self._minibatch(rows, quick) for rows in self._shuffled(self._with_advantages(batch, quick)))
        for found in steps:
            measured.append(found)
            if s.max_kl and correction.is_beyond(float(_approximate_kl(found.log_ratio).sum()) / found.rows, s.max_kl):
                break
            together.gradient(optimiser.gradient.numpy())
            clip_gradient(optimiser.gradient.numpy(), s.max_gradient_norm)
            optimiser.step(rate)
        return _means(measured, s.clip) | {"minibatches": len(measured)}

    def _of_sequences(self, batch: Rows, quick: Quick) -> Iterator[Measured]:
        """The gradients of the losses of whole sequences, by one evaluation of each row: values make advantages."""
        s = self._ppo.settings
        whole = Sequences(batch, self._shown, s.discount, s.gae_lambda)
        for piece in itertools.chain.from_iterable(whole.pieces(s.minibatch) for _ in range(s.epochs)):
            outputs, rows = quick.forward(piece.obs, piece.after), len(piece.obs)
            logits, value = (outputs[head] for head in HEADS)
            advantage, target = piece.advantages(value[:rows, 0], value[rows:, 0])
            known = (piece.action, piece.log_prob, advantage, target, piece.valid)
            found, measured = self._gradient(logits[:rows], value[:rows], *known)
            quick.backward(dict(zip(HEADS, found, strict=True)), fresh=True)
            yield measured

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
        quick.backward(dict(zip(HEADS, found, strict=True)), fresh=True)
        return measured

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
            pieces = (rollouts.columns(batch, s.minibatch) for _ in range(s.epochs))
            minibatches: Iterator[Any] = (self._tensors(piece) for one in pieces for piece in one)
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
    log_ratio, sizes = (np.concatenate([one.log_ratio for one in measured]), [one.rows for one in measured])
    lengths = np.array([len(one.log_ratio) for one in measured])
    first = np.cumsum(lengths) - lengths
    rows = (_approximate_kl(log_ratio), np.abs(np.expm1(log_ratio)) > clip)
    kl, clipped = (float((np.add.reduceat(one, first, dtype=np.float64) / sizes).mean()) for one in rows)
    means = {name: float(np.mean([getattr(one, name) for one in measured])) for name in MEASURES}
    explained = means.pop("explained_variance")
    return means | {"approximate_kl": kl, "clipped_share": clipped, "explained_variance": explained}
