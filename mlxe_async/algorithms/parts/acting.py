"""What algorithms share that act by a network of ours: numpy evaluates it, and torch learns it.

The flat vector that is published holds the network's weights and then what travels with them under one version, such as
the moments that observations are normalised by. Executors and evaluators need numpy alone, but for pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.algorithms.interface import Acting, Rows, flat_observations
from mlxe_async.algorithms.parts.exploration import mixture
from mlxe_async.algorithms.state.states import Resumes
from mlxe_async.maths import annealing, categorical, normaliser
from mlxe_async.networks import Floats, Network, NumpyNetwork, Parameters, parameter_count
from mlxe_async.networks.convolutions import PictureActor
from mlxe_async.networks.mixed import expected_of, mixed_of, numbers_in, pictures_in
from mlxe_async.networks.pictures import image_of
from mlxe_async.networks.shape import SIGMA
from mlxe_async.rows import Array, Spaces

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mlxe_async.networks import TorchNetwork

Evaluated = Callable[..., tuple[Any, ...]]
"""Outputs of heads: a network of either kind, asked with observations (..., B, O) and the heads' names."""


def shown(obs: Array, moments: normaliser.Moments | None) -> Array:
    """What a network is shown instead of flattened observations (..., O); the same, if there are no moments."""
    return obs if moments is None else normaliser.normalise(obs, moments.mean, moments.variance)


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


