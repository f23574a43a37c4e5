"""sb3-contrib: RecurrentPPO on CartPole without velocities, as `hidden_cartpole.py` says.

A shared LSTM would be another network here: it learns from the actor alone, and the critic is shown what comes out.
"""

from __future__ import annotations

import hidden_cartpole as task
import measuring
import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor
from torch import nn


class Features(BaseFeaturesExtractor):
    """A layer before the LSTM."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, task.SIZE)
        self.layer = nn.Sequential(nn.Linear(observation_space.shape[0], task.SIZE), nn.Tanh())

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Of rows (M, n)."""
        return self.layer(observation)


class Watch(BaseCallback):
    """Notes when updates end, and returns of episodes."""

    def __init__(self, progress: task.Progress) -> None:
        super().__init__()
        self.progress = progress

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self.progress.learned(self.num_timesteps)

    def _on_step(self) -> bool:
        self.progress.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True


def main() -> None:
    given = task.asked()
    torch.set_num_threads(1)
    rows = task.ENVS * task.ROLLOUT
    model = RecurrentPPO(
        "MlpLstmPolicy",
        VecMonitor(DummyVecEnv([task.make] * task.ENVS)),
        n_steps=task.ROLLOUT,
        batch_size=rows // task.MINIBATCHES,
        n_epochs=task.EPOCHS,
        learning_rate=task.RATE,
        gamma=task.DISCOUNT,
        gae_lambda=task.LAMBDA,
        clip_range=task.CLIP,
        ent_coef=task.ENTROPY,
        vf_coef=task.VALUE,
        max_grad_norm=task.NORM,
        policy_kwargs={
            "lstm_hidden_size": task.SIZE,
            "n_lstm_layers": 1,
            "shared_lstm": False,
            "enable_critic_lstm": True,
            "net_arch": [],
            "features_extractor_class": Features,
        },
        seed=given.seed,
        device="cpu",
    )
    progress = task.Progress(given.warm_up)
    model.learn(given.steps, callback=Watch(progress))
    progress.learned(model.num_timesteps)
    more = {"row": "ppo-lstm", "seed": given.seed}
    measuring.tell("sb3-contrib", "sb3-contrib", "RecurrentPPO, DummyVecEnv", progress.result(), **more)


if __name__ == "__main__":
    main()
