"""PPO: a rollout is learned from in several epochs, by a loss that gains nothing from moving far from its behaviour.

Papers: Schulman et al. 2017 (clipped surrogate, eq. 7), Schulman et al. 2016 (generalised advantages, eq. 16).
Where we differ: the ratio is taken to the stored behaviour, so that rollouts of a slightly older version are sound
too; truncated and cut episodes go on with the value of their true last observation; the learning rate falls with
environment steps; the running normalisation of observations travels with the weights under one version.

What do I change to make ...
  another loss                `policy_loss`, `value_loss` or `entropy`: pure functions, added up in `_loss`.
  a clipped value loss        `value_loss`; the value before the update is `target - advantage` in `_prepare`.
  an adaptive KL penalty      add `coefficient * approximate_kl(...)` to `total` in `_loss`, adapt it in `update`.
  other advantages (V-trace)  the one line with `generalised_advantage` in `_prepare`.
  A2C                         no code: epochs = 1, minibatch as large as a rollout, discount and gae_lambda to taste.
  continuous actions          `act`, `_log_probs` and the first lines of `_loss`: all that knows of a softmax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from mlxe_async.algorithms.interface import Clock, Metrics, Priorities, Rows, flat_observations
from mlxe_async.maths import annealing, categorical, normaliser, returns
from mlxe_async.networks import Activation, Floats, Network, NumpyNetwork, TorchNetwork, parameter_count, unflatten
from mlxe_async.rows import Array, Column, Spaces

if TYPE_CHECKING:
    import torch

Sizes = tuple[Annotated[int, Field(ge=1, le=65536)], ...]
METRICS = ("policy_loss", "value_loss", "entropy", "approximate_kl", "clipped_share")


class PPOSettings(BaseModel):
    """The fields of `[algorithm]` beside `name = "ppo"`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    common: Sizes = Field((), description="Layers that actor and critic share; more let them learn from each other.")
    policy: Sizes = Field((64, 64), description="The actor's own layers; more represent finer policies, but slower.")
    value: Sizes = Field((64, 64), description="The critic's own layers; more represent finer values, but slower.")
    activation: Activation = Field("tanh", description="tanh gives smooth policies, relu sharper ones.")
    normalise: bool = Field(True, description="Show the network (obs - mean) / deviation of what was seen so far.")
    discount: float = Field(0.99, ge=0, le=1, description="Higher looks further ahead, with noisier advantages.")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="Higher trusts rewards more and the critic less.")
    clip: float = Field(0.2, gt=0, le=10, description="Higher lets one update change a probability by more.")
    epochs: int = Field(10, ge=1, le=1000, description="Passes over each rollout; more learn more from it, and drift.")
    minibatch: int = Field(64, ge=1, description="Rows per step of the optimiser; more are smoother and fewer steps.")
    max_kl: float = Field(0.0, ge=0, description="An update ends early beyond this KL; higher moves more, 0: never.")
    value_coefficient: float = Field(0.5, ge=0, description="Higher favours the critic in layers that are shared.")
    entropy: float = Field(0.01, ge=0, description="Higher keeps the policy random for longer.")
    learning_rate: float = Field(1e-3, gt=0, description="Higher learns faster, until it forgets or diverges.")
    learning_rate_last: float = Field(1e-4, ge=0, description="Rate after anneal_steps; higher keeps learning faster.")
    anneal_steps: int = Field(500_000, ge=1, description="Environment steps until learning_rate_last; more fall slower.")
    max_gradient_norm: float = Field(0.5, ge=0, description="Longer gradients are cut to this; 0 never cuts.")


