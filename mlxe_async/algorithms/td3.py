"""TD3, twin delayed DDPG: DDPG with three changes against overestimated values.

Paper: Fujimoto et al. 2018. This file has what the paper changes, all else is `ddpg.py`: targets take the lower of two
critics; they smooth the target action by clipped noise; actor and targets move in every `policy_delay`-th update.
Where we differ: as DDPG here. Noise is measured in actions of [-1, 1], whatever the bounds are.

What do I change to make ...
  TD3 as published            no code: layers = [400, 300], batch = 100, start_rows = 10000.
  one of the changes alone    `number_of_critics`, `following_action`, `actor_is_due`.
                              No code: target_noise = 0.0, policy_delay = 1.
  more critics than two       `number_of_critics = 3`: targets take the lowest.
  another exploration         `act` in `ddpg.py`. No code: noise = "ou", noise_first, noise_last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mlxe_async.algorithms.ddpg import DDPG, DDPGSettings
from mlxe_async.algorithms.interface import Clock, needs
from mlxe_async.algorithms.parts.fields import BOOTSTRAPS, key

if TYPE_CHECKING:
    import torch


class TD3Settings(DDPGSettings):
    """The fields of `[algorithm]` beside `name = "td3"`."""

    policy_delay: int = key(
        2, "Updates of the critics for each of the actor and the targets; more are steadier and slower.", ge=1
    )
    target_noise: float = key(0.2, "Deviation of noise on target actions; higher smooths more.", BOOTSTRAPS, ge=0)
    target_noise_clip: float = key(
        *(0.5, "That noise is cut to this; higher smooths farther."),
        needs(discount={"above": 0}, target_noise={"above": 0}),
        gt=0,
    )


def smoothed(action: torch.Tensor, normal: torch.Tensor, deviation: float, limit: float) -> torch.Tensor:
    """`action` + clip(deviation * normal, -limit, limit), cut to [-1, 1]; all (M, D)."""
    return (action + (deviation * normal).clamp(-limit, limit)).clamp(-1, 1)


class TD3(DDPG):
    """Acts as DDPG; learns with twin critics, smoothed targets and a delayed actor."""

    Settings = TD3Settings
    settings: TD3Settings
    number_of_critics: ClassVar[int] = 2

    def following_action(self, obs: torch.Tensor) -> torch.Tensor:
        """mu'(s') and clipped noise (M, D)."""
        action, s = super().following_action(obs), self.settings
        return smoothed(action, self.normal(action), s.target_noise, s.target_noise_clip)

    def actor_is_due(self, clock: Clock) -> bool:
        """In every `policy_delay`-th update."""
        return clock.updates % self.settings.policy_delay == 0
