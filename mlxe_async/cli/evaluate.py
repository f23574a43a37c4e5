"""`eval RUN`: the run's own test of its saved policy, or a harder one, in a new process."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mlxe_async.cli.arguments import Parser
from mlxe_async.cli.console import Console
from mlxe_async.cli.play import which_checkpoint


def run(arguments: Sequence[str]) -> int:
    """Test once and print the verdict. Returns 0 whether or not it passed."""
    parser = Parser("eval RUN [--starts standard|adverse] [--sampled] [--checkpoint best|last|solved|N]")
    parser.add_argument("run")
    parser.add_argument("--starts", choices=["standard", "adverse"], default="standard")
    parser.add_argument("--sampled", action="store_true")
    parser.add_argument("--checkpoint", type=which_checkpoint, default="auto")
    asked = parser.parse_args(arguments)
    from mlxe_async.policy import load_policy

    policy = load_policy(asked.run, asked.checkpoint, tell=Console(sys.stderr).line)
    verdict = policy.test(starts=asked.starts, sampled=asked.sampled)
    how = "passed" if verdict.passed else f"failed at step {verdict.failed_at}" if verdict.failed_at else "failed"
    harder = " from adverse starts" if asked.starts == "adverse" else ""
    harder += " with sampled actions" if asked.sampled else ""
    until = " until then" if verdict.failed_at else ""  # there the other episodes stop too
    sys.stdout.write(
        f"version {verdict.version} {how}{harder}: {verdict.episodes} episodes, {verdict.steps:,} steps, "
        f"return min {verdict.return_min:,.1f} mean {verdict.return_mean:,.1f}{until}, {verdict.seconds:.1f} s\n"
    )
    return 0
