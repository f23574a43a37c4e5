"""Values of a run by environment steps, under names that people know from other packages."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from mlxe_async.analysis.time_shares import TimeShares

MOST_VERSIONS = 100_000
LARGEST = 2**63 - 1
SPS_EVERY_NS = 500_000_000

# Metrics of algorithms that go by other names elsewhere, or do not belong to losses.
KNOWN = {
    "learning_rate": "charts/learning_rate",
    "epsilon": "charts/epsilon",
    "approximate_kl": "losses/approx_kl",
    "clipped_share": "losses/clipfrac",
}


class Point(NamedTuple):
    """A value under a name, at a number of environment steps and a time in seconds since 1970."""

    name: str
    step: int
    value: float
    time: float


class Scalars:
    """Takes in the lines of a log in order, and tells the points of each."""

    def __init__(self) -> None:
        self._steps = 0
        self._published: dict[int, int] = {}  # environment steps at the publication of a version
        self._began: int | None = None
        self._gap = self._told_sps = 0
        self._shares = TimeShares()

    def feed(self, line: Mapping[str, Any]) -> list[Point]:
        """The points of a line: of what is known and finite.

        Raises:
            ValueError, KeyError, TypeError: it is no line of this program's.
        """
        event = line["event"]
        if event == "run_start" and self._began is None:
            self._began = line["mono_ns"]
        if event == "run_resume":
            self._gap = line.get("gap_ns") or 0
        steps = self._note_steps(line)
        values: Iterator[tuple[str, Any]] = iter(())
        match event:
            case "episode_end":
                values = _of_episode(line)
            case "phase":
                values = self._of_phase(line)
            case "weights":
                self._publish(line["version"])
                values = _of_weights(line)
            case "evaluation":
                steps = self._published.get(line["version"], self._steps)
                values = _of_test(line)
            case "ledger":
                values = iter([("memory/rows", line.get("kept")), ("memory/backlog", line.get("backlog"))])
            case "times":
                who = _who(line)
                shares, _ = self._shares.feed(line)
                values = chain(((f"share/{who}_{mode}", one) for mode, one in shares.items()), _of_latencies(line, who))
            case "quantiles":
                values = _of_quantiles(line)
            case "metrics":
                values = ((f"metrics/{name}", value) for name, value in (line.get("values") or {}).items())
            case "gpu":
                values = ((f"gpu/{name}", line.get(name)) for name in ("allocated", "reserved", "most", "busy"))
            case "training_result":
                values = iter([("charts/training_result", line.get("result"))])
        time = time_of(line)
        return [Point(name, steps, value, time) for name, value in values if _is_finite(value)]

    def histograms(self, line: Mapping[str, Any]) -> list[Histogram]:
        """The histograms of a line that was fed last.

        Raises:
            ValueError, KeyError, TypeError: it is no line of this program's.
        """
        if line["event"] == "quantiles":
            steps, at = self._note_steps(line), time_of(line)
            spread = ((name, _spread(line, name)) for name in line["values"])
            return [Histogram(f"quantiles/{name}", steps, at, *one) for name, one in spread if one[1]]
        if line["event"] != "times" or not line.get("histograms"):
            return []
        time, who = time_of(line), _who(line)
        found = {mode: _histogram(told) for mode, told in line["histograms"].items()}
        return [Histogram(f"latency/{who}_{mode}", self._steps, time, *one) for mode, one in found.items() if one[1]]

    def _note_steps(self, line: Mapping[str, Any]) -> int:
        """Environment steps that a line belongs to: its own, or the most that were told."""
        steps = line.get("env_steps")
        if type(steps) is not int or not 0 <= steps <= LARGEST:
            return self._steps
        if line["event"] == "run_resume":
            self._steps = steps
        self._steps = max(self._steps, steps)
        return steps

    def _publish(self, version: Any) -> None:
        self._published[version] = self._steps
        if len(self._published) > MOST_VERSIONS:
            del self._published[next(iter(self._published))]

    def _of_phase(self, line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        phase = str(line["phase"])
        yield f"time/{phase}_seconds", line.get("seconds")
        if phase == "learn" and line.get("updates"):
            yield "charts/policy_lag", line.get("lag_mean")
            yield "charts/policy_lag_max", line.get("lag_max")
            for name, value in (line.get("losses") or {}).items():
                yield KNOWN.get(name, f"losses/{name}"), value
        if phase == "generate" and self._began is not None:
            lasted = line["mono_ns"] - self._gap - self._began
            if lasted - self._told_sps >= SPS_EVERY_NS:
                self._told_sps = lasted
                yield "charts/SPS", self._steps / lasted * 1e9


def time_of(line: Mapping[str, Any]) -> float:
    """The wall clock of a line, in seconds since 1970."""
    return dt.datetime.fromisoformat(line["ts"]).timestamp()


class Histogram(NamedTuple):
    """Counts by size under a name, at a number of environment steps and a time in seconds since 1970.

    Args:
        name: such as `latency/learner_updating`.
        step: environment steps.
        time: of the line.
        edges: where buckets begin and end, ascending, those of lengths in seconds; one more than counts.
        counts: how many are in each bucket.
    """

    name: str
    step: int
    time: float
    edges: list[float]
    counts: list[int]


def _histogram(told: Mapping[str, Any]) -> tuple[list[float], list[int]]:
    """Edges in seconds and counts, the empty buckets between others included.

    Raises:
        ValueError, TypeError: what is told is no histogram.
    """
    edges, counts = list[float](), list[int]()
    for end, count in sorted((int(end), int(count)) for end, count in told.items()):
        if not 0 < end <= LARGEST or count < 0:
            raise ValueError(f"got {end} and {count}, expected an edge and a count")
        begin = end - (1 << max(0, (end - 1).bit_length() - 3))
        if not edges:
            edges.append(begin / 1e9)
        elif begin / 1e9 > edges[-1]:
            edges, counts = [*edges, begin / 1e9], [*counts, 0]
        edges, counts = [*edges, end / 1e9], [*counts, count]
    return edges, counts


def _spread(line: Mapping[str, Any], name: str) -> tuple[list[float], list[int]]:
    """Edges and counts of numbers of which the quantiles are told, or of Discrete actions the shares.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: what is told is no quantiles.
    """
    count = int(line["counts"][name])
    if shares := (line.get("shares") or {}).get(name):
        return [number - 0.5 for number in range(len(shares) + 1)], [round(share * count) for share in shares]
    known = sorted((_level(key), value) for key, value in line["values"][name].items() if _is_finite(value))
    if not known or (known[0][0], known[-1][0]) != (0.0, 1.0):
        return [], []
    edges, counts, below = [float(known[0][1])], list[int](), 0
    for level, end in known[1:]:
        if end > edges[-1]:  # what lies at one number belongs to the bucket that begins there
            edges, counts, below = [*edges, float(end)], [*counts, round(level * count) - below], round(level * count)
    if not counts:
        room = max(0.5, 1e-6 * abs(edges[0]))
        return [edges[0] - room, edges[0] + room], [count]
    counts[-1] += count - below
    return edges, counts


def _level(name: str) -> float:
    return {"min": 0.0, "max": 1.0}[name] if name in ("min", "max") else float(name.removeprefix("p")) / 100


def _of_quantiles(line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Quantiles of all actions, weights and gradients; those of single parameters are histograms alone."""
    for name, told in line["values"].items():
        if "/" not in name:
            yield from ((f"quantiles/{name}_{key}", told.get(key)) for key in ("p5", "p50", "p95"))


