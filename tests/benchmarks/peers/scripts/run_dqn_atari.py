"""DQN on Breakout from pictures: stable-baselines3's own, and a loop as CleanRL's single file has it.

CleanRL's package does not install on Pythons from 3.11 on; its dqn_atari.py is a loop over one game with
stable-baselines3's wrappers and replay buffer, a plain torch network and Adam, and that is what runs here. All do one
update of 32 rows per 4 steps of a game, as settings/breakout-dqn.toml does. What is counted is agent steps, four frames
each, from the first update on.
"""

from __future__ import annotations

import argparse
from typing import Any

import ale_py
import gymnasium
import measuring
import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecTransposeImage
from torch import nn

ENV, ROW = "ALE/Breakout-v5", "breakout-dqn"
START, CAPACITY, EVERY, BATCH, COPY_EVERY = 1000, 10_000, 4, 32, 10_000
ENDLESS = 10**12
# peer -> name -> (games side by side, torch threads)
CONFIGURATIONS = {
    "sb3": {"1-game-t1": (1, 1), "4-games-t1": (4, 1), "1-game-t2": (1, 2), "4-games-t2": (4, 2)},
    "cleanrl": {"1-game-t1": (1, 1), "1-game-t2": (1, 2)},
}
PEERS = {"sb3": "stable-baselines3", "cleanrl": "cleanrl-loop"}


def games(count: int) -> VecEnv:
    """Breakout as both packages show it: skipped, small, grey, clipped, lives as episodes, four pictures at a time."""

    def one() -> Any:
        return AtariWrapper(gymnasium.make(ENV, frameskip=1, repeat_action_probability=0.0))

    return VecTransposeImage(VecFrameStack(DummyVecEnv([one] * count), 4))


class Clock(BaseCallback):
    """Stops when the stopwatch has seen enough; it is asked after each step that may have been learned from."""

    def __init__(self, stopwatch: measuring.Stopwatch) -> None:
        super().__init__()
        self.stopwatch = stopwatch

    def _on_step(self) -> bool:
        learns = self.num_timesteps > START and self.num_timesteps % EVERY == 0
        return not (learns and self.stopwatch.learned(self.num_timesteps))


def stable_baselines3(count: int, stopwatch: measuring.Stopwatch, seed: int) -> str:
    """Its DQN with the same rates; with several games a step of all of them is what `train_freq` counts."""
    model = DQN(
        "CnnPolicy",
        games(count),
        learning_rate=6.25e-5,
        buffer_size=CAPACITY,
        learning_starts=START,
        batch_size=BATCH,
        train_freq=EVERY // count,
        gradient_steps=1,
        target_update_interval=COPY_EVERY,
        exploration_fraction=1e-6,
        exploration_final_eps=0.1,
        seed=seed,
        device="cpu",
    )
    model.learn(ENDLESS, callback=Clock(stopwatch))
    return f"DQN, CnnPolicy, {count} games, one update of {BATCH} per {EVERY} steps"


def cleanrl(count: int, stopwatch: measuring.Stopwatch, seed: int) -> str:
    """A loop over one game: act, store, and each fourth step an update."""
    rng, envs = np.random.default_rng(seed), games(count)
    actions = envs.action_space.n
    network, target = values(actions), values(actions)
    target.load_state_dict(network.state_dict())
    optimiser = torch.optim.Adam(network.parameters(), lr=6.25e-5)
    buffer = ReplayBuffer(
        CAPACITY, envs.observation_space, envs.action_space, "cpu", count, optimize_memory_usage=True,
        handle_timeout_termination=False,
    )  # fmt: skip
    obs, steps = envs.reset(), 0
    while True:
        if rng.random() < 0.1:
            chosen = rng.integers(0, actions, count)
        else:
            with torch.no_grad():
                chosen = network(torch.as_tensor(obs)).argmax(1).numpy()
        after, reward, done, infos = envs.step(chosen)
        reached = after.copy()
        for env in np.flatnonzero(done):
            reached[env] = infos[env]["terminal_observation"]
        buffer.add(obs, reached, chosen, reward, done, infos)
        obs, steps = after, steps + count
        if steps > START and steps % EVERY == 0:
            rows = buffer.sample(BATCH)
            with torch.no_grad():
                best = target(rows.next_observations).max(1).values
                wanted = rows.rewards.flatten() + 0.99 * best * (1 - rows.dones.flatten())
            found = network(rows.observations).gather(1, rows.actions).squeeze(1)
            loss = nn.functional.mse_loss(found, wanted)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if stopwatch.learned(steps):
                return f"a loop as CleanRL's dqn_atari.py, one game, one update of {BATCH} per {EVERY} steps"
        if steps % COPY_EVERY == 0:
            target.load_state_dict(network.state_dict())


class Scaled(nn.Module):
    """Bytes as numbers from 0 to 1."""

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures.float() / 255


def values(actions: int) -> nn.Module:
    """The network of Mnih et al. 2015."""
    convolutions = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1)]
    return nn.Sequential(
        Scaled(), *convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", choices=[*PEERS], required=True)
    parser.add_argument("--row", default=ROW)
    parser.add_argument("--config", default="")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--warm-up", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    known = CONFIGURATIONS[given.peer]
    if given.list:
        print("\n".join(known))
        return
    name = given.config or next(iter(known))
    count, threads = known[name]
    torch.set_num_threads(threads)
    gymnasium.register_envs(ale_py)
    stopwatch = measuring.Stopwatch(given.seconds, given.warm_up)
    said = {"sb3": stable_baselines3, "cleanrl": cleanrl}[given.peer](count, stopwatch, given.seed)
    said += f", {threads} torch thread{'s' * (threads > 1)}"
    measuring.tell(
        PEERS[given.peer], "stable-baselines3", said, stopwatch.result(), row=given.row, config=name, env=ENV
    )


if __name__ == "__main__":
    main()
