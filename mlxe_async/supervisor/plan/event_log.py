"""Turns what happens in a run into events of its log: phases, episodes, tests, faults; and sums for the status."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mlxe_async.logs import events
from mlxe_async.logs.journal import Journal
from mlxe_async.supervisor.plan.budget import Budget, Counters

RECENT_EPISODES = 100
KEPT = 0.99  # of the moving average, for each episode
_ROLES = {"mlxe-exe": "executor", "mlxe-mem": "memorizer", "mlxe-lrn": "learner", "mlxe-eval": "evaluator"}


class EventLog:
    """Turns happenings into events, and keeps the few sums that the status needs.

    Args:
        journal: where events go.
        counters: the run's counters.
        budget: for the run's clock.
    """

    def __init__(self, journal: Journal, counters: Counters, budget: Budget) -> None:
        self._journal, self._counters, self._budget = journal, counters, budget
        self.throttled_s = 0.0
        self.returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._average: float | None = None
        self.lag: dict[str, Any] = {"min": None, "mean": None, "max": None}
        self.last_evaluation: dict[str, Any] | None = None
        self.gpu: dict[str, Any] | None = None
        "The learner's use of its GPU, as it told last; None without one."
        self._warned: Counter[str] = Counter()
        self._noted: set[str] = set()

    @property
    def mean_return(self) -> float | None:
        """Of the last training episodes, None before the first."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    # -- phases ---------------------------------------------------------------------------------------------------

    def generated(self, index: int, report: dict[str, Any]) -> None:
        """An executor delivered a rollout; the counters include it already."""
        self.throttled_s += report["lane_wait_s"]
        ended = report["episodes"]
        count = len(ended["return"])
        changes = report["action_changes"]
        self._played(index, report, rows=report["rows"], episodes=count, action_changes=changes)
        if not count:
            return
        self.returns.extend(ended["return"][-RECENT_EPISODES:])
        first, discounted = self._counters.episodes - count + 1, ended.get("discounted")
        self._journal.emit_all(
            events.EpisodeEnd,
            {
                "version": report["version"],
                "env_steps": self._counters.env_steps,
                **({"discounted_return": None} if discounted is None else {}),  # a column of these would be slow
            },
            {
                **_columns(ended),
                "episodes": range(first, first + count),
                "average": self._averages(ended["return"]),
                **({"discounted_return": discounted} if discounted is not None else {}),
            },
            "executor",
            index,
        )

    def played_greedily(self, index: int, report: dict[str, Any]) -> None:
        """An executor that exploits delivered a rollout, of which nothing is learned."""
        self._played(index, report)
        if report["episodes"]["return"]:
            same = {"version": report["version"], "env_steps": self._counters.env_steps}
            self._journal.emit_all(events.GreedyEpisode, same, _columns(report["episodes"]), "executor", index)

    def _played(self, index: int, report: Mapping[str, Any], **more: Any) -> None:
        """An executor was at work; `more` are the counts of what is learned from."""
        self._journal.emit_routine(
            partial(
                events.PhaseEvent,
                phase="generate",
                start_ns=report["start_ns"],
                seconds=report["seconds"],
                version=report["version"],
                env_steps=self._counters.env_steps,
                waits={"lane": report["lane_wait_s"]},
                **more,
            ),
            "executor",
            index,
        )

    def _averages(self, returns: Sequence[float]) -> list[float | None]:
        """Return the moving average after each of these returns; unknown where one was not finite."""
        found = list[float | None]()
        for value in returns:
            if math.isfinite(value):
                before = self._average
                self._average = value if before is None else KEPT * before + (1.0 - KEPT) * value
            found.append(self._average)
        return found

    def memorized(self, plan: dict[str, Any], rows: int) -> None:
        """The memorizer drew a plan; it has taken in `rows` rows since the last one."""
        self._journal.emit_routine(
            partial(
                events.PhaseEvent,
                phase="memorize",
                start_ns=plan["start_ns"],
                seconds=plan["seconds"],
                version=self._counters.version,
                env_steps=self._counters.env_steps,
                rows=rows,
                ingest_seconds=plan["ingest_seconds"],
            ),
            "memorizer",
        )

    def learned(self, done: dict[str, Any], env_steps: int) -> None:
        """Tell that the learner used up a plan, which it began after `env_steps` steps."""
        self.lag = {"min": done["lag_min"], "mean": done["lag_mean"], "max": done["lag_max"]}
        self._journal.emit_routine(
            partial(
                events.PhaseEvent,
                phase="learn",
                start_ns=done["start_ns"],
                seconds=done["seconds"] - done["publish_seconds"],
                version=done["version"],
                env_steps=env_steps,
                rows=done["rows"],
                updates=done["updates"],
                losses=done["metrics"],
                lag_min=done["lag_min"],
                lag_mean=done["lag_mean"],
                lag_max=done["lag_max"],
                dropped_rows=done["late_rows"] + done["dropped_rows"],
            ),
            "learner",
        )
        if done["set_back"]:
            self._emit(events.BestPromoted(**done["set_back"], version=done["version"]), "learner")
        if done["rolled_back"]:
            self.warn(
                "learner: losses or updated weights were not finite; it went back to the last published ones", "learner"
            )

    @property
    def lines_dropped(self) -> int:
        """Lines of the log that could not be written, on a full disk for example."""
        return self._journal.dropped

    def published(self, version: int, start_ns: int, seconds: float, norm: float | None) -> None:
        """A version is out."""
        self._journal.emit_routine(
            partial(
                events.PhaseEvent,
                phase="publish",
                start_ns=start_ns,
                seconds=seconds,
                version=version,
                env_steps=self._counters.env_steps,
            ),
            "learner",
        )
        self._journal.emit_routine(
            partial(
                events.Weights,
                version=version,
                updates=self._counters.updates,
                env_steps=self._counters.env_steps,
                episodes=self._counters.episodes,
                norm=norm,
            ),
            "learner",
        )

    def updates(self, *, fast: bool, reason: str, products: str) -> None:
        """Tell how the learner does its updates."""
        self._emit(events.Updates(fast=fast, reason=reason or None, products=products or None), "learner")

    def gpu_used(self, told: dict[str, Any]) -> None:
        """The learner tells how it uses its GPU."""
        used = {name: told[name] for name in ("allocated", "reserved", "most", "whole", "busy")}
        self.gpu = {"name": told["name"], **used}
        self._emit(events.Gpu(device=told["name"], **used), "learner")

    def evaluated(self, verdict: dict[str, Any], streak: int) -> None:
        """Tell that a version was tested to the end."""
        self.last_evaluation = {"version": verdict["version"], "passed": verdict["passed"], "streak": streak}
        self._journal.emit_routine(
            partial(
                events.PhaseEvent,
                phase="evaluate",
                start_ns=time.monotonic_ns() - round(verdict["seconds"] * 1e9),
                seconds=verdict["seconds"],
                version=verdict["version"],
                env_steps=self._counters.env_steps,
                rows=verdict["steps"],
                episodes=verdict["episodes"],
            ),
            "evaluator",
        )
        self._journal.emit_routine(
            partial(
                events.Evaluation,
                version=verdict["version"],
                passed=verdict["passed"],
                episodes=verdict["episodes"],
                steps=verdict["steps"],
                seconds=verdict["seconds"],
                return_min=verdict["return_min"],
                return_mean=verdict["return_mean"],
                failed_at=verdict["failed_at"],
                streak=streak,
            ),
            "evaluator",
        )

    # -- faults ---------------------------------------------------------------------------------------------------

    def corrupt(self, block: dict[str, Any]) -> None:
        """A committed block failed its checks."""
        self._emit(
            events.CorruptRecord(lane=block["lane"], sequence=block["sequence"], header=block["detail"]), "memorizer"
        )

    def executor_lost(self, index: int, why: str) -> None:
        """An executor is given up for good."""
        self.warn(f"executor {index} is given up: {why}", "executor", index)

    def warn(self, message: str, role: str = "supervisor", idx: int | None = None, *, loud: bool = False) -> None:
        """Tell that something is odd and the run goes on; `loud`: the user should know now."""
        self._warned[message] += 1
        self._emit(events.Warning(message=message, count=self._warned[message], loud=loud), role, idx)

    def ledger(
        self,
        lanes: list[dict[str, int]],
        ingested: int,
        waiting_blocks: int,
        *,
        kept: int,
        capacity: int,
        overwritten: int = 0,
        former: int = 0,
    ) -> None:
        """The account of rows. What is not yet taken in is known in blocks, and exactly only when there are none.

        `former` rows were taken in by a memory that this run does not go on with.
        """
        ingested += former
        committed = max(self._counters.env_steps, ingested)
        backlog = committed - ingested if waiting_blocks else 0
        self._emit(
            events.Ledger(
                committed=committed,
                ingested=ingested,
                backlog=backlog,
                lost=committed - ingested - backlog,
                torn=sum(lane["corrupt"] for lane in lanes),
                kept=kept,
                capacity=capacity,
                overwritten=overwritten,
                throttled_s=round(self.throttled_s, 3),
                lanes=[{name: _exact(number) for name, number in lane.items()} for lane in lanes],
            )
        )

    def env_error(self, index: int, fault: dict[str, Any]) -> None:
        """An environment raised or broke its contract."""
        self._counters.env_errors += 1
        self._emit(
            events.EnvError(
                env=fault["env"],
                phase=fault["phase"],
                message=fault["detail"],
                episode=fault["episode"],
                step=fault["step"],
                seed=fault["seed"],
                faults=fault["faults"],
                trace=fault["trace"],
            ),
            "executor",
            index,
        )

    def metrics(self, index: int, values: dict[str, float]) -> None:
        """An executor's environments tell numbers of themselves."""
        self._emit(events.Metrics(values=values, env_steps=self._counters.env_steps), "executor", index)

    def noted(self, index: int, kind: str, sentence: str) -> None:
        """An executor's environments do something odd; the first to do so is also a warning for people."""
        self._emit(events.EnvNote(kind=kind, message=sentence), "executor", index)
        if kind not in self._noted and sentence not in self._warned:
            self.warn(sentence, "executor", index)
        self._noted.add(kind)

    def emit(self, event: events.Event, role: str = "supervisor", idx: int | None = None) -> None:
        """Any other event."""
        self._emit(event, role, idx)

    def _emit(self, event: events.Event, role: str = "supervisor", idx: int | None = None) -> None:
        self._journal.emit(event, role, idx)


def role_of(name: str) -> tuple[str, int | None]:
    """Role and index of a process by its name: `"mlxe-exe-3"` -> `("executor", 3)`."""
    for prefix, role in _ROLES.items():
        if name.startswith(prefix):
            index = name.removeprefix(prefix).removeprefix("-")
            return role, int(index) if index else None
    return "supervisor", None


def _columns(ended: Mapping[str, Any]) -> dict[str, Any]:
    """Episodes that ended, as their events have them: the fields of `events.OfAnEpisode`, a value for each."""
    same = {name: ended[name] for name in ("env", "episode", "terminated", "seed")}
    return {**same, "episode_return": ended["return"], "length": ended["steps"]}


def _exact(number: int) -> int | str:
    """Text beyond 2^53, where readers of JSON that know only floats would round it."""
    return number if abs(number) <= 2**53 else str(number)
