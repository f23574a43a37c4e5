"""`play RUN`: watch, or just count, episodes of a run's saved policy."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mlxe_async.cli.arguments import Parser


def run(arguments: Sequence[str]) -> int:
    """Play some episodes greedily and print a line for each. Returns the exit code."""
    parser = Parser("play RUN [--episodes N] [--seed S] [--max-steps N] [--render] [--checkpoint WHICH]")
    parser.add_argument("run")
    parser.add_argument("--episodes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-steps", type=int, default=None)
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--checkpoint", default="auto")
    asked = parser.parse_args(arguments)
    from mlxe_async.policy import load_policy

    which = int(asked.checkpoint) if asked.checkpoint.isdigit() else asked.checkpoint
    policy = load_policy(asked.run, which)
    sys.stdout.write(f"version {policy.version} of {asked.run}\n")
    played = policy.play(
        asked.episodes,
        seed=asked.seed,
        max_episode_steps=asked.max_steps,
        render_mode="human" if asked.render else None,
    )
    for number, episode in enumerate(played, 1):
        end = "terminated" if episode.terminated else "truncated"
        sys.stdout.write(f"episode {number}: return {episode.episode_return:,.1f} in {episode.steps:,} steps, {end}\n")
    return 0
