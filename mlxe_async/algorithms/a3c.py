"""A3C as MLxE uses it, made sound: an actor and a critic that replay recent episodes, corrected for their age.

Papers: Mnih et al. 2016 (actor-critic loss with entropy), Espeholt et al. 2018 (V-trace), and the public MLxE scripts
(replay of whole episodes, a minimum of updates per episode, returns counted from the end). Where we differ from MLxE:
replayed rows are weighted by pi/mu of the stored behaviour, truncation bootstraps, and the learning rate really decays.

What do I change to make another loss: `policy_loss`, `value_loss`, `entropy` (added up in `_differentiate`); another
return: `derive`; another correction of replayed rows: `_targets`; another exploration: `act`, with its log-probability.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from mlxe_async.algorithms.interface import Clock, Metrics, Priorities, Rows, flat_observations
from mlxe_async.maths import categorical, correction, gradients, priorities, returns, symmetry, vtrace
from mlxe_async.networks import Activation, Floats, Network, NumpyNetwork, TorchNetwork
from mlxe_async.optimisers import FlatOptimiser, OptimiserKind
from mlxe_async.rows import Array, Column, Spaces

if TYPE_CHECKING:
    import torch

Sizes = tuple[Annotated[int, Field(ge=1, le=65536)], ...]
Scale = Literal["return", "survival"]
METRICS = ("loss", "value_loss", "entropy", "gradient_norm", "effective_share")


class A3CSettings(BaseModel):
    """The fields of `[algorithm]` beside `name = "a3c"`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    common: Sizes = Field((), description="Layers that actor and critic share; more let them learn from each other.")
    policy: Sizes = Field((64, 64), description="The actor's own layers; more represent finer policies, but slower.")
    value: Sizes = Field((64, 64), description="The critic's own layers; more represent finer values, but slower.")
    activation: Activation = Field("tanh", description="tanh gives smooth policies, relu sharper ones.")
    layer_norm: bool = Field(False, description="Normalise each layer: steadier when inputs differ much in size.")
    input_scale: tuple[float, ...] = Field((1.0,), description="Factor per input; raising one makes it matter sooner.")
    discount: float = Field(0.99, ge=0, le=1, description="Higher looks further ahead, with noisier returns.")
    returns: Literal["n_step", "steps_to_end"] = Field("n_step", description="steps_to_end: up to the end, as MLxE.")
    n_step: int = Field(5, ge=1, le=100_000, description="Higher trusts rewards more and the critic less.")
    value_scale: Scale = Field("return", description="survival: sigmoid(V) = 1 - E discount^T, T steps to failure.")
    return_scale: float = Field(1.0, gt=0, description="Factor for rewards; higher drowns the entropy bonus.")
    correction: Literal["vtrace", "clipped", "none"] = Field("clipped", description="clipped: min(pi/mu, ratio_clip).")
    ratio_clip: float = Field(1.0, gt=0, description="Largest weight of a row; higher has less bias, more variance.")
    value_coefficient: float = Field(1.0, ge=0, description="Higher favours the critic in layers that are shared.")
    entropy: float = Field(0.01, ge=0, description="Higher keeps the policy random for longer.")
    optimiser: OptimiserKind = Field("radam", description="radam starts more carefully than adam.")
    learning_rate: float = Field(1e-3, gt=0, description="Higher learns faster, until it forgets or diverges.")
    learning_rate_decay: float = Field(0.998, gt=0, le=1, description="Factor per finished episode; 1 never decays.")
    learning_rate_min: float = Field(1e-6, ge=0, description="Higher keeps late learning faster.")
    max_gradient_norm: float = Field(0.0, ge=0, description="Longer gradients are cut to this; 0 never cuts.")
    batch: int = Field(256, ge=1, description="Rows per update; more are smoother and slower.")
    min_updates: int = Field(64, ge=0, description="Updates per finished episode; more replay every row more often.")
    sampling: Literal["uniform", "td"] = Field("uniform", description="td: rows with large TD errors come more often.")
    priority_exponent: float = Field(0.4, ge=0, le=1, description="Higher samples more unevenly.")
    priority_correction: float = Field(1.0, ge=0, le=1, description="Higher undoes more of the sampling's bias.")
    mirror: bool = Field(True, description="Mirror half of each batch if the task declares a symmetry.")
    average: float = Field(0.0, ge=0, le=1, description="Publish a running average; higher follows faster, 0: none.")

    @model_validator(mode="after")
    def _fit_together(self) -> A3CSettings:
        if self.correction == "vtrace" and (self.returns != "n_step" or self.n_step < 2):
            raise ValueError('correction = "vtrace" makes its own targets: it needs returns = "n_step", n_step >= 2')
        if self.value_scale == "survival" and self.returns != "n_step":
            raise ValueError('value_scale = "survival" needs returns = "n_step": it has one discount')
        return self


