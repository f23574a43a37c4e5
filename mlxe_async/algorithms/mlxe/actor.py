"""How MLxE acts: a softmax over the outputs of an actor that has a critic beside it."""

from __future__ import annotations

from typing import ClassVar

from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.algorithms.interface import Acting
from mlxe_async.algorithms.mlxe.exploration import epsilon
from mlxe_async.algorithms.parts.acting import ActsUnderNoise, number_of_actions
from mlxe_async.algorithms.parts.exploration import mixture
from mlxe_async.maths import categorical
from mlxe_async.networks import Network
from mlxe_async.rows import Array


class SoftmaxActor(ActsUnderNoise):
    """Acts by a softmax over the outputs of a head "policy"; explores as the settings, `ExplorationFields`, say."""

    of_pictures: ClassVar = {"body": "nature", "common": (512,), "policy": (), "value": (), "activation": "relu"}

    def actor_and_critic(self, values: int = 1) -> Network:
        """The shape that the settings say: heads "policy" (A) and "value" (`values`) on what they share."""
        s, actions = self.settings, number_of_actions(type(self), self.spaces)
        heads = {"policy": (*s.policy, actions), "value": (*s.value, values)}
        return self.shaped(s.common, heads, noisy=s.noisy)

    def policy(self, obs: Array, acting: Acting | None = None) -> Categorical:
        """The mixture that executors draw from."""
        scores, explore = self.scores(self._behaving, obs), self.settings
        if explore.behaviour == "softmax":
            return Categorical(scores)
        share = epsilon(explore, acting or Acting())
        return Categorical(mixture(categorical.log_softmax(scores), explore.behaviour, share), normalised=True)
