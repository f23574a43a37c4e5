"""`eval RUN`: the run's own test of its saved policy, or a harder one, in a new process."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mlxe_async.cli.arguments import CHECKPOINT, RUN, Parser
from mlxe_async.cli.console import Console
from mlxe_async.cli.play import which_checkpoint


def run(arguments: Sequence[str]) -> int:
    """Test once and print the verdict. Returns 0 whether or not it passed."""
    parser = Parser(
        "eval RUN [--starts standard|adverse] [--sampled] [--checkpoint best|last|solved|N]",
        "Test the saved policy of a run once, by the [evaluation] of its settings, and say whether it passed. The "
        "exit code is 0 in either case.",
        "eval latest\neval latest --starts adverse --checkpoint best",
    )
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument(
        "--starts", choices=["standard", "adverse"], default="standard", help="adverse: close to failure (CartPole)"
    )
    parser.add_argument("--sampled", action="store_true", help="draw actions instead of taking the best ones")
    parser.add_argument("--checkpoint", type=which_checkpoint, default="auto", metavar="WHICH", help=CHECKPOINT)
    asked = parser.parse_args(arguments)
    from mlxe_async.policy import load_policy

    policy = load_policy(asked.run, asked.checkpoint, tell=Console(sys.stderr).line)
    verdict = policy.test(starts=asked.starts, sampled=asked.sampled)
    how = {True: "passed", False: "failed", None: "not judged"}[verdict.passed]
    how += f" at step {verdict.failed_at}" if verdict.failed_at else ""
    harder = " from adverse starts" if asked.starts == "adverse" else ""
    harder += " with sampled actions" if asked.sampled else ""
    until = " until then" if verdict.failed_at else ""  # there the other episodes stop too
    sys.stdout.write(
        f"version {verdict.version} {how}{harder}: {verdict.episodes} episodes, {verdict.steps:,} steps, "
        f"return min {verdict.return_min:,.1f} mean {verdict.return_mean:,.1f}{until}, {verdict.seconds:.1f} s\n"
    )
    return 0
