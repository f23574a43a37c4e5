"""The built-in algorithms after an attack that the environment variable ATTACK names, and a task that makes it.

`attacked:PPO` is for `[algorithm] name`: the attack is in all processes. `attacked:Attacked-v0` is for `[task] env`.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "fast"))

import attacks
import gymnasium

_name, _attack = attacks.ATTACKS.get(os.environ.get("ATTACK", ""), ("", lambda: None))
_attack()

gymnasium.register("Attacked-v0", entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv")


MODULES = {"PPO": "ppo", "DQN": "dqn", "MLxE": "mlxe.paper", "SAC": "sac", "TD3": "td3", "DDPG": "ddpg"}


def __getattr__(name):
    if name not in MODULES:
        raise AttributeError(name)
    return vars(sys.modules[f"mlxe_async.algorithms.{MODULES[name]}"])[name]