def policy_loss(
    log_prob: torch.Tensor, behaviour_log_prob: torch.Tensor, advantage: torch.Tensor, clip: float
) -> torch.Tensor:
    """Clipped surrogate, eq. 7, negated to be minimised. All (M,) -> ()."""
    ratio = (log_prob - behaviour_log_prob).exp()
    return -(ratio * advantage).minimum(ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def value_loss(value: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Half the mean squared error. Both (M,) -> (); the target has no gradient."""
    return 0.5 * (target.detach() - value).square().mean()


def entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """Mean of -sum pi log pi over rows of log-probabilities. (M, A) -> ()."""
    return -(log_probs.exp() * log_probs).sum(-1).mean()


def approximate_kl(log_prob: torch.Tensor, behaviour_log_prob: torch.Tensor) -> torch.Tensor:
    """KL(behaviour || policy) as mean((ratio - 1) - log ratio): unbiased, never negative. Both (M,) -> ()."""
    log_ratio = log_prob - behaviour_log_prob
    return (log_ratio.exp() - 1 - log_ratio).mean()


def normalised_advantage(advantage: torch.Tensor) -> torch.Tensor:
    """Mean 0 and deviation 1 within a minibatch, so that the step does not depend on the rewards' size. (M,)."""
    return (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)


def breaks(batch: Rows) -> Array:
    """Where nothing flows back from the next row (T, B): ends of episodes, cuts, gaps, and the last valid row."""
    ends: Array = (batch["terminated"] | batch["truncated"] | batch["cut"]).astype(bool)
    follows = batch["valid"][1:].astype(bool)  # an environment that was rebuilt leaves a gap without an end
    follows = follows & (batch["episode"][1:] == batch["episode"][:-1]) & (batch["step"][1:] == batch["step"][:-1] + 1)
    ends[:-1] |= ~follows
    ends[-1] = True
    return ends


class PPO:
    """Acts by a softmax over the actor's outputs and learns from whole rollouts, each in one call of `update`."""

    Settings: ClassVar[type[BaseModel]] = PPOSettings
    memory: ClassVar[Literal["replay", "rollouts"]] = "rollouts"
    extra_columns: tuple[Column, ...] = ()
    derived_columns: tuple[Column, ...] = ()
    window = 1
    priorities = Priorities()

    def __init__(
        self, settings: PPOSettings, spaces: Spaces, *, seed: int, learns: bool, threads: int = 1, device: str = "cpu"
    ) -> None:
        if spaces.actions is None:
            raise ValueError("algorithm.name: ppo needs a task with discrete actions")
        self.settings, self.spaces, s = settings, spaces, settings
        inputs = int(np.prod(spaces.observation_shape))
        self.network = Network(
            inputs, s.common, {"policy": (*s.policy, spaces.actions), "value": (*s.value, 1)}, s.activation
        )
        self._weights = parameter_count(self.network.parameters)
        moments = (("normaliser.mean", (inputs,)), ("normaliser.variance", (inputs,)), ("normaliser.count", (1,)))
        self.parameters = self.network.parameters + moments
        self.batch_rows = s.minibatch
        # A small last layer: the first policy is nearly uniform, whatever the observations.
        initial = self._flat(
            self.network.initial([seed, 0], {"policy": 0.01}),
            normaliser.Moments(np.zeros(inputs), np.ones(inputs), 0),
        )
        self.load(initial)
        if learns:
            import torch

            torch.set_num_threads(threads)
            self._torch, self._device = torch, device
            self._rng = np.random.default_rng([seed, 1])
            self.set_weights(initial)

    # -- acting: numpy alone --

    def load(self, flat: Floats) -> None:
        """Act with these weights, and this normalisation, from now on."""
        self._acting = NumpyNetwork(self.network, flat[: self._weights])
        self._acting_moments = self._moments(np.array(flat))
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
        """The most probable actions of several versions, each with its own normalisation."""
        if self._versions is None or self._versions[0] is not flats:
            self._versions = (flats, NumpyNetwork(self.network, flats[:, : self._weights]))
        moments = self._moments(flats[:, None])
        return np.asarray(self._versions[1]("policy", self._shown(obs, moments)).argmax(-1))

    def behaviour_log_prob(self, obs: Array, action: Array) -> Floats:
        """The log-probability that `act` stores."""
        return categorical.of_action(self._log_probs(obs), action)

    def _log_probs(self, obs: Array) -> Floats:
        return categorical.log_softmax(self._acting("policy", self._shown(obs, self._acting_moments)))

    def _shown(self, obs: Array, moments: normaliser.Moments) -> Floats:
        flat = flat_observations(obs, self.spaces)
        return normaliser.normalise(flat, moments.mean, moments.variance) if self.settings.normalise else flat

    def _moments(self, flat: Floats) -> normaliser.Moments:
        named = unflatten(flat, self.parameters)
        return normaliser.Moments(*(named[f"normaliser.{name}"] for name in normaliser.Moments._fields))

    def _flat(self, weights: Floats, moments: normaliser.Moments) -> Floats:
        return np.concatenate([weights, moments.mean, moments.variance, [moments.count]], dtype=np.float32)

    # -- memorizing: rollouts are taken whole --

    def derive(self, segment: Rows) -> Rows:  # noqa: ARG002 - advantages need the newest values, so the learner's work
        """Nothing: advantages are computed in `update`."""
        return {}

    def updates_due(self, *, rows: int, new_rows: int, new_segments: int) -> int:  # noqa: ARG002 - one rollout, one update
        """One as soon as there is a rollout."""
        return int(rows > 0)

    # -- learning: torch --

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, Floats | None]:
        """Several epochs of minibatches over rollouts (T, B, ...); advantages are computed once, before the first."""
        s, rows = self.settings, self._prepare(batch)
        rate = annealing.linear(s.learning_rate, s.learning_rate_last, s.anneal_steps, clock.env_steps)
        self._optimiser.param_groups[0]["lr"] = rate
        measured, norms, count = [], [], len(rows["action"])
        parts, stop = max(1, round(count / s.minibatch)), False
        for _ in range(s.epochs):
            for chosen in np.array_split(self._rng.permutation(count), parts):
                loss, numbers = self._loss({name: column[chosen] for name, column in rows.items()})
                measured.append(numbers)
                stop = bool(s.max_kl and numbers[3] > s.max_kl)
                if stop:
                    break
                norms.append(self._step(loss))
            if stop:
                break
        # Only now: until here learner and behaviour have seen observations in the same way.
        self._learning_moments = normaliser.merge(self._learning_moments, self._seen(batch)) if s.normalise else self._learning_moments
        mean = self._torch.stack(measured).mean(0).tolist()
        last = measured[-parts:]
        metrics = dict(zip(METRICS, mean, strict=True)) | {
            "approximate_kl": float(self._torch.stack(last)[:, 3].mean()),
            "gradient_norm": float(self._torch.stack(norms).mean()) if norms else 0.0,
            "minibatches": float(len(norms)),
            "learning_rate": rate,
        }
        return metrics, None

    def _seen(self, batch: Rows) -> Array:
        return flat_observations(batch["obs"], self.spaces)[batch["valid"].astype(bool)]
