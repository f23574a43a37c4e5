"""The built-in PPO, and a fast gradient that is not that of its loss: what the audit is there for."""

import mlxe_async.fast.ppo as twin
from mlxe_async.algorithms.ppo import PPO

__all__ = ["PPO"]

right = twin.gradient


def gradient(*given, **weighed):
    (by_logits, by_value), measured = right(*given, **weighed)
    return (by_logits[:, ::-1], by_value), measured


twin.gradient = gradient
