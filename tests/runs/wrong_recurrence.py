"""The built-in PPO, and a gradient of its cell by numpy that is not torch's: what the audit is there for."""

from mlxe_async.algorithms.ppo import PPO
from mlxe_async.networks import recurrence

__all__ = ["PPO"]

right = recurrence._GRU.backward


def backward(ctx, of_h):
    of_x, of_bias, of_weight, of_h, begins = right(ctx, of_h)
    return of_x, of_bias, 1.05 * of_weight, of_h, begins


recurrence._GRU.backward = staticmethod(backward)
