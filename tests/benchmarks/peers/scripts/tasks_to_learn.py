"""What the contestants of `side_by_side.py` learn, told alike to all, and the one line that each prints.

Needs numpy and gymnasium alone, because it runs in the environment of each peer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np

FINAL_SEED = 7_000_000


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Args:
        algorithm: `"sac"`, `"td3"` or `"ppo"`.
        env: gymnasium's id.
        steps: environment steps of a run; SAC and TD3 do one update for each from `start` on.
        layers: hidden layers of the actor and of each critic.
        batch: rows of an update.
        rate: Adam's, of actor, critics and temperature alike.
        start: steps of random actions before learning begins.
        discount: per step.
        episodes: played with the best action at the end.
        more: what PPO needs besides.
    """

    algorithm: str
    env: str
    steps: int
    layers: tuple[int, int] = (256, 256)
    batch: int = 256
    rate: float = 3e-4
    start: int = 1000
    discount: float = 0.99
    episodes: int = 20
    envs: int = 1
    rollout_steps: int = 1
    epochs: int = 1
    gae_lambda: float = 0.95
    entropy: float = 0.0


LUNAR = {"layers": (64, 64), "batch": 64, "discount": 0.999, "envs": 16, "rollout_steps": 1024}
LUNAR |= {"epochs": 4, "gae_lambda": 0.98, "entropy": 0.01}
ROWS = {
    "sac-pendulum": Row("sac", "Pendulum-v1", 10_000, rate=1e-3),
    "td3-pendulum": Row("td3", "Pendulum-v1", 10_000, rate=1e-3),
    "sac-halfcheetah": Row("sac", "HalfCheetah-v5", 10_000, episodes=10),
    "td3-halfcheetah": Row("td3", "HalfCheetah-v5", 10_000, episodes=10),
    "sac-halfcheetah-20": Row("sac", "HalfCheetah-v5", 20_000, episodes=10),
    "td3-halfcheetah-20": Row("td3", "HalfCheetah-v5", 20_000, episodes=10),
    "ppo-lunarlander": Row("ppo", "LunarLander-v3", 300_000, **LUNAR),
}


def asked(words: Sequence[str] | None = None) -> tuple[str, Row, int, int]:
    """The command line: which row, the seed of everything random, and the threads that learn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--row", choices=[*ROWS], required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(words)
    return given.row, ROWS[given.row], given.seed, given.threads


def mean_return(row: Row, act: Callable[[np.ndarray], Any]) -> float:
    """Of episodes with the best action, from starts that nobody has trained on."""
    env = gymnasium.make(row.env)
    returns = []
    for episode in range(row.episodes):
        obs, _ = env.reset(seed=FINAL_SEED + episode)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return float(np.mean(returns))


def beyond_usual(ends: Sequence[float]) -> float:
    """Seconds that single steps took beyond twenty times the median one, by when each ended: compiling, mostly."""
    took = np.diff(ends)
    usual = float(np.median(took))
    return float((took[took > 20 * usual] - usual).sum())


def tell(peer: str, package: str, **found: Any) -> None:
    """Print the one JSON line."""
    sys.stdout.write("\n" + json.dumps({"peer": peer, "version": version(package), **found}) + "\n")
