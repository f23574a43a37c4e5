"""torchrl: A2C with GAE on CartPole, each sample learned from once, the whole batch in one step of the optimiser.

Environments and policy run in this process, or in two of torchrl's collector processes with the learner here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import measuring
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.envs import EnvBase
from torchrl.envs.libs.gym import GymWrapper
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import A2CLoss
from torchrl.objectives.value import GAE

# name -> (collector processes, environments of each, steps of each in a batch, torch threads)
CONFIGURATIONS = {
    "sync-512x32-t1": (0, 512, 32, 1),
    "sync-128x32-t1": (0, 128, 32, 1),
    "sync-256x32-t2": (0, 256, 32, 2),
    "multi-2x64x32-t1": (2, 64, 32, 1),
    "multi-2x256x32-t1": (2, 256, 32, 1),
}


def environment(count: int) -> EnvBase:
    """gymnasium's SyncVectorEnv of ordinary environments, which resets in the step that ended an episode."""
    vector = gymnasium.vector.SyncVectorEnv(
        [measuring.ordinary_environment] * count, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )
    return GymWrapper(vector, categorical_action_encoding=True)


def networks() -> tuple[Any, Any]:
    """Actor and critic, MLP 64,64 each."""

    def layers(outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))

    actor = ProbabilisticActor(
        TensorDictSequential(TensorDictModule(layers(2), in_keys=["observation"], out_keys=["logits"])),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    return actor, ValueOperator(layers(1), in_keys=["observation"])


def main() -> None:
    given, name = measuring.asked(CONFIGURATIONS)
    processes, count, steps, threads = CONFIGURATIONS[name]
    torch.set_num_threads(threads)
    torch.manual_seed(given.seed)
    actor, critic = networks()
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss_module = A2CLoss(actor_network=actor, critic_network=critic, entropy_coeff=0.01, critic_coeff=0.5)
    optimiser = torch.optim.Adam(loss_module.parameters(), lr=1e-3)
    frames = max(1, processes) * count * steps
    shared: dict[str, Any] = {"frames_per_batch": frames, "total_frames": -1}
    collector: Any
    if processes:
        collector = MultiSyncCollector([partial(environment, count)] * processes, actor, cat_results=0, **shared)
    else:
        collector = Collector(environment(count), actor, trust_policy=True, track_traj_ids=False, **shared)
    stopwatch, learned = measuring.Stopwatch(given.seconds, given.warm_up), 0
    for batch in collector:
        with torch.no_grad():
            advantage(batch)
        losses = loss_module(batch.reshape(-1))
        loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(loss_module.parameters(), 0.5)
        optimiser.step()
        if processes:
            collector.update_policy_weights_()
        learned += batch.numel()
        if stopwatch.learned(learned):
            break
    collector.shutdown()
    kind = f"MultiSyncCollector of {processes} processes" if processes else "Collector"
    said = (
        f"A2C with GAE, 1 pass, {kind}, gymnasium SyncVectorEnv of {count}, {steps} steps of each in one batch, "
        f"MLP 64,64 twice, {threads} torch thread{'s' * (threads > 1)}"
    )
    measuring.tell("torchrl", "torchrl", said, stopwatch.result(), row=given.row, config=name)


if __name__ == "__main__":
    main()
