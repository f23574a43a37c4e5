"""SAC or TD3 as one loop over one environment, as CleanRL's single files have them, with torch and a numpy ring.

CleanRL's package does not install on Pythons from 3.11 on. Its habits are kept: an update of both critics for each
step, the actor every second step (SAC's then twice), targets each step (TD3's with the actor), plain modules and Adam.
With `--compile` losses and targets go through `torch.compile`, in LeanRL's manner; of the seconds those that compiling
took are told, too: what single steps took beyond twenty times the median one. Steps of the optimisers stay as they
are: on a CPU torch reads their counts, and a whole compiled update took five times as long.
"""

from __future__ import annotations

import copy
import itertools
import sys
import time

import gymnasium
import numpy as np
import tasks_to_learn
import torch
from torch import nn
from torch.nn import functional

EVERY, TAU = 2, 0.005
EXPLORATION, SMOOTHING, SMOOTHING_MOST = 0.1, 0.2, 0.5
LOG_STD_LEAST, LOG_STD_MOST = -5.0, 2.0


def dense(inputs: int, layers: tuple[int, int], outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    first, second = layers
    return nn.Sequential(
        nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, outputs)
    )


class Ring:
    """Transitions, the newest replacing the oldest."""

    def __init__(self, capacity: int, obs: int, actions: int, rng: np.random.Generator) -> None:
        shapes = {"obs": obs, "following": obs, "action": actions}
        self._columns = {name: np.zeros((capacity, size), np.float32) for name, size in shapes.items()}
        self._columns |= {name: np.zeros(capacity, np.float32) for name in ("reward", "terminated")}
        self._rng, self._held, self._capacity = rng, 0, capacity

    def add(self, **transition: object) -> None:
        for name, value in transition.items():
            self._columns[name][self._held % self._capacity] = value
        self._held += 1

    def sample(self, rows: int) -> dict[str, torch.Tensor]:
        index = self._rng.integers(0, min(self._held, self._capacity), rows)
        return {name: torch.from_numpy(column[index]) for name, column in self._columns.items()}