def _who(line: Mapping[str, Any]) -> str:
    return "-".join(str(line[key]) for key in ("role", "idx") if line.get(key) is not None)


def _of_latencies(line: Mapping[str, Any], who: str) -> Iterator[tuple[str, Any]]:
    for mode, told in (line.get("latencies") or {}).items():
        yield from ((f"latency/{who}_{mode}_{name}", value) for name, value in told.items() if name != "count")


def entries_of(settings: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield keys of tables within tables, each with its path, such as `task.env`."""
    if not isinstance(settings, Mapping) or not settings:
        yield place, settings
        return
    for name, value in settings.items():
        yield from entries_of(value, f"{place}.{name}" if place else str(name))


def _of_episode(line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "charts/episodic_return", line.get("episode_return")
    yield "charts/episodic_length", line.get("length")
    yield "charts/episodic_return_average", line.get("average")
    yield "charts/episodic_return_discounted", line.get("discounted_return")


def _of_weights(line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "charts/version", line.get("version")
    yield "charts/updates", line.get("updates")
    yield "charts/episodes", line.get("episodes")
    yield "losses/weights_norm", line.get("norm")


def _of_test(line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "eval/episodic_return", line.get("return_mean")
    yield "eval/episodic_return_min", line.get("return_min")
    passed = line.get("passed")
    yield "eval/passed", None if passed is None else float(passed)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
