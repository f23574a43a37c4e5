"""How one run ended: what it needed to solve its task, or how far it got until it was given up."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxe_async.errors import RunFailed
from mlxe_async.logs.reader import read_log
from mlxe_async.storage.files import read_bounded
from mlxe_async.storage.run_folder import LOG, STATUS

CURVE_POINTS = 200
SPANS_S = 3.0
MOST_SPANS = 600
MOST_TESTS = 2000
RECENT_EPISODES = 100
D0_STEPS = 50_000
_KINDS = {"exe": "executors", "mem": "memorizer", "lrn": "learner", "eval": "evaluator", "sup": "supervisor"}
_LONGEST_STATUS = 2**20
_CLOCKS = ("mono_ns", "start_ns", "published_ns")


@dataclass(frozen=True)
class Outcome:
    """One run, judged.

    Args:
        name: of its settings.
        seed: its seed.
        tested: whether its versions were tested and judged; if not, it cannot be solved, and counts are those at its
            end.
        solved: whether it solved its task. Then all counts are those at the moment when the first of the passing
            versions was published; or, where `[stop] episode_steps` is the goal, when the first such episode was
            through: other executors may play, and one more round may be learned, before the run ends.
        completed: whether the run ended by itself with exit code 0.
        reason: what ended it.
        episodes: training episodes started; where an episode is the goal, those finished, it included.
        env_steps: environment steps.
        updates: updates of the weights.
        cpu_seconds: CPU time of all processes but the evaluator; where an episode is the goal, of all and to the end
            of the run, for the log does not tell of any other moment.
        seconds_to_publication: from the start of the command to that moment; None if it was not solved.
        seconds_to_exit: from the start of the command to its end, tests included.
        tests: versions tested in the whole run.
        end: `episodes`, `env_steps`, `updates` and `seconds` when it ended: where a failure is censored.
        clock: `command` if seconds count from typing the command, `run` if from the start of the run itself, which is
            all that a log can tell.
        final_return: mean return of the last hundred training episodes.
        lag_mean: policy lag, mean over all rows learned from.
        idle: per kind of process, 1 - CPU seconds / seconds it lived.
        at_work: per role, share of the time from the first rollout to the last phase that it spent in its phases, of
            executors without what they waited for room in their lanes.
        retention: versions tested after the task was solved, and how many of them passed; None where being solved
            ends the run at once, for what is still told then is nothing but tests that were under way.
        d0: counts at the end of the first training episode of 50,000 steps, or of as many as are the goal; and under
            names that begin with `start_` those at its beginning, where the log tells them.
        d2: whether the solving version also passes from adverse starts; None if that was not tried.
        curve: at most 200 points (episodes, env_steps, seconds, mean return of the episodes since the point before).
        test_curve: at most 2000 points (env_steps at its publication, mean return) of the versions that were tested;
            of more, points are means of several.
        spans: the first seconds after the first rollout began: (lane, phase, start, seconds, of which waited).
        digest: tells settings apart that bear the same name, seeds and folders aside.
        facts: schedule, algorithm, environment, cores, versions; `passes` in a row that solve the task, or the
            `episode_steps` that do; `jobs`: how many runs were made at the same time, where it was not one.
        run: name of its folder.
        program: hash of the program's source that made it; empty if not known.
        settings: "table.key" and its value, `[run]` aside, as the run had them, what the task had chosen included.
    """

    name: str
    seed: int
    tested: bool
    solved: bool
    completed: bool
    reason: str
    episodes: int | None = None
    env_steps: int | None = None
    updates: int | None = None
    cpu_seconds: float | None = None
    seconds_to_publication: float | None = None
    seconds_to_exit: float | None = None
    tests: int = 0
    end: Mapping[str, float] = field(default_factory=dict)
    clock: str = "command"
    final_return: float | None = None
    lag_mean: float | None = None
    idle: Mapping[str, float] = field(default_factory=dict)
    at_work: Mapping[str, float] = field(default_factory=dict)
    retention: tuple[int, int] | None = None
    d0: Mapping[str, float] | None = None
    d2: bool | None = None
    curve: Sequence[Sequence[float]] = ()
    test_curve: Sequence[Sequence[float]] = ()
    spans: Sequence[Sequence[Any]] = ()
    digest: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""
    program: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Not solved although it was tested, or not even completed."""
        return not self.solved if self.tested else not self.completed

    def needed(self, quantity: str) -> float:
        """Return how much of a quantity it needed; infinitely much if it failed or if that is not known."""
        value = getattr(self, quantity)
        return math.inf if self.failed or value is None else float(value)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Outcome:
        """Return what `to_json` made; what is too new to be known is passed over.

        Raises:
            ValueError: it is no outcome.
        """
        known = {item.name: values[item.name] for item in dataclasses.fields(cls) if item.name in values}
        for item in dataclasses.fields(cls):
            if item.name in known and not _fits(known[item.name], str(item.type)):
                raise ValueError(f"expected an outcome, got {item.name} that is not {item.type}")
        try:
            return cls(**known)
        except TypeError as error:
            raise ValueError(f"expected an outcome, got something else: {error}") from None


