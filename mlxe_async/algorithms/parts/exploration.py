"""How a policy is departed from to see more: mixtures with its best action or with chance, and noise in its weights.

Papers: Mnih et al. 2015 (epsilon-greedy), Fortunato et al. 2018 (noisy networks), and the public MLxE scripts, whose
reversed epsilon-greedy takes the best action now and then instead of a random one: a policy that is still uncertain
is seen to do what it would do once it is not.

Every departure is a distribution mu(a|s) that is drawn from like any other, so that the log-probability stored with
an action is that of the mixture, and replayed rows can be corrected by it.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from mlxe_async.algorithms.interface import STAYS, Acting, needs
from mlxe_async.networks import Floats

Behaviour = Literal["softmax", "epsilon_greedy", "reversed"]
OF_EPSILON = needs(noisy=[False], behaviour=["epsilon_greedy"])
NEVER = 1e-12  # stands for the probability 0 where a logarithm is taken


def noisy(default: bool) -> Any:
    """Whether the network is noisy."""
    text = "Act and learn with weights under learned noise (NoisyNets), test without."
    made: Any = Field(default, description=text, json_schema_extra=STAYS)
    return made


class ValueExplorationFields(BaseModel):
    """What executors that act by values do beside taking the best action."""

    behaviour: Literal["epsilon_greedy", "softmax"] = Field(
        "epsilon_greedy",
        description="softmax draws from softmax(Q / temperature) instead.",
        json_schema_extra=needs(noisy=[False]),
    )
    temperature: float = Field(
        0.1,
        gt=0,
        description="Of softmax: higher makes worse actions more frequent.",
        json_schema_extra=needs(behaviour=["softmax"], noisy=[False]),
    )
    epsilon_first: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of random actions at the start; higher sees more.",
        json_schema_extra=OF_EPSILON,
    )
    epsilon_last: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Share after epsilon_steps; higher explores for ever.",
        json_schema_extra=OF_EPSILON,
    )
    epsilon_steps: int = Field(
        10_000,
        ge=1,
        description="Environment steps until epsilon_last; more explore longer.",
        json_schema_extra=needs(noisy=[False], behaviour=["epsilon_greedy"], epsilon_first={"not": "epsilon_last"}),
    )


class NoisyValueExplorationFields(ValueExplorationFields):
    """The same of networks, whose weights may be noisy instead."""

    noisy: bool = noisy(False)
    noise_sigma: float = Field(
        0.5,
        gt=0,
        description="Deviation of that noise at the start, over the root of a layer's inputs; higher explores more.",
        json_schema_extra=STAYS | needs(noisy=[True]),
    )
    noise_every: int = Field(
        1,
        ge=0,
        description="Steps between two draws of the noise while acting; higher varies less, 0: one a rollout.",
        json_schema_extra=needs(noisy=[True]),
    )


def mixture(log_probs: Floats, behaviour: Behaviour, share: float | NDArray[np.float64]) -> Floats:
    """Log mu (B, A) of the behaviour, given log pi (B, A) of the policy.

    `"softmax"`: pi. `"epsilon_greedy"`: share / A + (1 - share) [a is best]. `"reversed"`: share [a is best] +
    (1 - share) pi. The share is one for all, or one for each observation (B, 1).
    """
    if behaviour == "softmax":
        return log_probs
    actions = log_probs.shape[-1]
    best = np.arange(actions) == log_probs.argmax(-1, keepdims=True)
    if behaviour == "epsilon_greedy":
        probability = share / actions + (1 - share) * best
    else:
        probability = share * best + (1 - share) * np.exp(log_probs)
    result: Floats = np.log(np.maximum(probability, NEVER)).astype(np.float32)
    return result


class NoiseRenewal:
    """Draws the noise of a network that acts: at a rollout's start, and every so many steps.

    Where it is in a rollout is no state: who takes a rollout up draws the noise that it began with.
    """

    def __init__(self) -> None:
        self.rollout, self.step = -1, 0

    def renew(self, network: Any, every: int, rng: np.random.Generator, acting: Acting) -> None:
        """Draw it anew if that is due; `every` 0: at a rollout's start alone."""
        from mlxe_async.networks.noisy import draw

        if self.rollout == acting.rollouts and not (every and acting.steps - self.step >= every):
            return
        self.rollout, self.step = acting.rollouts, acting.steps
        draw(network, rng)

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Nothing to load."""
