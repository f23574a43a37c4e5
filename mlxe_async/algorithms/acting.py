"""What executors and evaluators use of an actor-critic for discrete actions; numpy alone, but for pictures.

The flat vector that is published holds the network's weights and then, where observations are normalised, the moments
they are normalised by, so that both travel under one version. A noisy network's actions are chosen under noise that is
drawn here; its best actions never are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxe_async.algorithms.exploration import ExplorationFields, epsilon, mixture
from mlxe_async.algorithms.fields import ActorCriticFields
from mlxe_async.algorithms.interface import Acting, Rows, flat_observations
from mlxe_async.algorithms.states import Resumes
from mlxe_async.convolutions import PictureActor, PictureNetwork
from mlxe_async.maths import categorical, normaliser
from mlxe_async.networks import Floats, Network, NumpyNetwork, TorchNetwork, is_picture, parameter_count
from mlxe_async.rows import Array, Spaces

if TYPE_CHECKING:
    from torch import nn

Evaluated = Callable[[str, Array], Floats]


def shown(obs: Array, moments: normaliser.Moments | None) -> Array:
    """What a network is shown instead of flattened observations (..., O); the same, if there are no moments."""
    return obs if moments is None else normaliser.normalise(obs, moments.mean, moments.variance)


def refuse_half_a_network(kind: type, base: type, *, learned: str, acted: str) -> None:
    """A class that learns by a network of its own must act by it, too: executors know nothing of torch's side.

    Raises:
        ValueError: `kind` has its own method `learned`, and still acts by `acted` of `base`.
    """
    if getattr(kind, learned) is not getattr(base, learned) and getattr(kind, acted) is getattr(base, acted):
        raise ValueError(
            f"algorithm.name: {kind.__name__} has a {learned} of its own, by which it learns, but acts by {acted} of "
            f"{base.__name__}, which knows nothing of it; write {acted}, too"
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


class SoftmaxActor(Resumes):
    """Acts by a softmax over the outputs of the head `policy`; an actor-critic is derived from it.

    Args:
        fields: shape of the network, whose heads are `policy`, with one output for each action, and `value`.
        spaces: of the task.
        values: outputs of the critic.
        explore: how the behaviour departs from the policy; left out, not at all.

    Raises:
        ValueError: the task has no discrete actions, or masks of them, or `input_scale` does not fit its observations.
    """

    def __init__(
        self, fields: ActorCriticFields, spaces: Spaces, *, values: int = 1, explore: ExplorationFields | None = None
    ) -> None:
        actions = number_of_actions(type(self), spaces)
        refuse_half_a_network(type(self), SoftmaxActor, learned="_learnable", acted="_evaluator")
        self.spaces, self._normalises = spaces, fields.normalise
        self._explore = explore or ExplorationFields.model_validate({})
        inputs = spaces.entries
        heads = {"policy": (*fields.policy, actions), "value": (*fields.value, values)}
        look = (fields.activation, fields.input_scale, fields.layer_norm, self._explore.noisy, fields.body)
        try:
            self.network = Network(inputs, fields.common, heads, *look, spaces.observation_shape, fields.precision)
        except ValueError as error:
            raise ValueError(f"algorithm.{error}") from error
        self._weights = parameter_count(self.network.parameters)
        self.moment_entries = inputs if self._normalises else 0
        self.parameters = self.network.parameters + (normaliser.parameters(inputs) if self._normalises else ())

    @classmethod
    def defaults_for(cls, spaces: Spaces, written: Mapping[str, Any]) -> dict[str, Any]:
        """Pictures of bytes go through convolutions and a layer that actor and critic share, Mnih et al. 2015."""
        if spaces.observation_dtype != "|u1" or not is_picture(spaces.observation_shape) or "body" in written:
            return {}
        return {"body": "nature", "common": (512,), "policy": (), "value": (), "activation": "relu"}

    def set_moments(self, moments: normaliser.Moments) -> None:
        """Show the network what it learns from by these moments; see `interface.Normalising`."""
        self._moments: normaliser.Moments | None = moments

    def moments_in(self, flat: Floats) -> normaliser.Moments:
        """The moments that travel in published weights (P,)."""
        return normaliser.unpack(flat[self._weights :])

    def initial(self, seed: int | list[int], gains: dict[str, float] | None = None) -> Floats:
        """Fresh weights and no moments (P,); see `Network.initial`."""
        moments = normaliser.pack(normaliser.nothing(self.network.inputs)) if self._normalises else ()
        return np.concatenate([self.network.initial(seed, gains), moments], dtype=np.float32)

    def load(self, flat: Floats) -> None:
        """Act with these weights, and this normalisation, from now on."""
        self._flat = np.array(flat)
        self._acting = self._behaving = self._evaluator(self._flat)
        self._drawn: Acting | None = None
        self._versions: tuple[Floats, Evaluated] | None = None

    def act(self, obs: Array, rng: np.random.Generator, clock: Acting) -> Rows:
        """Sample from the behaviour policy, with the log-probability of that mixture under the noise in use."""
        if self.network.noisy:
            self._refresh_noise(rng, clock)
        log_probs = self._log_probs(obs, clock)
        action = categorical.sample(log_probs, rng)
        return {"action": action, "log_prob": categorical.of_action(log_probs, action)}

    def greedy(self, obs: Array, acting: Acting | None = None) -> Array:  # noqa: ARG002 - nothing is carried
        """The most probable action."""
        return np.asarray(self._acting("policy", obs).argmax(-1))

    def greedy_many(self, flats: Floats, obs: Array) -> Array:
        """The most probable actions of several versions, each with its own normalisation."""
        if self._versions is None or self._versions[0] is not flats:
            self._versions = (flats, self._evaluator(flats))
        return np.asarray(self._versions[1]("policy", obs).argmax(-1))

    def behaviour_log_prob(self, obs: Array, action: Array, clock: Acting | None = None) -> Floats:
        """The log-probability that `act` stores: under the noise in use, and epsilon as at `clock` or the start."""
        return categorical.of_action(self._log_probs(obs, clock or Acting()), action)

    def _log_probs(self, obs: Array, clock: Acting) -> Floats:
        log_probs, explore = categorical.log_softmax(self._behaving("policy", obs)), self._explore
        if explore.behaviour == "softmax":
            return log_probs
        return mixture(log_probs, explore.behaviour, epsilon(explore, clock))

    def _refresh_noise(self, rng: np.random.Generator, clock: Acting) -> None:
        """Draw the noise with new weights, at a rollout's start, and every `noise_every` steps."""
        drawn, every = self._drawn, self._explore.noise_every
        if drawn and drawn.rollouts == clock.rollouts and not (every and clock.steps - drawn.steps >= every):
            return
        self._drawn = Acting(clock.steps, clock.episodes, clock.rollouts)
        self._behaving = self._evaluator(self._flat, self.network.noise(rng))

    def _evaluator(self, flat: Floats, noise: Any = None) -> Evaluated:
        """A head's outputs (..., B, outputs) for raw observations, for one version (P,) or several (V, P)."""
        weights, moments = self._split(flat)
        if self.network.body != "none":
            actor = PictureActor(self.network, weights)
            return lambda head, obs: actor(head, flat_observations(obs, self.spaces))
        network = NumpyNetwork(self.network, weights, noise)
        if moments is None and len(self.spaces.observation_shape) == 1 and not self.spaces.parts:
            return network  # observations are shown as they are, without the cost of asking in every step
        if moments and flat.ndim == 2:
            moments = normaliser.Moments(moments.mean[:, None], moments.variance[:, None], moments.rows)
        return lambda head, obs: network(head, shown(flat_observations(obs, self.spaces), moments))

    def module(self) -> nn.Module:
        """The network that acts, with its normalisation, as a plain torch module: outputs by head."""
        from mlxe_async.networks.plain import PlainNetwork

        weights, moments = self._split(self._flat)
        if moments is None:
            return PlainNetwork(self.network, weights)
        deviation = np.sqrt(moments.variance + normaliser.EPSILON)
        return PlainNetwork(self.network, weights, moments.mean, deviation, normaliser.LIMIT)

    def _learnable(self, weights: Floats, device: str) -> TorchNetwork:
        """The network with gradients."""
        kind = TorchNetwork if self.network.body == "none" else PictureNetwork
        return kind(self.network, weights, device)

    def _split(self, flat: Floats) -> tuple[Floats, normaliser.Moments | None]:
        """The network's weights and, if observations are normalised, the moments that travel with them."""
        if not self._normalises:
            return flat, None
        return flat[..., : self._weights], normaliser.unpack(flat[..., self._weights :])
