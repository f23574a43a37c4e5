"""One run as its log tells it so far: counters, curves, lanes, times and faults, in memory that does not grow."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mlxe_async.analysis.endings import ending_of
from mlxe_async.analysis.report.happenings import KINDS, Happenings
from mlxe_async.analysis.report.points import known, mapping, number, required
from mlxe_async.analysis.report.story import MODES, thread_of
from mlxe_async.cli.dashboard.series import Series
from mlxe_async.cli.view.picture import Picture
from mlxe_async.storage.safe_text import redact

MOST_NAMES = 64
MOST_PROCESSES = 256
LONGEST_NAME = 100
LAST_EPISODES = 24
RECENT = 100
KEPT, MOVED = 0.99, 0.01
"""Shares of the moving average: kept at each episode, and taken of the new return."""
RATE_EVERY_S = 1.0
MOST_VERSIONS = 10_000
MOST_HELD = 1000  # lines of a resumed sitting before it tells how long the pause was

Line = Mapping[str, Any]


class Episode(NamedTuple):
    """A training episode that ended.

    Args:
        number: within the run, from 1.
        executor: which one it was played by, in words.
        env: which of its environments.
        value: its return; None if it is not known.
        length: its steps.
        version: of the weights at its last step.
        seed: its seed; None if it is not known.
        moving: the moving average with it.
    """

    number: int
    executor: str
    env: int
    value: float | None
    length: int
    version: int
    seed: int | None
    moving: float


class RunNow:
    """Takes in the lines of a log in their order; what is in no usable form is counted and passed over.

    Args:
        name: of the run's folder.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_held: bool | None = None
        self.picture = Picture()
        self.lines = self.unusable = 0
        self.seconds = self.env_steps = self.updates = self.episodes = 0.0
        self.last_ts = ""
        self.start: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.solved: dict[str, Any] = {}
        self.checkpoint: dict[str, Any] = {}
        self.bottleneck: dict[str, Any] = {}
        self.ledger: dict[str, Any] = {}
        self.norm: float | None = None
        self.moving = 0.0  # average of returns as the study of a server of weights took it
        self.recent: deque[float] = deque(maxlen=RECENT)
        self._recent_sum = 0.0
        self.best: Episode | None = None
        self.best_test: tuple[int, float] | None = None
        self.last_episodes: deque[Episode] = deque(maxlen=LAST_EPISODES)
        self.by_executor: Counter[str] = Counter()
        self.returns, self.averages, self.tests = Series(), Series(), Series()
        self.lag_mean, self.lag_max, self.fill, self.backlog = Series(), Series(), Series(), Series()
        self.rates = {"env_steps": Series(), "updates": Series()}
        self.losses: dict[str, Series] = {}
        self.metrics: dict[str, Series] = {}
        self.modes: dict[str, dict[str, float]] = {}
        self.happenings = Happenings()
        self._zero_ns: float | None = None
        self._gap_ns = 0.0
        self._held = 0  # lines yet to come without a time of their own
        self._published: dict[int, float] = {}
        self._before: dict[str, dict[str, float]] = {}
        self._first_of: dict[str, tuple[Any, Any]] = {}
        self._rated = (0.0, 0.0, 0.0)  # seconds, steps and updates when rates were taken last
        self._hearers: dict[str, Callable[[Line], None]] = {
            name.removeprefix("_hear_"): getattr(self, name) for name in dir(self) if name.startswith("_hear_")
        }

    def feed(self, line: Line) -> None:
        """Take note of one line."""
        self.lines += 1
        event = line.get("event")
        hearer = self._hearers.get(event) if isinstance(event, str) else None
        self._mind_clock(line)
        if event != "episode_end":  # the most frequent line: all that it tells is kept here
            self.picture.feed(line)
        try:
            if hearer is not None:
                hearer(line)
            if event in KINDS:
                self.happenings.hear(self.seconds, line)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            self.unusable += 1  # the page tells how many
        if type(ts := line.get("ts")) is str:
            self.last_ts = ts[:LONGEST_NAME]

    def leave_out(self, episodes: Mapping[int, int]) -> None:
        """Count episodes that were not looked at, by executor."""
        for index, count in episodes.items():
            self.lines += count
            self._count(f"executor {index}", count)

    def _count(self, executor: str, episodes: int) -> None:
        if executor in self.by_executor or len(self.by_executor) < MOST_PROCESSES:
            self.by_executor[executor] += episodes

    @property
    def state(self) -> str:
        """One word: `running`, `solved`, `finished`, `stopped`, `failed`, `died` or `unknown`."""
        if not self.end:
            return ending_of(has_end=False, is_held=self.is_held)
        if self.end.get("solved") is True or self.solved:
            return "solved"
        if self.end.get("exit_code") == 0:
            return "finished"
        return "stopped" if str(self.end.get("reason", "")).startswith("SIG") else "failed"

    @property
    def mean_return(self) -> float | None:
        """The mean return of the last hundred training episodes at most."""
        return math.fsum(self.recent) / len(self.recent) if self.recent else None

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings as the log has them, without secrets."""
        return mapping(redact(mapping(self.start.get("settings"))))

    # -- events -------------------------------------------------------------------------------------------------------

    def _hear_run_start(self, line: Line) -> None:
        self._before = {process: dict(modes) for process, modes in self.modes.items()}
        self.start, self.end = {**line, "ts": self.start.get("ts", line.get("ts"))}, {}

    def _hear_run_resume(self, _line: Line) -> None:
        self.end = {}

    def _hear_run_end(self, line: Line) -> None:
        self.end = dict(line)
        self._reach(line)

    def _hear_solved(self, line: Line) -> None:
        self.solved = dict(line)

    def _hear_checkpoint(self, line: Line) -> None:
        self.checkpoint = dict(line)

    def _hear_bottleneck(self, line: Line) -> None:
        self.bottleneck = dict(line)

    def _hear_weights(self, line: Line) -> None:
        self._reach(line)
        self.norm = known(line, "norm")
        self._published[int(required(line, "version"))] = self.env_steps
        if len(self._published) > MOST_VERSIONS:
            del self._published[next(iter(self._published))]

    def _hear_episode_end(self, line: Line) -> None:
        self._reach(line)
        self.picture.counts["episodes"] = int(self.episodes)
        value, index = known(line, "episode_return"), known(line, "idx")
        executor = "executor" if index is None else f"executor {index:.0f}"
        self._count(executor, 1)
        if value is not None:
            average = known(line, "average")  # of all episodes, also of those that were not looked at
            own = KEPT * self.moving + MOVED * value if self.moving else value
            self.moving = own if average is None else average
            self._recent_sum += value - (self.recent[0] if len(self.recent) == RECENT else 0.0)
            self.recent.append(value)
        seed = known(line, "seed")
        env, length, version = (int(number(line, key)) for key in ("env", "length", "version"))
        told = Episode(
            int(self.episodes),
            executor,
            env,
            value,
            length,
            version,
            None if seed is None else int(seed),
            self.moving,
        )
        self.last_episodes.append(told)
        if value is None:
            return
        if self.best is None or self.best.value is None or value > self.best.value:
            self.best = told
        self.returns.add(self.env_steps, self.seconds, value, self._recent_sum / len(self.recent))
        self.averages.add(self.env_steps, self.seconds, self.moving)

    def _hear_evaluation(self, line: Line) -> None:
        version, mean = int(required(line, "version")), known(line, "return_mean")
        if mean is None:
            return
        self.tests.add(self._published.get(version, self.env_steps), self.seconds, mean)
        if self.best_test is None or mean > self.best_test[1]:
            self.best_test = version, mean

    def _hear_phase(self, line: Line) -> None:
        self._reach_steps(line)
        if line.get("phase") == "learn":
            self._learned(line)
        since, steps, updates = self._rated
        lasted = self.seconds - since
        if lasted >= RATE_EVERY_S:
            for name, now, before in (("env_steps", self.env_steps, steps), ("updates", self.updates, updates)):
                self.rates[name].add(self.env_steps, self.seconds, max(0.0, now - before) / lasted)
            self._rated = self.seconds, self.env_steps, self.updates

    def _learned(self, line: Line) -> None:
        self.updates += max(0.0, known(line, "updates") or 0.0)
        for series, key in ((self.lag_mean, "lag_mean"), (self.lag_max, "lag_max")):
            if (lag := known(line, key)) is not None:
                series.add(self.env_steps, self.seconds, lag)
        self._add_each(self.losses, mapping(line.get("losses")))

    def _hear_metrics(self, line: Line) -> None:
        self._reach_steps(line)
        self._add_each(self.metrics, mapping(line.get("values")))

    def _hear_ledger(self, line: Line) -> None:
        self.ledger = dict(line)
        kept, capacity, backlog = (known(line, key) for key in ("kept", "capacity", "backlog"))
        if kept is not None and capacity:
            self.fill.add(self.env_steps, self.seconds, 100 * kept / capacity)
        if backlog is not None:
            self.backlog.add(self.env_steps, self.seconds, backlog)

    def _hear_times(self, line: Line) -> None:
        process, told = line["process"], mapping(line.get("seconds"))
        if not isinstance(process, str) or len(process) > LONGEST_NAME:
            raise ValueError(f"got process {process!r:.60}, expected a short name")
        process = thread_of(process, line, self._first_of)
        if len(process) > 2 * LONGEST_NAME or (process not in self.modes and len(self.modes) >= MOST_PROCESSES):
            raise ValueError(f"expected at most {MOST_PROCESSES} processes and threads of short names")
        spent = dict(self._before.get(process, {}))
        for mode in told:
            name = MODES.get(mode, mode)
            if len(name) <= LONGEST_NAME and (name in spent or len(spent) < MOST_NAMES):
                spent[name] = spent.get(name, 0.0) + max(0.0, known(told, mode) or 0.0)
        self.modes[process] = spent

    def _add_each(self, table: dict[str, Series], told: Line) -> None:
        for name in told:
            value = known(told, name)
            if value is None or len(name) > LONGEST_NAME or (name not in table and len(table) >= MOST_NAMES):
                continue
            table.setdefault(name, Series()).add(self.env_steps, self.seconds, value)

    def _reach(self, line: Line) -> None:
        self._reach_steps(line)
        self.episodes = max(self.episodes, known(line, "episodes") or 0.0)
        self.updates = max(self.updates, known(line, "updates") or 0.0)

    def _reach_steps(self, line: Line) -> None:
        self.env_steps = max(self.env_steps, known(line, "env_steps") or 0.0)

    def _mind_clock(self, line: Line) -> None:
        """Count seconds of the run; what passed between two sittings is left out once it is told."""
        event = line.get("event")
        if event == "run_start" and line.get("resumed") is True and self.lines > 1:
            self._held = MOST_HELD
        elif event == "run_resume" and self._zero_ns is not None:
            gap_ns, self._held = known(line, "gap_ns") or 0.0, 0
            self._zero_ns, self._gap_ns = self._zero_ns + gap_ns - self._gap_ns, gap_ns
        elif self._held:
            self._held -= 1
        now = known(line, "mono_ns")
        if now is None or self._held:
            return
        if self._zero_ns is None:
            self._zero_ns = now
        self.seconds = max(0.0, (now - self._zero_ns) / 1e9)
