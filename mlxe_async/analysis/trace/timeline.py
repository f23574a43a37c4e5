"""The timeline of a run: takes in the lines of its log in order, and knows how the run ended, or that it has not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mlxe_async.analysis.endings import Ending, ending_of, said_of
from mlxe_async.analysis.time_shares import TimeShares
from mlxe_async.analysis.trace.arrows import Arrows, Track, name_of
from mlxe_async.analysis.trace.counters import Counters, of_ledger
from mlxe_async.analysis.trace.details import LONGEST_TITLE, details_of, short, title_of
from mlxe_async.analysis.trace.lives import Lives
from mlxe_async.analysis.trace.sittings import continuous
from mlxe_async.analysis.trace.spans import Span
from mlxe_async.errors import NotFound, RunFailed
from mlxe_async.storage.safe_text import visible

LATEST_NS = 2**63 - 1
SUPERVISOR: Track = ("supervisor", None)

# Drawn as counters and spans, or of no use on a timeline.
_NO_MARK = {"phase", "proc_start", "episode_end", "weights", "ledger", "evaluation", "times", "updates"}
_OF_WHOLE_RUN = {"run_start", "run_resume", "run_end", "solved"}


class Mark(NamedTuple):
    """Something that happened at a moment."""

    name: str
    at: int
    track: Track
    details: dict[str, Any]
    of_whole_run: bool


@dataclass
class Timeline:
    """A log on tracks: a role each, for an executor with its index.

    Args:
        phases: the work of each track.
        lives: when the process of each track was started, and lived.
        marks: faults, restarts, checkpoints and whatever else happened at a moment.
        arrows: from rollouts to batches and versions, and from versions to those that work with them.
        counters: what changes.
        facts: what the run is, and how it ended.
        ending: whether it ended, goes on, or died without a word; `unknown` where the log alone is there.
    """

    phases: dict[Track, list[Span]] = field(default_factory=dict)
    lives: Lives = field(default_factory=Lives)
    marks: list[Mark] = field(default_factory=list)
    arrows: Arrows = field(default_factory=Arrows)
    counters: Counters = field(default_factory=Counters)
    facts: dict[str, Any] = field(default_factory=dict)
    ending: Ending = "unknown"
    _tests: dict[Any, Span] = field(default_factory=dict)
    _shares: TimeShares = field(default_factory=TimeShares)
    _returns: list[tuple[int, Any]] = field(default_factory=list)
    _last: int = 0

    @property
    def began(self) -> int:
        """The first moment of all, in nanoseconds."""
        spans = (span.start for found in (self.phases, self.lives.spans) for row in found.values() for span in row)
        return min([*spans, *(mark.at for mark in self.marks)], default=0)

    def feed(self, line: Mapping[str, Any], gap: int) -> None:
        """Take note of a line, whose clocks are ahead by `gap` nanoseconds."""
        at = _moment(line["mono_ns"], gap)
        event, track = str(line["event"]), _track(line)
        if event == "run_start":
            self.lives.end_all(self._last)  # of the sitting before, of which more is void or was never told
        self._last = max(self._last, at)
        self.facts["last"] = short(line.get("ts"))
        if event != "episode_end":
            self._episodes_end()
        match event:
            case "phase":
                self._phase(line, gap, track)
            case "episode_end":
                self._returns.append((at, line.get("episode_return")))
            case "evaluation":
                self._tested(line, at)
            case "ledger":
                self.arrows.account(line)
                of_ledger(self.counters, at, line)
            case "times":
                self._spent(line, at, track)
            case "run_start":
                self._run_starts(line)
            case "run_resume":
                self.arrows.resume(line.get("env_steps") or 0)
                self._rows_wait(at)
            case "probe_ok":
                self.arrows.learns_once = line.get("memory") == "rollouts"
                self.lives.probes(track, at - _nanoseconds(line.get("seconds")), at)
            case "proc_start":
                self.lives.starts(track, at - _nanoseconds(line.get("seconds")), at, line)
            case "proc_exit":
                self.lives.ends(track, at)
            case "run_end":
                self.facts["end"] = short(line.get("reason"))
        if event not in _NO_MARK:
            self.marks.append(Mark(title_of(line), at, track, details_of(line), event in _OF_WHOLE_RUN))

    def finish(self, is_held: bool | None) -> None:
        """There are no more lines.

        Args:
            is_held: whether a process holds the run's folder; None: that cannot be told.
        """
        self._episodes_end()
        self.ending = ending_of(has_end="end" in self.facts, is_held=is_held)
        self.lives.end_all(self._last)
        sentence = said_of(self.ending)
        if sentence and self.marks:
            told = {"last line": self.facts.get("last")}
            self.marks.append(Mark(sentence, self._last, SUPERVISOR, told, of_whole_run=True))
        self.facts["ending"] = sentence or f"ended: {self.facts['end']}"

    def _run_starts(self, line: Mapping[str, Any]) -> None:
        self.facts.pop("end", None)
        for name in ("run", "env", "algorithm", "schedule", "seed"):
            self.facts[name] = short(line.get(name))
        self.facts.setdefault("began", short(line.get("ts")))

    def _phase(self, line: Mapping[str, Any], gap: int, track: Track) -> None:
        name = str(line["phase"])
        start = _moment(line["start_ns"], gap)
        end = start + _nanoseconds(line["seconds"])
        span = Span(visible(name, LONGEST_TITLE), start, end, details_of(line))
        self.phases.setdefault(track, []).append(span)
        self.arrows.feed(name, track, span, line)
        match name:
            case "generate":
                self.counters.spread("environment steps", start, end, line.get("rows"))
            case "learn":
                self.counters.spread("updates", start, end, line.get("updates"))
                lag = {"mean": line.get("lag_mean"), "max": line.get("lag_max")}
                self.counters.note("policy lag", end, **lag)
            case "evaluate":
                self._tests[line.get("version")] = span
        if name in ("generate", "memorize"):
            self._rows_wait(end)

    def _spent(self, line: Mapping[str, Any], at: int, track: Track) -> None:
        """Show what a process did since it was told last, from then on."""
        shares, seconds = self._shares.feed(line)
        if shares:
            percent = {visible(mode, LONGEST_TITLE): round(100 * share, 2) for mode, share in shares.items()}
            self.counters.note(f"time of {name_of(track)}", at - _nanoseconds(seconds), **percent)

    def _rows_wait(self, at: int) -> None:
        self.counters.note("rows", at, **{"on their way to memory": self.arrows.waiting_rows})

    def _episodes_end(self) -> None:
        """Episodes are told together with their rollout: a point for all of them is enough."""
        returns = [value for _, value in self._returns if isinstance(value, int | float)]
        if returns:
            self.counters.note("return of rollouts", self._returns[-1][0], mean=sum(returns) / len(returns))
        self._returns.clear()

    def _tested(self, line: Mapping[str, Any], at: int) -> None:
        self.counters.note("return of tests", at, mean=line.get("return_mean"))
        if span := self._tests.pop(line.get("version"), None):
            span.details.update(details_of(line))


def timeline_of(lines: Iterable[Mapping[str, Any]], is_held: bool | None, *, name: str = "the log") -> Timeline:
    """The timeline of a whole log.

    Args:
        lines: as `read_log` gives them.
        is_held: whether a process holds the run's folder; None: that cannot be told.
        name: of the run, for what is wrong with it.

    Raises:
        RunFailed: a line is not one of this program's.
        NotFound: there are no lines.
    """
    timeline, number = Timeline(), None
    try:
        for gap, line in continuous(lines):
            number = line.get("seq")
            timeline.feed(line, gap)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        where = f"its line of seq {visible(repr(number), 30)}, or the next one, cannot be used"
        raise RunFailed(f"{name}: expected a log of this program, {where}: {error!r}") from error
    if not timeline.marks and not timeline.phases:
        raise NotFound(f"{name} is no run: expected a run folder, or a log with events")
    timeline.finish(is_held)
    return timeline


def _moment(value: Any, gap: int) -> int:
    if type(value) is not int or not -LATEST_NS < value - gap < LATEST_NS:
        raise ValueError(f"got {visible(repr(value), 60)} as a moment in nanoseconds")
    return value - gap


def _nanoseconds(seconds: Any) -> int:
    """At least one, so that all that happened can be seen; differences of clocks may be a little below 0."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not -1 < seconds < LATEST_NS / 1e9:
        raise ValueError(f"got {visible(repr(seconds), 60)} as seconds")
    return max(1, round(seconds * 1e9))


def _track(line: Mapping[str, Any]) -> Track:
    role, index = line.get("role"), line.get("idx")
    if not isinstance(role, str) or not (index is None or type(index) is int):
        raise ValueError(f"got {visible(repr((role, index)), 60)} as a process")
    return visible(role, LONGEST_TITLE), index
