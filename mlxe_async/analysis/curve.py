"""The learning curve of a run by environment steps: returns, tests and measures of learning, a row for each stretch.

One pass over the log, in bounded memory: where the width of a stretch is not given, it grows as the run turns out to
be longer, through 1, 2, 10, 20, 100, ... steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mlxe_async.errors import RunFailed

MOST_ROWS = 400  # where the width is not given; then there are at least a fifth as many, of a long run
MOST_ROWS_GIVEN = 1_000_000
COLUMNS = (
    "env_steps",
    "seconds",
    "episodes",
    "updates",
    "version",
    "return_mean",
    "return_min",
    "return_max",
    "length_mean",
    "test_return_mean",
    "lag_mean",
)
_LEARN = "learn."
_MOST_VERSIONS = 1_000_000

Row = dict[str, float | int | None]


class _Stretch:
    """What the log tells of some environment steps: sums, and what was reached at their end."""

    def __init__(self) -> None:
        self.reached: dict[str, float] = {}
        self.returns: list[float] = [0.0, 0.0, math.inf, -math.inf]  # how many, sum, least, greatest
        self.means: dict[str, list[float]] = {}  # name -> how many, sum

    def reach(self, name: str, value: float) -> None:
        self.reached[name] = max(value, self.reached.get(name, value))

    def add(self, name: str, value: float) -> None:
        mean = self.means.setdefault(name, [0.0, 0.0])
        mean[0] += 1
        mean[1] += value

    def take(self, other: _Stretch) -> None:
        """The stretch that comes next, or another part of the same."""
        for name, value in other.reached.items():
            self.reach(name, value)
        mine, theirs = self.returns, other.returns
        self.returns = [mine[0] + theirs[0], mine[1] + theirs[1], min(mine[2], theirs[2]), max(mine[3], theirs[3])]
        for name, (count, total) in other.means.items():
            mean = self.means.setdefault(name, [0.0, 0.0])
            mean[0], mean[1] = mean[0] + count, mean[1] + total

    def row(self, env_steps: int) -> Row:
        count, total, least, greatest = self.returns
        row: Row = dict.fromkeys(COLUMNS)
        row["env_steps"] = env_steps
        row.update(self.reached)
        if count:
            row.update({"return_mean": total / count, "return_min": least, "return_max": greatest})
        row.update({name: total / count for name, (count, total) in self.means.items()})
        return row


class Curve:
    """Takes in the events of a log, in order, and tells its rows.

    Args:
        every: width of a stretch in environment steps; None: as it turns out.
    """

    def __init__(self, every: int | None = None) -> None:
        self.every, self._grows = every or 1, every is None
        self._stretches: dict[int, _Stretch] = {}
        self._published: dict[int, int] = {}  # environment steps at the publication of a version
        self._factors = [2, 5]
        self._began_ns: int | None = None
        self._gap_ns = 0
        self._steps = 0

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take note of one event.

        Raises:
            RunFailed: there are too many stretches of the width that was asked for.
        """
        self._mind_clock(event)
        steps = event.get("env_steps")
        if type(steps) is int and event.get("event") in ("episode_end", "weights", "phase", "run_end"):
            self._steps = max(self._steps, steps)
        match event.get("event"):
            case "episode_end":
                self._returned(event)
            case "weights":
                self._at(self._steps, event).reach("version", event["version"])
                self._published[event["version"]] = self._steps
                if len(self._published) > _MOST_VERSIONS:
                    del self._published[next(iter(self._published))]
                self._at(self._steps, event).reach("updates", event["updates"])
            case "phase" if event.get("phase") == "learn" and event.get("updates"):
                self._learned(event)
            case "evaluation" if event.get("return_mean") is not None:
                where = self._published.get(event["version"], self._steps)
                self._at(where, None).add("test_return_mean", event["return_mean"])
            case "run_end":
                self._at(self._steps, event).reach("updates", event["updates"])

    def rows(self) -> Iterator[Row]:
        """A row for each stretch of which something is told, the first ones first."""
        for index in sorted(self._stretches):
            yield self._stretches[index].row((index + 1) * self.every)

    def _mind_clock(self, event: Mapping[str, Any]) -> None:
        if event.get("event") == "run_start" and self._began_ns is None:
            self._began_ns = event["mono_ns"]
        if event.get("event") == "run_resume":
            self._gap_ns = event.get("gap_ns") or 0

    def _at(self, steps: int, event: Mapping[str, Any] | None) -> _Stretch:
        index = max(0, steps - 1) // self.every
        if index not in self._stretches:
            self._stretches[index] = _Stretch()
            if len(self._stretches) > (MOST_ROWS if self._grows else MOST_ROWS_GIVEN):
                self._widen()
                return self._at(steps, event)
        stretch = self._stretches[index]
        if event is not None and self._began_ns is not None:
            stretch.reach("seconds", (event["mono_ns"] - self._gap_ns - self._began_ns) / 1e9)
        return stretch

    def _widen(self) -> None:
        if not self._grows:
            raise RunFailed(f"more than {MOST_ROWS_GIVEN:,} stretches of {self.every} steps; expected wider ones")
        factor = self._factors[0]
        self._factors.reverse()
        self.every *= factor
        merged: dict[int, _Stretch] = {}
        for index in sorted(self._stretches):
            merged.setdefault(index // factor, _Stretch()).take(self._stretches[index])
        self._stretches = merged

    def _returned(self, event: Mapping[str, Any]) -> None:
        value = event.get("episode_return")
        stretch = self._at(self._steps, event)
        stretch.reach("episodes", event["episodes"])
        stretch.add("length_mean", event["length"])
        if value is not None:
            count, total, least, greatest = stretch.returns
            stretch.returns = [count + 1, total + value, min(least, value), max(greatest, value)]

    def _learned(self, event: Mapping[str, Any]) -> None:
        stretch = self._at(event["env_steps"] if type(event.get("env_steps")) is int else self._steps, event)
        if event.get("lag_mean") is not None:
            stretch.add("lag_mean", event["lag_mean"])
        for name, value in event["losses"].items():
            if value is not None:
                stretch.add(f"{_LEARN}{name}", value)


def curve_of(events: Iterable[Mapping[str, Any]], every: int | None = None, *, name: str = "the log") -> Curve:
    """The curve of a whole log.

    Args:
        events: its lines, as `read_log` gives them.
        every: width of a stretch in environment steps; None: as it turns out.
        name: of the run, for what is wrong with it.

    Raises:
        RunFailed: a line is not one of this program's.
    """
    curve = Curve(every)
    try:
        for event in events:
            curve.feed(event)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunFailed(f"{name}: expected a log of this program, a line of it cannot be used: {error!r}") from error
    return curve


def columns_of(rows: Sequence[Row]) -> list[str]:
    """The columns that some rows have, those of all runs first, then what algorithms measured."""
    more = {name for row in rows for name in row} - set(COLUMNS)
    return [*COLUMNS, *sorted(more)]
