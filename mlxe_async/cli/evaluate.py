"""`eval RUN`: the run's own test of its saved policy, or a harder or a longer one, in a new process."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxe_async.analysis.tables import shown
from mlxe_async.cli.arguments import CHECKPOINT, RUN, Parser
from mlxe_async.cli.console import Console
from mlxe_async.cli.play import which_checkpoint
from mlxe_async.errors import SettingsError
from mlxe_async.storage.safe_text import visible

if TYPE_CHECKING:
    from mlxe_async.analysis.behaviour import Switching
    from mlxe_async.policy import Policy
    from mlxe_async.roles.evaluator import Verdict

MOST_EPISODES = 10_000


def run(arguments: Sequence[str]) -> int:
    """Test once and print the verdict. Returns 0 whether or not it passed."""
    parser = Parser(
        "eval RUN [--dir FOLDER] [--episodes N] [--json] [--behaviour] [--starts standard|adverse] [--sampled] "
        "[--checkpoint best|last|solved|N] [--trust MODULE|FOLDER]",
        "Test the saved policy of a run once, by the [evaluation] of its settings, and say whether it passed. The "
        "exit code is 0 in either case.",
        "eval latest\neval latest --episodes 100 --json\neval latest --starts adverse --checkpoint best\n"
        "eval latest --behaviour",
    )
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_dir()
    parser.add_argument(
        "--episodes",
        type=int,
        metavar="N",
        help="episodes, all to the end, instead of the settings'; with mean, deviation and 95 %% interval of the mean",
    )
    parser.add_argument("--json", action="store_true", help="the same, and each return, as a line of JSON")
    parser.add_argument(
        "--starts", choices=["standard", "adverse"], default="standard", help="adverse: close to failure (CartPole)"
    )
    parser.add_argument("--sampled", action="store_true", help="draw actions instead of taking the best ones")
    parser.add_argument(
        "--behaviour",
        action="store_true",
        help="how often the action changes, and for how long it is held, in episodes played apart from the test",
    )
    parser.add_argument("--checkpoint", type=which_checkpoint, default="auto", metavar="WHICH", help=CHECKPOINT)
    parser.add_trust()
    asked = parser.parse_args(arguments)
    if asked.episodes is not None and not 1 <= asked.episodes <= MOST_EPISODES:
        parser.error(f"--episodes: got {asked.episodes}")
    if asked.behaviour and asked.starts == "adverse":
        raise SettingsError(
            ["eval: got --behaviour and --starts adverse, expected one of them: behaviour is told from standard starts"]
        )
    from mlxe_async.policy import load_policy

    policy = load_policy(asked.run, asked.checkpoint, trust=asked.trust, tell=Console(sys.stderr).line)
    if not asked.json:
        sys.stdout.write(f"{visible(policy.origin)}\n")
    in_full = asked.json or asked.episodes is not None
    verdict = policy.test(starts=asked.starts, sampled=asked.sampled, episodes=asked.episodes, in_full=in_full)
    behaviour = policy.switching(episodes=asked.episodes, sampled=asked.sampled) if asked.behaviour else None
    if asked.json:
        found = _as_json(policy, verdict, asked)
        more = {} if behaviour is None else {"behaviour": behaviour.to_json()}
        sys.stdout.write(json.dumps({**found, **more}) + "\n")
    else:
        sys.stdout.write(_in_words(verdict, asked) + "\n")
        sys.stdout.write("" if behaviour is None else _behaviour_in_words(behaviour) + "\n")
    return 0


def _behaviour_in_words(found: Switching) -> str:
    """`actions: changed at 12.5 % of 800 steps, held for 7.6 steps on average`."""
    changed = "unknown" if found.rate is None else f"at {100 * found.rate:.1f} %"
    held = "unknown" if found.run_length is None else f"{found.run_length:,.1f}"
    said = f"actions: changed {changed} of {found.steps:,} steps, held for {held} steps on average"
    squared = found.mean_squared_change
    return said if squared is None else f"{said}, squared change {squared:.3g} on average"


def _in_words(verdict: Verdict, asked: argparse.Namespace) -> str:
    how = {True: "passed", False: "failed", None: "not judged"}[verdict.passed]
    how += f" at step {verdict.failed_at}" if verdict.failed_at else ""
    harder = " from adverse starts" if asked.starts == "adverse" else ""
    harder += " with sampled actions" if asked.sampled else ""
    until = " until then" if verdict.failed_at and not verdict.returns else ""  # there the other episodes stop too
    mean = shown(verdict.return_mean, "return")
    if verdict.returns:
        found = summary(verdict.returns)
        mean += f" deviation {_number(found['deviation'])} interval {_ends(found['interval'])}"
    return (
        f"version {verdict.version} {how}{harder}: {verdict.episodes} episodes, {verdict.steps:,} steps, "
        f"return min {shown(verdict.return_min, 'return')} mean {mean}{until}, {verdict.seconds:.1f} s"
    )


def _number(value: float | None) -> str:
    return "unknown" if value is None else shown(value, "return")


def _ends(interval: list[float] | None) -> str:
    return "unknown" if interval is None else " to ".join(shown(end, "return") for end in interval)


def _as_json(policy: Policy, verdict: Verdict, asked: argparse.Namespace) -> dict[str, Any]:
    return {
        "checkpoint": policy.checkpoint,
        "version": policy.version,
        "path": str(policy.path),
        "starts": asked.starts,
        "sampled": asked.sampled,
        "rule": policy.settings.evaluation.rule,
        "passed": verdict.passed,
        "failed_at": verdict.failed_at,
        "fault": verdict.fault,
        "episodes": verdict.episodes,
        "steps": verdict.steps,
        "seconds": verdict.seconds,
        **summary(verdict.returns),
        "returns": list(verdict.returns),
    }


def summary(returns: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation and 95 % interval of the mean of independent returns (n,), and the extremes.

    The deviation is that of a sample (n - 1). The interval is a percentile bootstrap. Both need two values.
    """
    from mlxe_async.analysis.statistics import bootstrap, means

    values = np.asarray(returns, dtype=np.float64)
    several = len(values) > 1
    return {
        "mean": float(values.mean()),
        "deviation": float(values.std(ddof=1)) if several else None,
        "interval": list(bootstrap(values, means)) if several else None,
        "min": float(values.min()),
        "max": float(values.max()),
    }