class ActsByNetwork(Resumes):
    """One network of ours acts; the learner has it as a torch module, `network`, and may have copies of it.

    An author writes `build`, which makes `shape` and tells columns; `build_learner`, which makes optimiser, target and
    `average` (what is published instead of `network`, where there is one); `policy`; and `update`.

    Raises:
        ValueError: the class learns by a network of its own, and acts by ours.
    """

    shape: Network
    network: TorchNetwork
    settings: Any
    gains: ClassVar[dict[str, float]] = {}
    """Head -> factor of its last layer's first weights."""
    of_pictures: ClassVar[dict[str, Any]] = {}
    """Values for keys that nobody wrote, where the task shows pictures of bytes, alone or among other parts."""

    def __init__(
        self, settings: Any, spaces: Spaces, *, seed: int, learns: bool, threads: int = 1, device: str = "cpu"
    ) -> None:
        self._describe(settings, spaces, seed=seed, learns=learns, device=device)
        self._moments = normaliser.nothing(self.shape.numbers) if self._normalises else None
        initial = np.concatenate([self.shape.initial([seed, 0], self.gains), self.tail()], dtype=np.float32)
        self.load(initial)
        if learns:
            import torch

            torch.set_num_threads(threads)
            self.set_weights(initial)

    @classmethod
    def parameters_for(cls, settings: Any, spaces: Spaces) -> Parameters:
        """What acts, told by shapes alone: no weight is made."""
        one = cls.__new__(cls)
        one._describe(settings, spaces, seed=0, learns=False, device="cpu")
        return one.parameters

    def _describe(self, settings: Any, spaces: Spaces, *, seed: int, learns: bool, device: str) -> None:
        """All that follows from settings and spaces, without a weight."""
        self.settings, self.spaces, self.learns = settings, spaces, learns
        self.device, self.rng = device, np.random.default_rng([seed, 1])
        self.batch_rows = getattr(settings, "batch", self.batch_rows)
        self.rows_per_update = getattr(settings, "rows_per_update", self.rows_per_update)
        kind = type(self)
        if kind.learnable is not ActsByNetwork.learnable and kind.evaluator is ActsByNetwork.evaluator:
            raise ValueError(
                f"algorithm.name: {kind.__name__} has a learnable of its own, by which it learns, but acts by "
                f"evaluator of {ActsByNetwork.__name__}, which knows nothing of it; write evaluator, too"
            )
        for name in self.counted:
            vars(self).setdefault(name, 0)
        self.build()
        self._normalises = getattr(settings, "normalise", False)
        if self._normalises:
            self._refuse_moments()
        self.moment_entries = self.shape.numbers if self._normalises else 0
        self._weights = parameter_count(self.shape.parameters)
        self.parameters = (*self.shape.parameters, *self.travelling())

    @classmethod
    def defaults_for(cls, spaces: Spaces, written: Mapping[str, Any]) -> dict[str, Any]:
        """Pictures of bytes go through convolutions, Mnih et al. 2015, and what goes with them.

        Numbers beside them are normalised where those alone would be.
        """
        body = written.get("body", cls.of_pictures.get("body", "none") if pictures_in(spaces) else "none")
        found = {} if body == "none" or "body" in written else dict(cls.of_pictures)
        mixed, normalise = mixed_of(spaces, body), cls.Settings.model_fields.get("normalise")
        if mixed is not None and mixed.numbers and normalise is not None:
            found["normalise"] = normalise.default
        return found

    # -- acting --

    def load(self, flat: Floats) -> None:
        """Act with these weights, and what travels with them, from now on."""
        self._flat = np.array(flat)
        self.outputs = self._behaving = self.evaluator(self._flat)
        self._versions: tuple[Floats, Evaluated] | None = None

    def scores(self, network: Evaluated, obs: Any) -> Any:
        """What the best action has most of (..., B, A), by numpy or torch, as the network is: its logit, or value."""
        return network(obs, "policy")[0]

    def act(self, obs: Array, rng: np.random.Generator, acting: Acting) -> Rows:
        """Draw from the policy."""
        return self.policy(obs, acting).act(rng)

    def greedy(self, obs: Array, acting: Acting | None = None) -> Array:  # noqa: ARG002 - nothing is carried
        """The action with the highest score."""
        return np.asarray(self.scores(self.outputs, obs).argmax(-1))

    def greedy_many(self, flats: Floats, obs: Array) -> Array:
        """The actions with the highest scores, of several versions."""
        if self._versions is None or self._versions[0] is not flats:
            self._versions = (flats, self.evaluator(flats))
        return np.asarray(self.scores(self._versions[1], obs).argmax(-1))

    def behaviour_log_prob(self, obs: Array, action: Array, acting: Acting | None = None) -> Floats:
        """The log-probability that `act` stores: under the noise in use, and exploring as at `acting` or the start."""
        found: Floats = self.policy(obs, acting).log_prob(action)
        return found

    def evaluator(self, flat: Floats, noise: Any = None) -> Evaluated:
        """Outputs of heads (..., B, outputs) for raw observations, for one version (P,) or several (V, P)."""
        weights, moments = self._split(flat)
        network: NumpyNetwork | PictureActor
        if self.shape.body != "none":
            network = PictureActor(self.shape, weights, noise=noise)
        else:
            network = NumpyNetwork(self.shape, weights, noise)
            if moments is None and len(self.spaces.observation_shape) == 1 and not self.spaces.parts:
                return network  # observations are shown as they are, without the cost of asking in every step
        if moments and flat.ndim == 2:
            moments = normaliser.Moments(moments.mean[:, None], moments.variance[:, None], moments.rows)
        return lambda obs, *heads: network(self.shown_with(obs, moments), *heads)

    def module(self) -> nn.Module:
        """The network that acts, with its normalisation, as a plain torch module: outputs by head."""
        from mlxe_async.networks.plain import PlainNetwork

        (weights, moments), parts = self._split(self._flat), self.shape.mixed or numbers_in(self.spaces)
        if moments is None:
            return PlainNetwork(self.shape, weights, parts=parts)
        deviation = np.sqrt(moments.variance + normaliser.EPSILON)
        return PlainNetwork(self.shape, weights, moments.mean, deviation, normaliser.LIMIT, parts)

    def deterministic_module(self) -> nn.Module:
        """The network that acts, and behind it the best actions as the environment takes them."""
        from mlxe_async.networks.plain import Deterministic

        return Deterministic(self.module(), self.best_of)

    def best_of(self, network: Evaluated, obs: torch.Tensor) -> torch.Tensor:
        """The best actions (B, ...) as the environment takes them, by torch."""
        best: torch.Tensor = self.spaces.for_environment(self.scores(network, obs).argmax(-1))
        return best

    def shaped(
        self,
        common: tuple[int, ...],
        heads: dict[str, tuple[int, ...]],
        *,
        noisy: bool = False,
        free: Mapping[str, tuple[float, ...]] | None = None,
        sigma: float = SIGMA,
    ) -> Network:
        """A network for these observations, as the settings say: see `Network`.

        Raises:
            ValueError: the settings do not fit the observations.
        """
        s, shape = self.settings, self.spaces.observation_shape
        image = image_of(shape)[0] if len(shape) == 2 and pictures_in(self.spaces) else shape
        look = (s.activation, s.input_scale, s.layer_norm, noisy, s.body, image, s.precision)
        try:
            mixed = expected_of(self.spaces, s.body)
            s.refuse_factors(mixed)
            return Network(self.spaces.entries, common, heads, *look, free or {}, sigma, mixed)
        except ValueError as error:
            raise ValueError(f"algorithm.{error}") from error

    # -- what is published --

    def weights(self) -> Floats:
        """The weights of `average`, or of `network`; then what travels with them."""
        published = getattr(self, "average", self.network)
        return np.concatenate([published.flat.numpy(force=True), self.tail()], dtype=np.float32)

    def set_weights(self, flat: Floats) -> None:
        """Learn on from what was published; the optimiser's memory starts empty."""
        weights, tail = np.split(flat, [self._weights])
        self.network = self.learnable(weights)
        self.put_tail(tail)
        self.build_learner()

    def learnable(self, weights: Floats) -> TorchNetwork:
        """The network of these weights as a torch module."""
        from mlxe_async.networks.learning import torch_network

        return torch_network(self.shape, weights, self.device)

    def travelling(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Names and shapes of what travels behind the weights."""
        return normaliser.parameters(self.shape.numbers) if self._normalises else ()

    def tail(self) -> Any:
        """What travels behind the weights now."""
        return normaliser.pack(self._moments) if self._moments else ()

    def put_tail(self, tail: Floats) -> None:
        """Learn on with what travelled."""
        if self._normalises:
            self._moments = normaliser.unpack(tail)

    # -- normalised observations --

    def shown_with(self, obs: Array, moments: normaliser.Moments | None) -> Array:
        """What a network is shown of observations (..., *O): flat (..., O), or as `Mixed` says; by these moments."""
        if (mixed := self.shape.mixed) is None:
            return shown(flat_observations(obs, self.spaces), moments)
        if moments is None and mixed.is_shown_as_stored:
            return obs
        parts = mixed.split(obs)
        return mixed.packed(parts, shown(mixed.numbers_of(parts), moments) if mixed.numbers else None)

    def seen(self, obs: Array) -> Array:
        """What the learner's network is shown of observations (..., *O), see `shown_with`; normalised if it is so."""
        return self.shown_with(obs, self._moments)

    def numbers(self, obs: Array) -> Array:
        """Of observations (..., *O) what is normalised: all numbers (..., n), but no picture beside them."""
        mixed = self.shape.mixed
        return flat_observations(obs, self.spaces) if mixed is None else mixed.numbers_of(mixed.split(obs))

    def set_moments(self, moments: normaliser.Moments) -> None:
        """Show the network what it learns from by these moments; see `interface.Normalising`."""
        self._moments: normaliser.Moments | None = moments

    def moments_in(self, flat: Floats) -> normaliser.Moments:
        """The moments that travel in published weights (P,)."""
        return normaliser.unpack(flat[self._weights :])

    def count(self, batch: Rows) -> None:
        """Count a batch's valid observations; after an update: until then learner and behaviour see them alike."""
        if self._moments:
            self._moments = normaliser.merge(self._moments, self.numbers(batch["obs"][batch["valid"].astype(bool)]))

    def _refuse_moments(self) -> None:
        """Refuse to normalise what is nothing but pictures, or what a replay memory cannot count.

        Raises:
            ValueError: it is so.
        """
        shape, spaces = self.shape, self.spaces
        if not shape.numbers:
            told = "needs normalise = false: there are no numbers beside what goes through convolutions"
            raise ValueError(f'algorithm.normalise: body = "{shape.body}" {told}')
        if self.memory != "replay" or not spaces.parts or spaces.observation_dtype != "|u1":
            return
        if shape.mixed is None or not shape.mixed.is_shown_as_stored:
            raise ValueError(
                "algorithm.normalise: a replay memory keeps no moments of numbers that are parts of bytes; set it to "
                "false, and scale inputs with input_scale"
            )

    def _split(self, flat: Floats) -> tuple[Floats, normaliser.Moments | None]:
        """The network's weights and, if observations are normalised, the moments that travel with them."""
        moments = normaliser.unpack(flat[..., self._weights :]) if self._normalises else None
        return flat[..., : self._weights], moments


class ActsUnderNoise(ActsByNetwork):
    """Where the network is noisy, actions are chosen under noise that is drawn here; best actions never are."""

    def load(self, flat: Floats) -> None:
        """Act with these weights, and what travels with them, from now on."""
        super().load(flat)
        self._drawn: Acting | None = None

    def act(self, obs: Array, rng: np.random.Generator, acting: Acting) -> Rows:
        """Draw from the policy, under the noise in use if the network is noisy."""
        if self.shape.noisy:
            self._refresh_noise(rng, acting)
        return self.policy(obs, acting).act(rng)

    def _refresh_noise(self, rng: np.random.Generator, acting: Acting) -> None:
        """Draw the noise with new weights, at a rollout's start, and every `noise_every` steps."""
        drawn, every = self._drawn, self.settings.noise_every
        if drawn and drawn.rollouts == acting.rollouts and not (every and acting.steps - drawn.steps >= every):
            return
        self._drawn = Acting(acting.steps, acting.episodes, acting.rollouts)
        self._behaving = self.evaluator(self._flat, self.shape.noise(rng))


class ActsByValues(ActsUnderNoise):
    """Acts by values, mostly greedily; the epsilon of its exploration travels with the weights. Noise needs none."""

    def __init__(self, settings: Any, spaces: Spaces, **more: Any) -> None:
        self.epsilon = self.exploring(settings, 0)
        super().__init__(settings, spaces, **more)

    @staticmethod
    def exploring(settings: Any, env_steps: int) -> float:
        """Epsilon after so many environment steps."""
        s = settings
        return 0.0 if s.noisy else annealing.linear(s.epsilon_first, s.epsilon_last, s.epsilon_steps, env_steps)

    def scores(self, network: Evaluated, obs: Any) -> Any:
        """Q (..., B, A), on the network's own scale: of a head "q", or of two, "value" and "advantage"."""
        if not self.settings.dueling:
            return network(obs, "q")[0]
        return dueling(*network(obs, "value", "advantage"))

    def policy(self, obs: Array, acting: Acting | None = None) -> Categorical:  # noqa: ARG002 - epsilon travels
        """softmax(Q / temperature), or epsilon / A + (1 - epsilon) [action = best]; the best under noise."""
        network = self._behaving if self.shape.noisy else self.outputs
        log_probs = categorical.log_softmax(self.scores(network, obs) / np.float32(self.settings.temperature))
        if self.shape.noisy:
            return Categorical(mixture(log_probs, "epsilon_greedy", self.epsilon), normalised=True)
        return Categorical(mixture(log_probs, self.settings.behaviour, self.epsilon), normalised=True)

    def load(self, flat: Floats) -> None:
        """Act with these weights, and explore with the epsilon that came with them, from now on."""
        super().load(flat)
        self.put_tail(flat[-1:])

    def travelling(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Epsilon."""
        return (("exploration.epsilon", (1,)),)

    def tail(self) -> Any:
        """Epsilon."""
        return [self.epsilon]

    def put_tail(self, tail: Floats) -> None:
        """Learn on with this epsilon."""
        self.epsilon = float(tail[0])


def dueling(value: Any, advantage: Any, actions: int = -1) -> Any:
    """V + A - mean A of all actions; Wang et al. 2016, eq. 9.

    Args:
        value: V (..., 1), or (..., 1, K) of K atoms; numpy or torch.
        advantage: A (..., A), or (..., A, K).
        actions: which axis is that of actions.
    """
    return value + advantage - advantage.mean(actions, keepdims=True)
