"""`play RUN`: watch, record, or just count, episodes of a run's saved policy."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from mlxe_async.cli.arguments import CHECKPOINT, RUN, Parser
from mlxe_async.cli.console import Console
from mlxe_async.errors import SettingsError
from mlxe_async.storage.safe_text import visible

KINDS = ("auto", "best", "last", "solved")
USAGE = (
    "play RUN [--dir FOLDER] "
    "[--episodes N] [--seed S] [--max-steps N] [--render | --video FILE.mp4_OR_FOLDER] [--sampled] "
    "[--checkpoint best|last|solved|N] [--trust MODULE|FOLDER]"
)


def run(arguments: Sequence[str]) -> int:
    """Play some episodes and print a line for each. Returns the exit code."""
    parser = Parser(
        USAGE,
        "Play episodes with the saved policy of a run, and print return and length of each.",
        "play latest --episodes 3\nplay latest --video episode.mp4",
    )
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_dir()
    parser.add_argument("--episodes", type=int, default=1, metavar="N", help="how many; 1 when left out")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first one; the next ones count up")
    parser.add_argument(
        "--max-steps",
        type=int,
        default=None,
        metavar="N",
        help="end episodes after N steps; with --video after 500 when left out",
    )
    parser.add_argument("--render", action="store_true", help="in a window")
    parser.add_argument("--video", metavar="PATH", help="record a file ending in .mp4, or a folder of them")
    parser.add_argument("--sampled", action="store_true", help="draw actions instead of taking the best ones")
    parser.add_argument("--checkpoint", type=which_checkpoint, default="auto", metavar="WHICH", help=CHECKPOINT)
    parser.add_trust()
    asked = parser.parse_args(arguments)
    for name in ("episodes", "max_steps"):
        if getattr(asked, name) is not None and getattr(asked, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: got {getattr(asked, name)}")
    if not 0 <= asked.seed < 2**62:
        parser.error(f"--seed: got {asked.seed}")
    if asked.render and asked.video:
        raise SettingsError(["play: got --render and --video, expected one of them: a window or a file"])
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if asked.video:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures are drawn for a file: no window is to be opened
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    from mlxe_async.policy import VIDEO_STEPS, load_policy

    policy = load_policy(asked.run, asked.checkpoint, trust=asked.trust, tell=Console(sys.stderr).line)
    sys.stdout.write(f"{visible(policy.origin)}\n")
    played = policy.play(
        asked.episodes,
        seed=asked.seed,
        max_episode_steps=asked.max_steps,
        render_mode="human" if asked.render else None,
        video=asked.video,
        sampled=asked.sampled,
    )
    cut = f"cut after {VIDEO_STEPS} steps, as videos are; --max-steps N records more"
    try:
        for number, episode in enumerate(played, 1):
            is_cut = asked.video and asked.max_steps is None and episode.steps == VIDEO_STEPS
            end = "terminated" if episode.terminated else cut if is_cut else "truncated"
            lasted = f"{episode.episode_return:,.1f} in {episode.steps:,} steps"
            sys.stdout.write(f"episode {number}: return {lasted}, {end}\n")
    except KeyboardInterrupt:
        played.close()  # also throws away a video that is not finished
        sys.stderr.write("interrupted\n")
        return 128 + signal.SIGINT
    if asked.video:
        sys.stdout.write(f"video: {visible(asked.video)}\n")
    return 0


def which_checkpoint(text: str) -> str | int:
    """`best`, `last`, `solved`, `auto` or a number, as `load_policy` takes it.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    if text in KINDS:
        return text
    if text.isascii() and text.isdigit() and len(text) < 18:
        return int(text)
    raise argparse.ArgumentTypeError(f'got "{text}"')
