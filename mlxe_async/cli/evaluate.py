"""`eval RUN`: the run's own test of its saved policy, in a new process."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mlxe_async.cli.arguments import Parser


def run(arguments: Sequence[str]) -> int:
    """Test once and print the verdict. Returns 0 whether or not it passed."""
    parser = Parser("eval RUN [--checkpoint WHICH]")
    parser.add_argument("run")
    parser.add_argument("--checkpoint", default="auto")
    asked = parser.parse_args(arguments)
    from mlxe_async.policy import load_policy

    which = int(asked.checkpoint) if asked.checkpoint.isdigit() else asked.checkpoint
    policy = load_policy(asked.run, which)
    verdict = policy.test()
    how = "passed" if verdict.passed else f"failed at step {verdict.failed_at}" if verdict.failed_at else "failed"
    sys.stdout.write(
        f"version {verdict.version} {how}: {verdict.episodes} episodes, {verdict.steps:,} steps, "
        f"return min {verdict.return_min:,.1f} mean {verdict.return_mean:,.1f}, {verdict.seconds:.1f} s\n"
    )
    return 0