def is_timed(runs: Iterable[Outcome]) -> bool:
    """Return whether each of them had the machine for itself, so that its seconds and CPU seconds are its own."""
    return all(one.facts.get("jobs", 1) == 1 for one in runs)


Groups = Mapping[str, Sequence[Outcome]]
"""Name of settings -> its runs."""


def failure(name: str, seed: int, reason: str, seconds: float) -> Outcome:
    """The outcome of a run that left no log to judge it by."""
    end = {"episodes": 0, "env_steps": 0, "updates": 0, "seconds": seconds}
    return Outcome(
        name, seed, tested=True, solved=False, completed=False, reason=reason, seconds_to_exit=seconds, end=end
    )


def outcome(
    run: str | Path, started_ns: int | None = None, seconds_to_exit: float | None = None, *, killed: str = ""
) -> Outcome:
    """Judge a finished run by its folder.

    Args:
        run: the run's folder.
        started_ns: when its command was started, by the host's monotonic clock; None: when the run began.
        seconds_to_exit: how long the command took; None: as long as the run.
        killed: why the log may lack an end; then the run is a failure, judged by the log as far as it goes.

    Raises:
        RunFailed: the log has no end, and `killed` is empty; or it has no beginning; or its lines are damaged.
    """
    folder = Path(run)
    reading = _Reading()
    try:
        for line in read_log(folder / LOG):
            reading.hear(line)
        if not reading.start:
            why = ", its oldest lines were dropped, see [logs] max_mb" if reading.last_ns else ""
            raise RunFailed(f"{run}: expected a run, its log has no run_start{why}")
        if not reading.end and not killed:
            raise RunFailed(f"{run}: expected a finished run, its log has no run_end")
        return reading.outcome(folder, started_ns, seconds_to_exit, killed)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunFailed(f"{run}: expected a log of this program, a line of it cannot be used: {error!r}") from error


