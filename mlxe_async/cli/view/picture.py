"""What is known of a run from the events of its log, and of nothing else."""

from __future__ import annotations

import contextlib
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxe_async.cli.view.activity import Activity, Curve
from mlxe_async.settings.model import ROWS_PER_EXECUTOR
from mlxe_async.storage.safe_text import visible

RECENT_EPISODES = 20
MOST_LANES = 1024
LONGEST_TEXT = 300
MOST_METRICS = 8
LARGEST = 2.0**63
ROUNDED = 10.0
ESTIMATE_AFTER_S, ESTIMATE_AFTER_COUNTS = 5.0, 5

ROLES = ("executor", "learner", "memorizer", "evaluator")
UNITS = {"executor": "steps/s", "learner": "updates/s", "memorizer": "rows/s", "evaluator": "steps/s"}
FAULTS = {
    "proc_exit": ("death", "deaths"),
    "hang": ("hang", "hangs"),
    "proc_restart": ("restart", "restarts"),
    "env_error": ("environment error", "environment errors"),
    "corrupt_record": ("corrupt block", "corrupt blocks"),
    "checkpoint_rejected": ("checkpoint rejected", "checkpoints rejected"),
    "log_gap": ("gap in the log", "gaps in the log"),
    "warning": ("warning", "warnings"),
}
_SAYING = ("sentence", "message", "cause", "reason", "call", "header")
_PROCESSES = {"mlxe-exe": "executor", "mlxe-mem": "memorizer", "mlxe-lrn": "learner", "mlxe-eval": "evaluator"}
_WORK = {"executor": "rows", "learner": "updates", "memorizer": "rows", "evaluator": "rows"}


@dataclass(frozen=True)
class Test:
    """The last test of a version."""

    version: int
    passed: bool | None
    failed_at: float | None
    return_mean: float | None

    def words(self) -> str:
        """`test of version 40: 212.3`, for a plain line."""
        verdict = "" if self.passed is None else " passed" if self.passed else " failed"
        step = "" if self.failed_at is None else f" at step {self.failed_at:,.0f}"
        mean = "" if self.return_mean is None else f" {self.return_mean:.4g}"
        return f"test of version {self.version:,}:{mean}{verdict}{step}"


class Lane:
    """One role at work: its state or phase, how busy it is, and how fast.

    Args:
        role: executor, memorizer, learner or evaluator.
        index: which executor; None for the others.
    """

    def __init__(self, role: str, index: int | None) -> None:
        self.role, self.index = role, index
        self.name = role if index is None else f"{role} {index}"
        self.own_process = False
        self.state = "starts"  # "" while it works
        self.is_faulty = False
        self.activity = Activity()
        self._phase = ""

    def doing(self, now_ns: int) -> str:
        """In one word."""
        if self.state:
            return self.state
        return "waits" if not self._phase or self.activity.is_quiet(now_ns) else self._phase

    def be(self, state: str, *, is_faulty: bool = False) -> None:
        """Change the state."""
        self.state, self.is_faulty = state, is_faulty

    def worked(self, event: Mapping[str, Any]) -> None:
        """Take note of a phase of this role."""
        start, seconds = int(_number(event, "start_ns")), _number(event, "seconds")
        waited = sum((event.get("waits") or {}).values())
        share = max(0.0, 1.0 - waited / seconds) if seconds > 0 else 1.0
        self.activity.add(start, start + round(seconds * 1e9), _number(event, _WORK[self.role]), share)
        if event.get("phase") != "publish":
            self._phase = _text(event.get("phase"))
        self.be("")


