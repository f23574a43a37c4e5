"""Numbers of one run to draw, from one pass over its log, without the log's texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from mlxe_async.analysis.report.clock import on_one_clock
from mlxe_async.analysis.report.happenings import KINDS, Happenings
from mlxe_async.analysis.report.points import Points, known, mapping, number, required

MOST_LOSSES = 64
MOST_LANES = 1024
MOST_CAUSES = 64
MOST_BUCKETS = 1000
WAITING = "waiting: "
TAKING_IN = "taking in"
# Names of modes in the log that are told otherwise; any other mode has its own name.
MODES = {"waiting": f"{WAITING}a request", "room": f"{WAITING}room in its lane", "taking_in": TAKING_IN}

Line = Mapping[str, Any]
Lane = tuple[str, int | None]
"""A role and which of them: `("executor", 0)`, `("learner", None)`."""


def thread_of(process: str, line: Line, first_of: dict[str, tuple[Any, Any]]) -> str:
    """The name of the process that a line of times is of; with its role where it is of another of its threads.

    Args:
        process: the process.
        line: of the log.
        first_of: role and number that each process told of first, its main thread's; added to.
    """
    who = line.get("role"), line.get("idx")
    if process not in first_of and len(first_of) < MOST_LANES:
        first_of[process] = who
    if who == first_of.get(process, who):
        return process
    return f"{process}: {who[0]}" + ("" if who[1] is None else f" {who[1]}")


class Story:
    """The story of one run; what is in no usable form is counted and passed over."""

    def __init__(self) -> None:
        self.lines = self.unusable = 0
        self.seconds = 0.0  # at the last line
        self.last_ts = ""
        self.env_steps = self.episodes_ended = self.updates = self.version = 0.0
        self.start: dict[str, Any] = {}
        self.probe: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.refused: dict[str, Any] = {}  # the end of an attempt to go on with a dead run
        self.worked: tuple[float, Any] = (0.0, "")  # second and time of the last phase
        self.solved: dict[str, Any] = {}
        self.bottleneck: dict[str, Any] = {}
        self.sittings: list[float] = []  # seconds at which it was resumed
        self.episodes = Points("seconds", "env_steps", "value", "length")
        self.tests = Points("seconds", "env_steps", "version", "mean", "least", "passed")
        self.learning = Points("seconds", "env_steps", "rows", "lag_min", "lag_mean", "lag_max")
        self.losses: dict[str, Points] = {}
        self.metrics: dict[str, Points] = {}
        self.quantiles: dict[str, Points] = {}  # of all actions, weights and gradients
        self.work = {name: Points("start", "end", "amount") for name in ("env_steps", "updates", "learned", "taken")}
        self.ledger = Points("seconds", "ingested", "kept", "capacity", "backlog")
        self.lanes: dict[Lane, dict[str, float]] = {}  # seconds by cause
        self.modes: dict[str, dict[str, float]] = {}  # of each process seconds by what it did or waited for, in all
        self.spells: dict[tuple[str, str], dict[int, int]] = {}  # process and mode -> end of a bucket in ns -> count
        self._first_of: dict[str, tuple[Any, Any]] = {}  # role and number that each process tells of first
        self._modes_before: dict[str, dict[str, float]] = {}  # of these what sittings before have spent
        self.lives: dict[Lane, list[tuple[float, float | None]]] = {}  # born, died
        self.happenings = Happenings()
        self._published: dict[int, float] = {}  # version -> environment steps
        self._hearers: dict[str, Callable[[float, Line], None]] = {
            name.removeprefix("_hear_"): getattr(self, name) for name in dir(self) if name.startswith("_hear_")
        }

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Story:
        """The story that some lines tell."""
        story = cls()
        for at, line in on_one_clock(lines):
            story.hear(at, line)
        return story

    def hear(self, at: float, line: Line) -> None:
        """Take note of one line, told at a second of the run."""
        self.lines += 1
        if at > self.seconds:
            self.seconds = at
        event = line.get("event")
        try:
            if (hearer := self._hearers.get(event)) is not None:  # type: ignore[arg-type]  # a list is caught
                hearer(at, line)
            if event in KINDS:
                self.happenings.hear(at, line)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            self.unusable += 1  # the page tells how many
        if type(ts := line.get("ts")) is str:
            self.last_ts = ts

    # -- events -------------------------------------------------------------------------------------------------------

    def _hear_run_start(self, at: float, line: Line) -> None:
        for lane in self.lives:  # of a sitting before
            self._end_lives(lane, at)
        self._modes_before = {process: dict(seconds) for process, seconds in self.modes.items()}
        self.start = {**line, "ts": self.start.get("ts", line.get("ts"))}
        self.end = {}

    def _hear_probe_ok(self, _at: float, line: Line) -> None:
        self.probe = dict(line)

    def _hear_run_resume(self, at: float, _line: Line) -> None:
        self.sittings.append(at)
        self.end = {}

    def _hear_run_end(self, _at: float, line: Line) -> None:
        if (known(line, "env_steps") or 0.0) < self.env_steps:  # of an attempt to go on that came to nothing
            self.refused = dict(line)
            self.seconds = self.worked[0]
            return
        self.end = dict(line)
        self._reach(line)

    def _hear_solved(self, _at: float, line: Line) -> None:
        self.solved = dict(line)

    def _hear_bottleneck(self, _at: float, line: Line) -> None:
        self.bottleneck = dict(line)

    def _hear_times(self, _at: float, line: Line) -> None:
        process, told = line["process"], mapping(line.get("seconds"))
        name = thread_of(process, line, self._first_of) if isinstance(process, str) else ""
        if not name or (name not in self.modes and len(self.modes) > MOST_LANES):
            raise ValueError(f"got process {process!r}, expected a name, and not too many")
        process = name
        spent = dict(self._modes_before.get(process, {}))
        for mode in told:
            _spend(spent, MODES.get(mode, mode), known(told, mode) or 0.0)
        self.modes[process] = spent
        for mode, counts in mapping(line.get("histograms")).items():
            spells = self.spells.setdefault((process, mode), {})
            _bound(self.spells, MOST_LANES)
            for end, count in mapping(counts).items():
                _bound(spells, MOST_BUCKETS)
                spells[int(end)] = spells.get(int(end), 0) + int(count)

    def _hear_proc_start(self, at: float, line: Line) -> None:
        born = max(0.0, at - (known(line, "seconds") or 0.0))
        self.lives.setdefault(self._lane(line), []).append((born, None))

    def _hear_proc_exit(self, at: float, line: Line) -> None:
        self._end_lives(self._lane(line), at)

    def _hear_episode_end(self, at: float, line: Line) -> None:
        self._reach(line)
        self.episodes.add(at, self.env_steps, number(line, "episode_return"), required(line, "length"))

    def _hear_weights(self, _at: float, line: Line) -> None:
        self._reach(line)
        self.version = required(line, "version")
        self._published[int(self.version)] = self.env_steps

    def _hear_evaluation(self, at: float, line: Line) -> None:
        version = required(line, "version")
        steps = self._published.get(int(version), self.env_steps)
        verdict = line.get("passed")
        passed = 1.0 if verdict is True else 0.0 if verdict is False else math.nan
        self.tests.add(at, steps, version, number(line, "return_mean"), number(line, "return_min"), passed)

    def _hear_ledger(self, at: float, line: Line) -> None:
        told = (number(line, key) for key in ("ingested", "kept", "capacity", "backlog"))
        self.ledger.add(at, *told)

    def _hear_phase(self, at: float, line: Line) -> None:
        seconds = required(line, "seconds")
        start = at - (required(line, "mono_ns") - required(line, "start_ns")) / 1e9
        phase = line["phase"]
        self.worked = at, line.get("ts")
        self._spend(line, str(phase), seconds)
        span = max(0.0, start), max(0.0, start) + max(0.0, seconds)
        match phase:
            case "generate":
                self._reach_steps(line)
                self.work["env_steps"].add(*span, required(line, "rows"))
            case "memorize":
                self.work["taken"].add(*span, required(line, "rows"))
            case "learn":
                self.work["updates"].add(*span, required(line, "updates"))
                self.work["learned"].add(*span, required(line, "rows"))
                self._learned(at, line)

    def _learned(self, at: float, line: Line) -> None:
        steps = known(line, "env_steps")
        steps = self.env_steps if steps is None else steps
        lags = (number(line, key) for key in ("lag_min", "lag_mean", "lag_max"))
        self.learning.add(at, steps, required(line, "rows"), *lags)
        _add_each(self.losses, line.get("losses") or {}, at, steps)

    def _hear_metrics(self, at: float, line: Line) -> None:
        self._reach_steps(line)
        _add_each(self.metrics, mapping(line.get("values")), at, self.env_steps)

    def _hear_quantiles(self, at: float, line: Line) -> None:
        steps = required(line, "env_steps")
        for name, told in mapping(line.get("values")).items():
            if "/" in name:
                continue
            if name not in self.quantiles:
                _bound(self.quantiles, MOST_LOSSES)
                self.quantiles[name] = Points("seconds", "env_steps", "low", "value", "high")
            self.quantiles[name].add(at, steps, *(number(mapping(told), key) for key in ("p5", "p50", "p95")))

    def _end_lives(self, lane: Lane, at: float) -> None:
        lives = self.lives.get(lane, [])
        lives[:] = [(born, at if died is None else died) for born, died in lives]

    def _spend(self, line: Line, phase: str, seconds: float) -> None:
        """Add a phase's seconds to its process, what it waited in it by what it waited for."""
        causes = self.lanes.get((line["role"], line.get("idx")))
        if causes is None:
            causes = self.lanes.setdefault(self._lane(line), {})
        if waits := line.get("waits"):
            for name in mapping(waits):
                if value := known(waits, name) or 0.0:
                    seconds -= value
                    _spend(causes, f"{WAITING}{name}", value)
        _spend(causes, phase, seconds if seconds > 0.0 else 0.0)
        if line.get("ingest_seconds") and (taking_in := known(line, "ingest_seconds")):
            _spend(causes, TAKING_IN, taking_in)

    def _lane(self, line: Line) -> Lane:
        role, index = line["role"], line.get("idx")
        if not isinstance(role, str) or not (index is None or (type(index) is int and 0 <= index < MOST_LANES)):
            raise ValueError(f"got role {role!r} and index {index!r}, expected a name and a small number")
        if (role, index) not in self.lanes and len(self.lanes) > MOST_LANES:
            raise ValueError("too many processes")
        return role, index

    def _reach(self, line: Line) -> None:
        self._reach_steps(line)
        self.episodes_ended = max(self.episodes_ended, known(line, "episodes") or 0.0)
        self.updates = max(self.updates, known(line, "updates") or 0.0)

    def _reach_steps(self, line: Line) -> None:
        steps = known(line, "env_steps")
        if steps is not None and steps > self.env_steps:
            self.env_steps = steps


def _bound(table: Collection[Any], most: int) -> None:
    if len(table) >= most:
        raise ValueError(f"expected at most {most} names")


def _add_each(table: dict[str, Points], told: Line, at: float, steps: float) -> None:
    """Add the numbers of a line, by name, to the points of each."""
    for name in told:
        if (value := known(told, name)) is None:
            continue
        if name not in table:
            _bound(table, MOST_LOSSES)
            table[name] = Points("seconds", "env_steps", "value")
        table[name].add(at, steps, value)


def _spend(causes: dict[str, float], cause: str, seconds: float) -> None:
    if seconds or cause in causes:
        if cause not in causes:
            _bound(causes, MOST_CAUSES)
        causes[cause] = causes.get(cause, 0.0) + seconds