class _Reading:
    """What one pass over a log leaves.

    A run that was resumed has one story: lines that a resumption made void are not heard, and clocks go on from the
    checkpoint as if the time between had not been.
    """

    def __init__(self) -> None:
        self.start: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.solved: dict[str, Any] = {}
        self.last_ns = 0
        self.counts: dict[str, int] = {"episodes": 0, "env_steps": 0, "updates": 0}
        self.tests = self.judged = 0
        self.after_solved = [0, 0]
        self.episodes: list[tuple[int, int, int, float]] = []
        self.d0: tuple[int, dict[str, int]] | None = None
        self.long_episode: dict[str, Any] = {}
        self.goal_steps = 0  # of the training episode that is the goal, where one is
        self.goal: tuple[int, dict[str, int]] | None = None
        self.phases: list[dict[str, Any]] = []
        self.lag_rows = self.lag_sum = 0.0
        self.lives: list[list[Any]] = []  # name, born, died
        self.published: dict[int, int] = {}
        self.published_steps: dict[int, int] = {}
        self.test_points: list[tuple[int, float]] = []
        self.gap_ns = 0
        self.resuming: list[Mapping[str, Any]] = []  # how a resumption begins, before it says from where it goes on

    def hear(self, line: Mapping[str, Any]) -> None:
        """Take note of one event."""
        if line.get("event") == "run_start" and line.get("resumed") and self.start:
            self.resuming = [line]
        elif not self.resuming:
            self._take(line)
        else:
            self.resuming.append(line)
            if line.get("event") == "run_resume":
                self.gap_ns = line.get("gap_ns") or 0
                for life in self.lives:
                    life[2] = life[2] or self.last_ns
                taken, self.resuming = self.resuming, []
                for one in taken:
                    self._take(one)

    def _take(self, line: Mapping[str, Any]) -> None:
        if self.gap_ns:
            line = {**line, **{key: line[key] - self.gap_ns for key in _CLOCKS if line.get(key) is not None}}
        self.last_ns = line.get("mono_ns", self.last_ns)
        hear = getattr(self, f"_hear_{line.get('event')}", None)
        if hear is not None:
            hear(line)

    def _hear_run_start(self, line: dict[str, Any]) -> None:
        self.start = {**line, "mono_ns": self.start.get("mono_ns", line["mono_ns"])}
        stop = line["settings"].get("stop", {})
        self.goal_steps = 0 if stop.get("solved") else int(stop.get("episode_steps") or 0)

    def _hear_run_end(self, line: dict[str, Any]) -> None:
        self.end = line
        self.counts = {key: line[key] for key in self.counts}

    def _hear_solved(self, line: dict[str, Any]) -> None:
        # After a resumption the version may be one that was published before it, by another clock.
        published_ns = self.published.get(line["version"], line["published_ns"])
        self.solved = {**line, "published_ns": published_ns if self.gap_ns else line["published_ns"]}

    def _hear_evaluation(self, line: dict[str, Any]) -> None:
        self.tests += 1
        self.judged += line["passed"] is not None
        value = line.get("return_mean")
        if value is not None:
            steps = self.published_steps.get(line["version"], self.counts["env_steps"])
            self.test_points.append((steps, float(value)))
        if self.solved:
            self.after_solved[0] += 1
            self.after_solved[1] += bool(line["passed"])

    def _hear_episode_end(self, line: dict[str, Any]) -> None:
        self.counts.update(episodes=line["episodes"], env_steps=line["env_steps"])
        value = line["episode_return"]
        if value is not None:
            self.episodes.append((line["episodes"], line["env_steps"], line["mono_ns"], value))
        if self.goal is None and line.get("length", 0) >= self.goal_steps > 0:
            self.goal = line["mono_ns"], dict(self.counts)
        if self.d0 is None and line.get("length", 0) >= D0_STEPS:
            self.d0 = line["mono_ns"], dict(self.counts)

    def _hear_long_episode(self, line: dict[str, Any]) -> None:
        self.long_episode = self.long_episode or {**line, "gap_ns": self.gap_ns}

    def _hear_weights(self, line: dict[str, Any]) -> None:
        self.counts["updates"] = line["updates"]
        self.published[line["version"]] = line["mono_ns"]
        self.published_steps[line["version"]] = line.get("env_steps", self.counts["env_steps"])

    def _hear_phase(self, line: dict[str, Any]) -> None:
        if line["role"] == "executor" and line.get("idx") is None:
            return
        self.phases.append(line)
        if line["phase"] == "learn" and line.get("lag_mean") is not None and line["rows"]:
            self.lag_rows += line["rows"]
            self.lag_sum += line["rows"] * line["lag_mean"]

    def _hear_proc_start(self, line: dict[str, Any]) -> None:
        self.lives.append([line["process"], line["mono_ns"] - round(line["seconds"] * 1e9), None])

    def _hear_proc_exit(self, line: dict[str, Any]) -> None:
        for life in self.lives:
            if life[0] == line["process"] and life[2] is None:
                life[2] = line["mono_ns"]

    def outcome(self, folder: Path, started_ns: int | None, seconds_to_exit: float | None, killed: str) -> Outcome:
        """The verdict on all that was heard."""
        settings = self.start["settings"]
        seconds = self.end.get("seconds") or (self.last_ns - self.start["mono_ns"]) / 1e9
        # The run's own clock begins before it has a log to tell of it.
        began_ns = self.last_ns - round(seconds * 1e9) if self.end else self.start["mono_ns"]
        zero_ns = began_ns if started_ns is None else started_ns
        stop = settings.get("stop", {})
        goes_on = self.after_solved[0] and (stop.get("steps_after_solved") or stop.get("solved") is False)
        if self.goal is not None and self.end.get("reason") == "episode_steps":
            # One long training episode is the goal, as in MLxE, and no test.
            cpu = {"cpu_seconds": self.end.get("cpu_seconds")}
            ended = self.long_episode.get("ended", {})
            exact = {key: ended[key] for key in self.goal[1] if key in ended}  # with what others had under way
            self.solved = {**self.goal[1], **exact, **cpu, "published_ns": self.goal[0]}
        evaluation = settings.get("evaluation", {})
        tested = bool(evaluation.get("enabled") and evaluation.get("rule")) or self.judged > 0 or self.goal_steps > 0
        exit_code = self.end.get("exit_code", 3)
        at = self.solved or (self.counts if not tested else {})
        returns = [value for *_, value in self.episodes[-RECENT_EPISODES:]]
        return Outcome(
            name=str(settings.get("run", {}).get("name") or "run"),
            seed=self.start["seed"],
            tested=tested,
            solved=bool(self.solved),
            completed=exit_code == 0 and not killed,
            reason=killed or self.end["reason"],
            episodes=at.get("episodes_started", at.get("episodes")),
            env_steps=at.get("env_steps"),
            updates=at.get("updates"),
            cpu_seconds=self.solved.get("cpu_seconds") if self.solved else self.end.get("cpu_seconds"),
            seconds_to_publication=(self.solved["published_ns"] - zero_ns) / 1e9 if self.solved else None,
            seconds_to_exit=seconds if seconds_to_exit is None else seconds_to_exit,
            tests=self.tests,
            end={**self.counts, "seconds": (self.last_ns - zero_ns) / 1e9},
            clock="run" if started_ns is None else "command",
            final_return=math.fsum(returns) / len(returns) if returns else None,
            lag_mean=self.lag_sum / self.lag_rows if self.lag_rows else None,
            idle=self._idle(folder, began_ns, seconds),
            at_work=self._at_work(),
            retention=(self.after_solved[0], self.after_solved[1]) if goes_on else None,
            d0=self._long(zero_ns),
            curve=self._curve(zero_ns),
            test_curve=self._test_curve(),
            spans=self._spans(),
            digest=digest_of(settings),
            settings=flat(settings),
            facts={
                "schedule": self.start["schedule"],
                "algorithm": self.start["algorithm"],
                "env": self.start["env"],
                "passes": settings.get("evaluation", {}).get("passes"),
                "episode_steps": self.goal_steps or None,
                "host": self.start.get("host", {}),
                "versions": self.start.get("versions", {}),
            },
            run=folder.name,
        )

    def _long(self, zero_ns: int) -> dict[str, float] | None:
        """Counts at both ends of the first long training episode; of older logs only what its end tells."""
        if not self.long_episode:
            return None if self.d0 is None else {**self.d0[1], "seconds": (self.d0[0] - zero_ns) / 1e9}
        told: dict[str, float] = {}
        for prefix, counts in (("start_", self.long_episode["began"]), ("", self.long_episode["ended"])):
            if not counts:
                continue
            told |= {f"{prefix}{key}": counts[key] for key in ("episodes", "env_steps", "updates", "episodes_started")}
            told[f"{prefix}seconds"] = (counts["mono_ns"] - self.long_episode["gap_ns"] - zero_ns) / 1e9
        return told

    def _curve(self, zero_ns: int) -> list[list[float]]:
        points = []
        for some in _parts(self.episodes, CURVE_POINTS):
            episodes, env_steps, ns, _ = some[-1]
            points.append([episodes, env_steps, round((ns - zero_ns) / 1e9, 4), _mean(value for *_, value in some)])
        return points

    def _test_curve(self) -> list[list[float]]:
        points = sorted(self.test_points, key=lambda point: point[0])
        return [[some[-1][0], _mean(value for _, value in some)] for some in _parts(points, MOST_TESTS)]

    def _first_ns(self) -> int | None:
        return min((phase["start_ns"] for phase in self.phases if phase["phase"] == "generate"), default=None)

    def _spans(self) -> list[list[Any]]:
        first = self._first_ns()
        if first is None:
            return []
        spans = []
        for phase in self.phases:
            start, seconds = (phase["start_ns"] - first) / 1e9, phase["seconds"]
            if start < SPANS_S and start + seconds > 0:
                waited = math.fsum((phase.get("waits") or {}).values())
                spans.append([_lane(phase), phase["phase"], round(start, 5), round(seconds, 5), round(waited, 5)])
        return sorted(spans, key=lambda span: float(span[2]))[:MOST_SPANS]

    def _at_work(self) -> dict[str, float]:
        first = self._first_ns()
        if first is None:
            return {}
        last = max(phase["start_ns"] + round(phase["seconds"] * 1e9) for phase in self.phases)
        busy: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for phase in self.phases:
            role = "executors" if phase["role"] == "executor" else phase["role"]
            seconds = phase["seconds"] - math.fsum((phase.get("waits") or {}).values())
            busy[role][_lane(phase)] += max(0.0, seconds)
        wall = max(1e-9, (last - first) / 1e9)
        return {role: round(min(1.0, sum(s.values()) / len(s) / wall), 4) for role, s in busy.items()}

    def _idle(self, folder: Path, began_ns: int, seconds: float) -> dict[str, float]:
        try:
            used = dict(json.loads(read_bounded(folder / STATUS, _LONGEST_STATUS))["cpu_seconds"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return {}
        wall: dict[str, float] = defaultdict(float, {"mlxe-sup": seconds})
        for name, born, died in self.lives:
            wall[name] += ((died or began_ns + round(seconds * 1e9)) - born) / 1e9
        totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for name, cpu in used.items():
            if wall[name] > 0:
                kind = _KINDS.get(name.split("-")[1] if "-" in name else name, name.removeprefix("mlxe-"))
                totals[kind][0] += cpu
                totals[kind][1] += wall[name]
        return {kind: round(max(0.0, 1 - cpu / lived), 4) for kind, (cpu, lived) in totals.items()}


def digest_of(settings: Mapping[str, Any]) -> str:
    """Twelve characters that tell settings apart, `[run]` (name, seed, folder) aside."""
    tables = {name: table for name, table in settings.items() if name != "run"}
    return hashlib.sha256(json.dumps(tables, sort_keys=True, default=str).encode()).hexdigest()[:12]


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return "table.key": value of all tables but `[run]`."""
    tables = {name: table for name, table in settings.items() if name != "run" and isinstance(table, Mapping)}
    return {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}


def of_format_1(record: Mapping[str, Any]) -> dict[str, Any]:
    """A stored outcome of the first format, mended.

    Where an episode of 50,000 steps was the goal, its counts were those at the run's end; those at that moment stand in
    `d0`. Its retention was also told of runs that stopped as soon as they were solved.
    """
    mended = dict(record)
    d0, facts = record.get("d0"), record.get("facts")
    if record.get("reason") == "episode_steps" and isinstance(d0, Mapping) and isinstance(facts, Mapping):
        mended.update({key: d0.get(key) for key in ("episodes", "env_steps", "updates")})
        mended["facts"] = {**facts, "episode_steps": facts.get("episode_steps") or D0_STEPS}
    if record.get("reason") == "solved":
        mended["retention"] = None
    return mended


def _fits(value: Any, kind: str) -> bool:
    """Return whether a value from JSON is of a kind, written as the annotations of `Outcome` are."""
    if kind.endswith(" | None"):
        return value is None or _fits(value, kind.removesuffix(" | None"))
    if kind.startswith("Mapping"):
        numbers = kind == "Mapping[str, float]"
        return isinstance(value, Mapping) and (not numbers or all(_fits(item, "float") for item in value.values()))
    if kind == "tuple[int, int]":
        return isinstance(value, list | tuple) and len(value) == 2 and all(_fits(item, "int") for item in value)
    if kind.startswith("Sequence"):
        inner = kind.removeprefix("Sequence[").removesuffix("]")
        return isinstance(value, list | tuple) and all(_fits(item, inner) for item in value)
    if isinstance(value, bool):
        return kind in ("bool", "Any")
    return isinstance(value, {"str": str, "int": int, "float": int | float, "Any": object}.get(kind, ()))


def _parts(points: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    """Split points in their order into at most `most` parts of nearly the same length."""
    groups = min(most, len(points))
    for part in range(groups):
        yield points[len(points) * part // groups : len(points) * (part + 1) // groups]


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return round(math.fsum(known) / len(known), 4)


def _lane(phase: Mapping[str, Any]) -> str:
    return f"executor {phase['idx']}" if phase["role"] == "executor" else str(phase["role"])
