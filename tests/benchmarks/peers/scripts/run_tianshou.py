"""tianshou: A2C with GAE on CartPole, each sample learned from once, a whole collection in one optimiser step."""

from __future__ import annotations

import gymnasium
import measuring
import numpy as np
import torch
from tianshou.algorithm import A2C
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, ShmemVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

# name -> (environments in this process or in processes of their own, their number, steps of each, torch threads)
CONFIGURATIONS = {
    "dummy-128x32-t1": (DummyVectorEnv, 128, 32, 1),
    "dummy-256x32-t2": (DummyVectorEnv, 256, 32, 2),
    "dummy-64x64-t1": (DummyVectorEnv, 64, 64, 1),
    "shmem-8x256-t1": (ShmemVectorEnv, 8, 256, 1),
}


def main() -> None:
    given, name = measuring.asked(CONFIGURATIONS)
    kind, count, steps, threads = CONFIGURATIONS[name]
    torch.set_num_threads(threads)
    torch.manual_seed(given.seed)
    np.random.seed(given.seed)  # tianshou draws from numpy's global generator
    envs = kind([measuring.ordinary_environment] * count)
    envs.seed(given.seed)
    state_shape = (4,)
    actor = DiscreteActor(
        preprocess_net=Net(state_shape=state_shape, hidden_sizes=[64, 64], activation=torch.nn.Tanh),
        action_shape=2,
        softmax_output=False,
    )
    critic = DiscreteCritic(
        preprocess_net=Net(state_shape=state_shape, hidden_sizes=[64, 64], activation=torch.nn.Tanh)
    )

    def distribution(logits: torch.Tensor) -> torch.distributions.Categorical:
        return torch.distributions.Categorical(logits=logits, validate_args=False)

    policy = DiscreteActorPolicy(actor=actor, dist_fn=distribution, action_space=gymnasium.spaces.Discrete(2))
    batch = count * steps
    algorithm = A2C(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.99,
        gae_lambda=0.95,
        max_grad_norm=0.5,
        max_batchsize=batch,
    )
    collector = Collector(algorithm, envs, VectorReplayBuffer(batch, count))
    collector.reset()
    stopwatch, learned = measuring.Stopwatch(given.seconds, given.warm_up), 0
    with policy_within_training_step(policy):
        while True:
            collected = collector.collect(n_step=batch)
            algorithm.update(buffer=collector.buffer, batch_size=None, repeat=1)
            collector.reset_buffer(keep_statistics=True)
            learned += int(collected.n_collected_steps)
            if stopwatch.learned(learned):
                break
    envs.close()
    said = (
        f"A2C with GAE, 1 pass, {kind.__name__} of {count}, {steps} steps of each in one batch, MLP 64,64 twice, "
        f"{threads} torch thread{'s' * (threads > 1)}"
    )
    measuring.tell("tianshou", "tianshou", said, stopwatch.result(), row=given.row, config=name)


if __name__ == "__main__":
    main()
