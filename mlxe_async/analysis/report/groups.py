"""Runs of the same settings, seeds aside, side by side with those of others, as `compare` groups them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mlxe_async.analysis.outcomes import digest_of
from mlxe_async.analysis.report.ending import best_test, count, state_of, top, value_of
from mlxe_async.analysis.report.folder import RunRead
from mlxe_async.analysis.report.points import known


@dataclass(frozen=True)
class Group:
    """Runs of one settings.

    Args:
        label: the settings' name, with the first characters of a digest where another group has the same.
        runs: by seed and name.
        style: number of its colour and dashes.
    """

    label: str
    runs: tuple[RunRead, ...]
    style: int

    @property
    def title(self) -> str:
        """The label, and how many runs it stands for where these are several."""
        return f"{self.label} ({len(self.runs)} runs)" if len(self.runs) > 1 else self.label


def group(runs: Iterable[RunRead]) -> list[Group]:
    """Runs by their settings, in the order in which these first come."""
    found: dict[tuple[str, str], list[RunRead]] = {}
    for run in runs:
        name = run.setting("run", "name") or run.name
        digest = digest_of(run.settings) if run.settings else run.name
        found.setdefault((str(name), digest), []).append(run)
    names = [name for name, _ in found]
    labels = [name if names.count(name) == 1 else f"{name}-{digest[:4]}" for name, digest in found]
    return [
        Group(label, tuple(sorted(members, key=_place)), style)
        for style, (label, members) in enumerate(zip(labels, found.values(), strict=True))
    ]


def all_runs(groups: Sequence[Group]) -> list[RunRead]:
    """The runs of all groups, in order."""
    return [run for one in groups for run in one.runs]


def of_group(one: Group) -> str:
    """`oa: 10 runs, of which 9 solved, 1 died; the best test of each from 12 to 500.`; of one run its own sentence."""
    if len(one.runs) == 1:
        return top(one.runs[0])
    states = Counter(state_of(run) for run in one.runs)
    told = ", ".join(f"{many} {state}" for state, many in sorted(states.items()))
    solved = sorted(steps for run in one.runs if (steps := known(run.story.solved, "env_steps")) is not None)
    best = sorted(test[1] for run in one.runs if (test := best_test(run)) is not None)
    until = f"; solved after {count(solved[0])} to {count(solved[-1])} steps" if solved else ""
    tests = f"; the best test of each from {value_of(best[0])} to {value_of(best[-1])}" if best else ""
    return f"{one.label}: {len(one.runs)} runs, of which {told}{until}{tests}."


def _place(run: RunRead) -> tuple[float, str]:
    return (run.seed if isinstance(run.seed, int | float) else float("inf")), run.name
