"""PPO on plain modules whose rewards are divided by the deviation of the running discounted return."""

from own_ppo import GaussianPPO
from torch import nn

from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.maths import reward_scaling


class ScaledPPO(GaussianPPO):
    chosen = "action"
    carry = (reward_scaling.CARRY,)

    def build(self):
        (inputs,) = self.spaces.observation_shape
        self.actor = nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, self.spaces.actions))
        self.critic = nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, 1))

    def build_learner(self):
        super().build_learner()
        self.scale = reward_scaling.RewardScale(self.settings.discount)

    def policy(self, obs, acting=None):
        return Categorical(self.actor(obs))

    def after_step(self, acting, reward):
        reward_scaling.follow(acting.carry, reward, self.settings.discount)

    def update(self, batch, clock):
        told = super().update(batch, clock)
        moments = self.scale.moments
        return told | {"rows_counted": moments.rows, "mean_return": moments.mean[0], "deviation": self.scale.deviation}

    def with_advantages(self, batch):
        self.scale.count(batch)
        rows = {name: column for name, column in batch.items() if name != reward_scaling.CARRY.name}
        return super().with_advantages(rows | {"reward": self.scale.scaled(batch["reward"])})