def policy_loss(log_prob: torch.Tensor, weighted_advantage: torch.Tensor) -> torch.Tensor:
    """-log pi(a|s) * weight * advantage per row: raise what went better than expected. The weight has no gradient."""
    return -log_prob * weighted_advantage.detach()


def value_loss(value: torch.Tensor, target: torch.Tensor, scale: Scale) -> torch.Tensor:
    """Squared error per row, or cross-entropy if `value` is the logit of a survival value in [0, 1]."""
    if scale == "return":
        return 0.5 * (target.detach() - value).square()
    return value.relu() - value * target.detach() + (-value.abs()).exp().log1p()


def entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """-sum pi log pi per row of log-probabilities (..., A)."""
    return -(log_probs.exp() * log_probs).sum(-1)


class A3C:
    """Acts by a softmax over the actor's outputs and learns by `batch` rows at a time from replay."""

    Settings: ClassVar[type[BaseModel]] = A3CSettings
    memory: ClassVar[Literal["replay", "rollouts"]] = "replay"
    extra_columns: tuple[Column, ...] = ()
    derived_columns: tuple[Column, ...] = ()

    def __init__(
        self, settings: A3CSettings, spaces: Spaces, *, seed: int, learns: bool, threads: int = 1, device: str = "cpu"
    ) -> None:
        if spaces.actions is None:
            raise ValueError("algorithm.name: a3c needs a task with discrete actions")
        self.settings, self.spaces, s = settings, spaces, settings
        heads = {"policy": (*s.policy, spaces.actions), "value": (*s.value, 1)}
        inputs, shape = int(np.prod(spaces.observation_shape)), (s.common, heads, s.activation)
        self.network = Network(inputs, *shape, s.input_scale, s.layer_norm)
        self.parameters = self.network.parameters
        self.window, self._successor = (s.n_step, "next_obs") if s.correction == "vtrace" else (1, "cut_obs")
        if self.window == 1:
            cut = Column("cut_obs", spaces.observation_dtype, spaces.observation_shape)
            self.derived_columns = (Column("partial", "<f4"), Column("coefficient", "<f4"), cut)
        self.batch_rows = s.batch
        self.priorities = Priorities(s.sampling, s.priority_exponent, s.priority_correction)
        self.load(initial := self.network.initial([seed, 0]))
        if learns:
            import torch

            torch.set_num_threads(threads)
            self._torch, self._device = torch, device
            self._rng = np.random.default_rng([seed, 1])
            self.set_weights(initial)

    def load(self, flat: Floats) -> None:
        """Act with these weights from now on."""
        self._acting = NumpyNetwork(self.network, flat)
        self._versions: tuple[Floats, NumpyNetwork] | None = None

    def act(self, obs: Array, rng: np.random.Generator) -> Rows:
        """Sample from the softmax of the actor's outputs, with its log-probability."""
        log_probs = self._log_probs(obs)
        action = categorical.sample(log_probs, rng)
        return {"action": action, "log_prob": categorical.of_action(log_probs, action)}

    def greedy(self, obs: Array) -> Array:
        """The most probable action."""
        return np.asarray(self._log_probs(obs).argmax(-1))

    def greedy_many(self, flats: Floats, obs: Array) -> Array:
        """The most probable actions of several versions."""
        if self._versions is None or self._versions[0] is not flats:
            self._versions = (flats, NumpyNetwork(self.network, flats))
        return np.asarray(self._versions[1]("policy", flat_observations(obs, self.spaces)).argmax(-1))

    def behaviour_log_prob(self, obs: Array, action: Array) -> Floats:
        """The log-probability that `act` stores."""
        return categorical.of_action(self._log_probs(obs), action)

    def _log_probs(self, obs: Array) -> Floats:
        return categorical.log_softmax(self._acting("policy", flat_observations(obs, self.spaces)))

    def derive(self, segment: Rows) -> Rows:
        """Each row's target as partial + coefficient * V(cut_obs), so that it can be replayed alone."""
        if self.window > 1:
            return {}
        s, ended, reward = self.settings, bool(segment["terminated"][-1]), self._scaled(segment["reward"])
        to_end = s.returns == "steps_to_end"
        split = returns.steps_to_end(reward, ended) if to_end else returns.n_step(reward, ended, s.discount, s.n_step)
        known = {"partial": split.partial.astype(np.float32), "coefficient": split.coefficient.astype(np.float32)}
        return known | {"cut_obs": segment["next_obs"][split.cut]}

    def _scaled(self, reward: Array) -> Array:
        s = self.settings
        if s.value_scale == "survival":  # the sum of (1 - discount) discount^i over T steps is 1 - discount^T
            return np.full(reward.shape, 1 - s.discount, np.float32)
        return reward * s.return_scale

    def updates_due(self, *, rows: int, new_rows: int, new_segments: int) -> int:  # noqa: ARG002 - segments count here
        """`min_updates` per new segment, or more if the memory has more batches than that."""
        due = max(self.settings.min_updates * new_segments, rows // self.settings.batch + 1)
        return due if new_segments and rows else 0

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, Floats | None]:
        """One step down the gradient of policy loss + value loss - entropy, averaged over the batch."""
        measured = self._differentiate(batch)
        self._apply(clock)
        return measured

    def _differentiate(self, batch: Rows) -> tuple[Metrics, Floats | None]:
        s, rows = self.settings, self._tensors(batch)
        logits, value = self._learned(rows["obs"], "policy", "value")
        log_probs, value = logits.log_softmax(-1), value[:, 0]
        log_prob = log_probs.gather(-1, rows["action"][:, None])[:, 0]
        ratio = correction.ratio(log_prob, rows["log_prob"])
        target, advantage = self._targets(rows, ratio, self._value(value.detach()))
        critic, chance = value_loss(value, target, s.value_scale), entropy(log_probs)
        losses = policy_loss(log_prob, advantage) + s.value_coefficient * critic - s.entropy * chance
        weight = rows["weight"] / rows["weight"].sum()
        loss = (losses * weight).sum()
        self._learned.gradient.zero_()
        self._torch.autograd.backward(loss)
        share = correction.effective_share(correction.clipped(ratio, s.ratio_clip))
        norm = gradients.shorten(self._learned.gradient, s.max_gradient_norm)
        numbers = (loss, (critic * weight).sum(), (chance * weight).sum(), norm, share)
        metrics = dict(zip(METRICS, self._torch.stack(numbers).tolist(), strict=True))
        if s.sampling == "uniform":
            return metrics, None
        td_error = (target - self._value(value.detach())).reshape(self.window, -1)[0]  # of a window its first row
        return metrics, priorities.td_priority(td_error.numpy(force=True)).astype(np.float32)

    def _targets(self, rows: dict[str, Any], ratio: torch.Tensor, value: torch.Tensor) -> tuple[Any, Any]:
        """The critic's target and the actor's advantage, already weighted; all (rows,), no gradient."""
        s = self.settings
        with self._torch.no_grad():
            (following,) = self._learned(rows["next_obs"], "value")
            next_value = self._value(following[:, 0])
            if s.correction != "vtrace":
                target = rows["partial"] + rows["coefficient"] * next_value
                weight = correction.clipped(ratio, s.ratio_clip) if s.correction == "clipped" else 1.0
                return target, weight * (target - value)
            arrays = (ratio, rows["reward"], value, next_value, rows["discount"], rows["carry"])
            windows = (array.reshape(self.window, -1) for array in arrays)
            target, advantage = vtrace.vtrace(*windows, rho_clip=s.ratio_clip)
            return target.reshape(-1), advantage.reshape(-1)

    def _value(self, value: torch.Tensor) -> torch.Tensor:
        return value.sigmoid() if self.settings.value_scale == "survival" else value

    def _tensors(self, batch: Rows) -> dict[str, torch.Tensor]:
        """The columns that the losses need, half of the samples mirrored, time (if any) merged into the rows."""
        s, action = self.settings, batch["action"]
        obs, next_obs = (flat_observations(batch[name], self.spaces) for name in ("obs", self._successor))
        if s.mirror and self.spaces.symmetry:
            flipped: Array = self._rng.random(action.shape[-1:]) < 0.5  # a window is mirrored as a whole
            obs, next_obs, action = symmetry.mirror(obs, next_obs, action, flipped, self.spaces.symmetry)
        rows = {"obs": obs, "next_obs": next_obs, "action": action, "log_prob": batch["log_prob"]}
        rows["weight"] = batch.get("weight", np.ones(action.shape[-1]))
        if self.window == 1:
            rows |= {name: batch[name] for name in ("partial", "coefficient")}
        else:
            valid, ended, stopped = (batch[name].astype(bool) for name in ("valid", "terminated", "truncated"))
            rows |= {"weight": rows["weight"] * valid, "reward": self._scaled(batch["reward"])}
            rows |= {"discount": s.discount * ~ended, "carry": vtrace.carry_mask(valid, ended, stopped)}
        return self._learned.tensors({n: c.reshape(-1, *c.shape[action.ndim :]) for n, c in rows.items()})

    def _apply(self, clock: Clock) -> None:
        s = self.settings
        self._optimiser.step(max(s.learning_rate_min, s.learning_rate * s.learning_rate_decay**clock.episodes))
        self._average.lerp_(self._learned.flat, s.average or 1.0)

    def weights(self) -> Floats:
        """The running average, or what the optimiser works on."""
        return np.array(self._average.numpy(force=True))

    def set_weights(self, flat: Floats) -> None:
        """Learn on from these weights; the optimiser's memory starts empty."""
        self._learned = TorchNetwork(self.network, flat, self._device)
        self._average = self._learned.flat.clone()
        self._optimiser = FlatOptimiser(self.settings.optimiser, self._learned.flat, self._learned.gradient, eps=1e-7)
