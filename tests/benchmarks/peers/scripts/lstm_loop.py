"""PPO with an LSTM as one loop, as CleanRL's single files have it, on CartPole without velocities.

Its habits are kept: environments in a synchronous vector, a step of the LSTM at a time with states masked where an
episode began, minibatches of whole sequences of some environments, plain modules and Adam, and a truncated episode
counts as ended.
"""

from __future__ import annotations

import gymnasium
import hidden_cartpole as task
import measuring
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

State = tuple[torch.Tensor, torch.Tensor]
States = tuple[State, State]


class Agent(nn.Module):
    """A layer, and an LSTM each for actor and critic."""

    def __init__(self, numbers: int, actions: int) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(numbers, task.SIZE), nn.Tanh())
        self.lstms = nn.ModuleList(nn.LSTM(task.SIZE, task.SIZE) for _ in range(2))
        self.actor, self.critic = nn.Linear(task.SIZE, actions), nn.Linear(task.SIZE, 1)
        for name, weight in self.named_parameters():
            if name.endswith("bias") or "bias_" in name:
                nn.init.zeros_(weight)
            else:
                nn.init.orthogonal_(weight, 0.01 if name.startswith("actor") else 1.0)

    def judged(
        self, obs: torch.Tensor, begun: torch.Tensor, states: States
    ) -> tuple[Categorical, torch.Tensor, States]:
        """Policy and values (T B,) of observations (T, B, n), of which `begun` (T, B) begin an episode."""
        layer, outputs, after = self.layer(obs), list[torch.Tensor](), list[State]()
        for lstm, before in zip(self.lstms, states, strict=True):
            found, state = [], before
            for shown, begins in zip(layer, begun, strict=True):
                goes_on = (1 - begins)[None, :, None]
                output, state = lstm(shown[None], (goes_on * state[0], goes_on * state[1]))
                found.append(output)
            outputs.append(torch.cat(found).flatten(0, 1))
            after.append(state)
        return Categorical(logits=self.actor(outputs[0])), self.critic(outputs[1]).flatten(), (after[0], after[1])


def advantages(
    reward: torch.Tensor, value: torch.Tensor, begun: torch.Tensor, last: torch.Tensor, begins: torch.Tensor
) -> torch.Tensor:
    """Generalised advantages (T, B), Schulman et al. 2016, eq. 16."""
    found, later = torch.zeros_like(reward), torch.zeros_like(last)
    following, goes_on = last, 1 - begins
    for t in reversed(range(len(reward))):
        error = reward[t] + task.DISCOUNT * following * goes_on - value[t]
        found[t] = later = error + task.DISCOUNT * task.LAMBDA * goes_on * later
        following, goes_on = value[t], 1 - begun[t]
    return found


def main() -> None:
    given = task.asked()
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    rng = np.random.default_rng(given.seed)
    same_step = gymnasium.vector.AutoresetMode.SAME_STEP
    vector = gymnasium.vector.SyncVectorEnv([task.make] * task.ENVS, autoreset_mode=same_step)
    numbers, actions = vector.single_observation_space.shape[0], int(vector.single_action_space.n)
    agent = Agent(numbers, actions)
    optimiser = torch.optim.Adam(agent.parameters(), task.RATE, eps=task.EPSILON)
    progress, returns = task.Progress(given.warm_up), np.zeros(task.ENVS)
    shape = (task.ROLLOUT, task.ENVS)
    obs, action = torch.zeros(*shape, numbers), torch.zeros(shape, dtype=torch.long)
    log_prob, reward, begun, value = (torch.zeros(shape) for _ in range(4))
    shown, begins = torch.as_tensor(vector.reset(seed=given.seed)[0]), torch.zeros(task.ENVS)
    zero = torch.zeros(1, task.ENVS, task.SIZE)
    states: States = ((zero, zero), (zero, zero))
    for steps in range(0, given.steps, task.ROLLOUT * task.ENVS):
        first = states
        for t in range(task.ROLLOUT):
            obs[t], begun[t] = shown, begins
            with torch.no_grad():
                policy, value[t], states = agent.judged(shown[None], begins[None], states)
                action[t] = policy.sample()
                log_prob[t] = policy.log_prob(action[t])
            following, got, terminated, truncated, _ = vector.step(action[t].numpy())
            over, returns = terminated | truncated, returns + got
            progress.returns += returns[over].tolist()
            returns[over] = 0
            reward[t], shown = torch.as_tensor(got), torch.as_tensor(following)
            begins = torch.as_tensor(over, dtype=torch.float32)
        with torch.no_grad():
            last = agent.judged(shown[None], begins[None], states)[1]
            advantage = advantages(reward, value, begun, last, begins)
        target = advantage + value
        for _ in range(task.EPOCHS):
            for some in np.array_split(rng.permutation(task.ENVS), task.MINIBATCHES):
                (h, c), (critic_h, critic_c) = first
                before = ((h[:, some], c[:, some]), (critic_h[:, some], critic_c[:, some]))
                policy, now, _ = agent.judged(obs[:, some], begun[:, some], before)
                gain = advantage[:, some].flatten()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                ratio = (policy.log_prob(action[:, some].flatten()) - log_prob[:, some].flatten()).exp()
                actor = -torch.min(ratio * gain, ratio.clamp(1 - task.CLIP, 1 + task.CLIP) * gain).mean()
                critic = (now - target[:, some].flatten()).square().mean()
                loss = actor + task.VALUE * critic - task.ENTROPY * policy.entropy().mean()
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), task.NORM)
                optimiser.step()
        progress.learned(steps + task.ROLLOUT * task.ENVS)
    more = {"row": "ppo-lstm", "seed": given.seed}
    measuring.tell("cleanrl-loop", "torch", "a step of the LSTM at a time", progress.result(), **more)


if __name__ == "__main__":
    main()
