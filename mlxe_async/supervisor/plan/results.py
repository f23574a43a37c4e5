"""What a run, or a check, comes back with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Args:
        reason: the stop condition that came true first (`"solved"`, `"env_steps"`, ...), or what was asked for.
        solved: whether the task was solved on the way.
        steps: committed environment steps.
        episodes: finished training episodes.
        updates: updates of the weights.
        seconds: from the start of the run to its end.
        run_dir: the run's folder.
        exit_code: what a command should return.
        weights_hash: SHA-256 of the final flat weights, None if there never were any.
        solved_at: counts at the moment when the version that solved the task was published.
        mean_return: of the last training episodes, 100 at most, by the environment's own rewards; None without any,
            and where learning diverged: what came before is not what was learned.
        score: the highest mean return that a tested version reached; None without tests.
        replayed: of a replay, how far it came and that the weights are the same.
        best: the version that reached it, and the highest of several.
        env_errors: faults of environments, each of which cut an episode short.
        restarts: processes that were started again.
        unexported: of `[logs] export`, which are not whole, a sentence each.
    """

    reason: str
    solved: bool
    steps: int
    episodes: int
    updates: int
    seconds: float
    run_dir: Path
    exit_code: int
    weights_hash: str | None
    solved_at: dict[str, Any] | None = None
    mean_return: float | None = None
    score: float | None = None
    replayed: str | None = None
    best: int | None = None
    env_errors: int = 0
    restarts: int = 0
    unexported: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckReport:
    """What a run would need, found out without running it.

    Args:
        plan: the shared memory, a line per segment.
        facts: what the probe found: spaces, limits, number of parameters.
        start: which checkpoint the run would go on from or begin with, which are spoilt, and what would be lost, a
            line each; empty for a run that begins with weights of its own.
        cautions: what is odd about the settings, as the log of a run would say it.
        survey: host, environment, costs, predicted rates and advice, a line each.
    """

    plan: list[str]
    facts: dict[str, Any]
    start: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)
    survey: list[str] = field(default_factory=list)