class Learner:
    """Twin critics, their targets, and an actor; the subclasses say how the actor acts and what critics learn."""

    outputs_for_each = 1
    compiled = ("critic_loss", "following", "actor_loss")

    def __init__(self, row: tasks_to_learn.Row, obs: int, actions: int) -> None:
        self.row = row
        self.actor = dense(obs, row.layers, actions * self.outputs_for_each)
        self.critics = nn.ModuleList(dense(obs + actions, row.layers, 1) for _ in range(2))
        self.targets = copy.deepcopy(self.critics)
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), row.rate)
        self.critic_optimiser = torch.optim.Adam(self.critics.parameters(), row.rate)

    def smallest(self, critics: nn.ModuleList, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """The lesser of both critics' words (M,)."""
        both = torch.cat((obs, action), 1)
        return torch.min(critics[0](both), critics[1](both)).squeeze(1)

    def critic_loss(self, rows: dict[str, torch.Tensor], following: torch.Tensor) -> torch.Tensor:
        wanted = rows["reward"] + self.row.discount * (1 - rows["terminated"]) * following
        both = torch.cat((rows["obs"], rows["action"]), 1)
        return sum(functional.mse_loss(critic(both).squeeze(1), wanted) for critic in self.critics)

    def step(self, optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    def follow(self, slow: nn.Module, fast: nn.Module) -> None:
        with torch.no_grad():
            for old, new in zip(slow.parameters(), fast.parameters(), strict=True):
                old.lerp_(new, TAU)


class SAC(Learner):
    """Haarnoja et al. 2018, with a learned temperature."""

    outputs_for_each = 2

    def __init__(self, row: tasks_to_learn.Row, obs: int, actions: int) -> None:
        super().__init__(row, obs, actions)
        self.wanted_entropy, self.log_temperature = -float(actions), torch.zeros((), requires_grad=True)
        self.temperature_optimiser = torch.optim.Adam([self.log_temperature], row.rate)

    def drawn(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions in [-1, 1] (M, A) and their log-densities (M,)."""
        mean, raw = self.actor(obs).chunk(2, 1)
        log_std = LOG_STD_LEAST + (LOG_STD_MOST - LOG_STD_LEAST) * (torch.tanh(raw) + 1) / 2
        normal = torch.distributions.Normal(mean, log_std.exp())
        before = normal.rsample()
        action = torch.tanh(before)
        return action, (normal.log_prob(before) - torch.log(1 - action**2 + 1e-6)).sum(1)

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        return self.drawn(obs)[0]

    def best(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.actor(obs).chunk(2, 1)[0])

    def following(self, rows: dict[str, torch.Tensor]) -> torch.Tensor:
        """V(s') (M,)."""
        action, log_prob = self.drawn(rows["following"])
        return self.smallest(self.targets, rows["following"], action) - self.log_temperature.exp() * log_prob

    def actor_loss(self, rows: dict[str, torch.Tensor]) -> torch.Tensor:
        action, log_prob = self.drawn(rows["obs"])
        judged = self.smallest(self.critics, rows["obs"], action)
        return (self.log_temperature.detach().exp() * log_prob - judged).mean()

    def update(self, rows: dict[str, torch.Tensor], with_actor: bool) -> None:
        with torch.no_grad():
            following = self.following(rows)
        self.step(self.critic_optimiser, self.critic_loss(rows, following))
        for _ in range(EVERY if with_actor else 0):
            self.step(self.actor_optimiser, self.actor_loss(rows))
            with torch.no_grad():
                log_prob = self.drawn(rows["obs"])[1]
            loss = (-self.log_temperature.exp() * (log_prob + self.wanted_entropy)).mean()
            self.step(self.temperature_optimiser, loss)
        self.follow(self.targets, self.critics)


class TD3(Learner):
    """Fujimoto et al. 2018."""

    def __init__(self, row: tasks_to_learn.Row, obs: int, actions: int) -> None:
        super().__init__(row, obs, actions)
        self.slow_actor = copy.deepcopy(self.actor)

    def best(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.actor(obs))

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        action = self.best(obs)
        return (action + EXPLORATION * torch.randn_like(action)).clamp(-1, 1)

    def following(self, rows: dict[str, torch.Tensor]) -> torch.Tensor:
        """Q'(s', a') (M,) of smoothed target actions."""
        noise = (SMOOTHING * torch.randn_like(rows["action"])).clamp(-SMOOTHING_MOST, SMOOTHING_MOST)
        action = (torch.tanh(self.slow_actor(rows["following"])) + noise).clamp(-1, 1)
        return self.smallest(self.targets, rows["following"], action)

    def actor_loss(self, rows: dict[str, torch.Tensor]) -> torch.Tensor:
        return -self.critics[0](torch.cat((rows["obs"], self.best(rows["obs"])), 1)).mean()

    def update(self, rows: dict[str, torch.Tensor], with_actor: bool) -> None:
        with torch.no_grad():
            following = self.following(rows)
        self.step(self.critic_optimiser, self.critic_loss(rows, following))
        if with_actor:
            self.step(self.actor_optimiser, self.actor_loss(rows))
            self.follow(self.slow_actor, self.actor)
            self.follow(self.targets, self.critics)


def main() -> None:
    compiles = "--compile" in sys.argv
    name, row, seed, threads = tasks_to_learn.asked([one for one in sys.argv[1:] if one != "--compile"])
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = gymnasium.make(row.env)
    low, high = env.action_space.low, env.action_space.high
    learner = {"sac": SAC, "td3": TD3}[row.algorithm](row, env.observation_space.shape[0], len(low))
    ring = Ring(row.steps, env.observation_space.shape[0], len(low), rng)

    def played(action: np.ndarray) -> np.ndarray:
        return low + (action + 1) / 2 * (high - low)

    for part in learner.compiled if compiles else ():
        setattr(learner, part, torch.compile(getattr(learner, part)))
    began, ends = time.perf_counter(), list[float]()
    obs, _ = env.reset(seed=seed)
    updates = itertools.count(1)
    for step in range(row.steps):
        if step < row.start:
            action = rng.uniform(-1, 1, len(low)).astype(np.float32)
        else:
            with torch.no_grad():
                action = learner.act(torch.as_tensor(obs, dtype=torch.float32)[None])[0].numpy()
        following, reward, terminated, truncated, _ = env.step(played(action))
        ring.add(obs=obs, following=following, action=action, reward=reward, terminated=terminated)
        obs = env.reset()[0] if terminated or truncated else following
        if step >= row.start:
            learner.update(ring.sample(row.batch), next(updates) % EVERY == 0)
            ends.append(time.perf_counter())
    seconds = time.perf_counter() - began

    def best(obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return played(learner.best(torch.as_tensor(obs, dtype=torch.float32)[None])[0].numpy())

    reached = tasks_to_learn.mean_return(row, best)
    found = {"seconds": round(seconds, 2), "reached": round(reached, 2)}
    if compiles:
        found["compiling_seconds"] = round(tasks_to_learn.beyond_usual(ends), 2)
    tasks_to_learn.tell("leanrl-loop" if compiles else "cleanrl-loop", "torch", row=name, seed=seed, **found)


if __name__ == "__main__":
    main()