class Picture:
    """The state of a run after the events fed so far. Times are those of the log's monotonic clock."""

    def __init__(self) -> None:
        self.title: dict[str, str] = {}
        self.stage = ""  # of a curriculum, in words
        self.began_ns: int | None = None
        self.ready_ns: int | None = None  # when work began, from which the seconds of [stop] count
        self.last_ns = 0
        self.lanes: dict[tuple[str, int | None], Lane] = {}
        self.counts = {"env_steps": 0, "episodes": 0, "updates": 0}
        self.counts_before = {"env_steps": 0, "episodes": 0, "updates": 0}  # where a resumed run was taken up
        self.limits: dict[str, float] = {}
        self.passes = 0  # tests in a row that end the run
        self.streak = 0
        self.version = 0
        self.lag_mean: float | None = None
        self.lag_max: float | None = None
        self.lag_limit: float | None = None
        self.returns = Curve()
        self.recent: deque[float] = deque(maxlen=RECENT_EPISODES)
        self.best: float | None = None
        self.kept: float | None = None
        self.takes_rollouts = False  # rows are learned from and given up: memory holds next to none
        self.rollout_rows: float | None = None  # of the last ones
        self.capacity = 0.0
        self.test: Test | None = None
        self.metrics: dict[str, float] = {}  # that environments told of themselves
        self.is_solved = False
        self.faults: Counter[str] = Counter()
        self.last_fault = ""
        self.last_fault_ns = 0
        self.slowest, self.advice = "", ""
        self.stopping = ""
        self.ending = ""  # why it ended
        self.seconds: float | None = None  # how long it took, once it has ended
        self.is_lost = False  # the log's writer is gone without a last word

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take note of one event. What is not known, not complete or of a wrong type is passed over."""
        with contextlib.suppress(TypeError, ValueError, AttributeError):
            self._take(event)

    def feed_episodes(self, same: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> None:
        """Take note of many episodes that ended: what their events share, and columns of what they do not."""
        self.last_ns = max(self.last_ns, int(_number(same, "mono_ns")))
        self._at_least({**same, "episodes": columns["episodes"][-1]}, "episodes", "env_steps")
        returns = [value for value in columns["episode_return"] if value is not None and math.isfinite(value)]
        if returns:
            self.returns.add_all(returns)
            self.recent.extend(returns[-RECENT_EPISODES:])
            self.best = max(returns) if self.best is None else max(self.best, *returns)

    @property
    def is_over(self) -> bool:
        """True if there is nothing to come."""
        return bool(self.ending) or self.is_lost

    def elapsed(self, now_ns: int) -> float:
        """Seconds since the start of the run."""
        if self.seconds is not None:
            return self.seconds
        return max(0.0, (now_ns - self.began_ns) / 1e9) if self.began_ns is not None else 0.0

    def rate(self, now_ns: int) -> float:
        """Environment steps per second, lately, of all executors together."""
        return sum(lane.activity.lately(now_ns)[1] for lane in self.lanes.values() if lane.role == "executor")

    def mean_return(self) -> float | None:
        """Of the last episodes."""
        return sum(self.recent) / len(self.recent) if self.recent else None

    def to_go(self, name: str, now_ns: int) -> float | None:
        """Seconds until a stop condition is met if all goes on as since the start; None before that can be known.

        In the first moments caches are cold and processes still start: what they take says nothing of hours to come.
        """
        spent, limit = self.towards_stop(now_ns)[name]
        worked = 0.0 if self.ready_ns is None else (now_ns - self.ready_ns) / 1e9
        if self.is_over or name == "passed" or not 0 < spent < limit:
            return None
        if name == "seconds":
            return limit - spent
        done = spent - self.counts_before[name]
        if worked < ESTIMATE_AFTER_S or done < ESTIMATE_AFTER_COUNTS:
            return None
        return worked * (limit - spent) / done

    def towards_stop(self, now_ns: int) -> dict[str, tuple[float, float]]:
        """For each stop condition how far it is and how far it has to get."""
        worked = 0.0 if self.ready_ns is None else max(0.0, (now_ns - self.ready_ns) / 1e9)
        seconds = min(worked, self.limits.get("seconds", worked))  # what ends it takes a moment to do so
        spent = {**self.counts, "seconds": seconds, "passed": min(self.streak, self.passes)}
        limits = {**self.limits, **({"passed": self.passes} if self.passes else {})}
        return {name: (spent[name], limit) for name, limit in limits.items()}

    def line(self, now_ns: int) -> str:
        """All that matters on one plain line."""
        parts = [f"{self.counts['env_steps']:,} steps", f"{self.rate(now_ns):,.0f}/s"]
        if self.ready_ns is None and not self.is_over and not any(self.counts.values()):
            parts = ["starts"]
        elif "episodes" not in self.limits:
            parts.append(f"{self.counts['episodes']:,} episodes")
        if (mean := self.mean_return()) is not None:
            parts.append(f"return {mean:.4g}")
        if self.lag_mean is not None:
            parts.append(f"lag {self.lag_mean:,.0f}" if self.lag_mean >= ROUNDED else f"lag {self.lag_mean:.2g}")
        parts.append(f"weights {self.version:,}")
        parts += [self.test.words()] if self.test else []
        parts += [self.stage] if self.stage else []
        stops = [f"{name} {spent:,.0f}/{limit:,g}" for name, (spent, limit) in self.towards_stop(now_ns).items()]
        return "  ".join(parts) + (f"  | {'  '.join(stops)}" if stops else "")

    # -- events -------------------------------------------------------------------------------------------------------

    def _take(self, event: Mapping[str, Any]) -> None:
        name = event.get("event")
        self.last_ns = max(self.last_ns, int(_number(event, "mono_ns")))
        match name:
            case "run_start":
                self._begin(event)
            case "phase":
                self._phase(event)
            case "episode_end":
                self._at_least(event, "episodes", "env_steps")
                self._returned(event)
            case "weights":
                self.version = int(_number(event, "version"))
                self._at_least(event, "updates", "episodes", "env_steps")
            case "evaluation":
                self.streak = int(_number(event, "streak"))
                self.test = Test(
                    version=int(_number(event, "version")),
                    passed=None if event.get("passed") is None else event["passed"] is True,
                    failed_at=_known(event, "failed_at"),
                    return_mean=_known(event, "return_mean"),
                )
            case "stage":
                self.stage = f"stage {_number(event, 'stage'):.0f} of {_number(event, 'of'):.0f}"
            case "solved":
                self.is_solved = True
            case "metrics":
                for name in event.get("values") or ():
                    if name in self.metrics or len(self.metrics) < MOST_METRICS:
                        self.metrics[_text(name)] = _number(event["values"], name)
            case "ledger":
                self.kept = _known(event, "kept")
                self.capacity = _number(event, "capacity") or self.capacity
            case "probe_ok":
                self.takes_rollouts = event.get("memory") == "rollouts"
            case "bottleneck":
                self.slowest, self.advice = _text(event.get("slowest")), _text(event.get("advice"))
            case "straggler":
                for lane in self._of(event):
                    lane.be("straggles")
            case "stop_requested":
                self.stopping = _text(event.get("reason"))
            case "run_resume":
                self._at_least(event, "updates", "episodes", "env_steps")
                self.version = int(_number(event, "version"))
                self.counts_before = dict(self.counts)
            case "run_end":
                self.ending, self.seconds = _text(event.get("reason")) or "?", _known(event, "seconds")
                self._at_least(event, "updates", "episodes", "env_steps")
            case "proc_start" | "proc_exit" | "proc_restart" | "hang":
                self._process(event)
        if name == "proc_start" and not self.counts["env_steps"]:
            self.ready_ns = self.last_ns
        if name in FAULTS and not (name == "proc_exit" and event.get("expected")):
            self._fault(event)

    def _begin(self, event: Mapping[str, Any]) -> None:
        vars(self).update(vars(Picture()))  # a run that is resumed goes on in the same log
        self.began_ns = self.last_ns = int(_number(event, "mono_ns"))
        self.title = {key: _text(event.get(key)) for key in ("run", "algorithm", "env", "schedule", "seed")}
        settings = event.get("settings") or {}
        stages = len((settings.get("task") or {}).get("stages") or ())
        self.stage = f"stage 1 of {stages}" if stages else ""
        stop, schedule = settings.get("stop") or {}, settings.get("schedule") or {}
        limits = {key: _number(stop, key) for key in ("env_steps", "episodes", "updates", "seconds")}
        self.limits = {key: limit for key, limit in limits.items() if limit > 0}
        evaluation = settings.get("evaluation") or {}
        self.passes = int(_number(evaluation, "passes")) if stop.get("solved") else 0
        self.lag_limit = _known(schedule, "max_policy_lag")
        executors = int(_number(schedule, "executors"))
        self.capacity = _number(settings.get("memory") or {}, "capacity_rows") or ROWS_PER_EXECUTOR * executors
        for index in range(min(executors, MOST_LANES)):
            self._lane("executor", index)
        for role in ROLES[1:]:
            if role != "evaluator" or evaluation.get("enabled"):
                self._lane(role, None)

    def _phase(self, event: Mapping[str, Any]) -> None:
        match event.get("phase"):
            case "generate":
                self.counts["env_steps"] += int(_number(event, "rows"))
            case "learn":
                self.counts["updates"] += int(_number(event, "updates"))
                self.rollout_rows = _known(event, "rows", self.rollout_rows)
                self.lag_mean = _known(event, "lag_mean", self.lag_mean)
                self.lag_max = _known(event, "lag_max", self.lag_max)
        if event.get("role") in ROLES:
            self._lane(event["role"], event.get("idx")).worked(event)

    def _returned(self, event: Mapping[str, Any]) -> None:
        if (value := _known(event, "episode_return")) is not None:
            self.returns.add(value)
            self.recent.append(value)
            self.best = value if self.best is None else max(self.best, value)

    def _process(self, event: Mapping[str, Any]) -> None:
        name = event.get("event")
        for lane in self._of(event):
            if name == "proc_start":
                lane.own_process = len(self._of(event)) == 1
                lane.be("")
            elif name == "hang":
                lane.be("hangs", is_faulty=True)
            elif name == "proc_restart":
                lane.be("restarts", is_faulty=True)
            else:
                lane.be("left" if event.get("expected") else "died", is_faulty=not event.get("expected"))

    def _of(self, event: Mapping[str, Any]) -> list[Lane]:
        """The lanes an event is about: one, those that share a process, or all."""
        process = str(event.get("process") or "")
        prefix, _, index = process.rpartition("-") if process[-1:].isdigit() else (process, "", "")
        role = _PROCESSES.get(prefix, event.get("role") if not process else None)
        if role not in ROLES:
            if process not in ("mlxe-serial", "mlxe-istb"):
                return []
            return [lane for lane in self.lanes.values() if process == "mlxe-serial" or lane.role != "evaluator"]
        lanes = [self._lane(role, int(index) if index else event.get("idx"))]
        memorizer = self.lanes.get(("memorizer", None))
        if role == "learner" and memorizer and not memorizer.own_process:
            lanes.append(memorizer)
        return lanes

    def _fault(self, event: Mapping[str, Any]) -> None:
        self.faults[str(event["event"])] += 1
        said = next((event[key] for key in _SAYING if event.get(key)), "")
        if event["event"] == "hang" and said:
            limit = f"{_number(event, 'limit_s'):g} s" + (f", {event['setting']}" if event.get("setting") else "")
            said = f"hangs in {said}, its limit is {limit}"
        index = event.get("idx")
        who = _text(event.get("process") or f"{event.get('role')}{'' if index is None else f' {index}'}")
        if event["event"] != "proc_restart" or not self.last_fault:  # the death before it says more
            said = _text(said) or FAULTS[event["event"]][0]
            self.last_fault = said if said.startswith(who) else f"{who}: {said}"
            self.last_fault_ns = int(_number(event, "mono_ns"))

    def _lane(self, role: str, index: int | None) -> Lane:
        if not (index is None or (type(index) is int and 0 <= index < MOST_LANES)):
            raise ValueError(f"got index {index!r}, expected a small number")
        if (role, index) not in self.lanes:
            self.lanes[role, index] = Lane(role, index)
            self.lanes = dict(sorted(self.lanes.items(), key=lambda item: (ROLES.index(item[0][0]), item[0][1] or 0)))
        return self.lanes[role, index]

    def _at_least(self, event: Mapping[str, Any], *names: str) -> None:
        for name in names:
            self.counts[name] = max(self.counts[name], int(_number(event, name)))


def _known(event: Mapping[str, Any], key: str, otherwise: float | None = None) -> float | None:
    """A finite number, or else what was known before. A log may come from anywhere."""
    value = event.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST
    return value if is_number else otherwise


def _number(event: Mapping[str, Any], key: str) -> float:
    return _known(event, key) or 0


def _text(value: Any) -> str:
    return "" if value is None else visible(str(value), LONGEST_TEXT)
