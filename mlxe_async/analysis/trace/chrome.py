"""A timeline as a file of trace events, which https://ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mlxe_async.analysis.trace.arrows import Chain, Track, name_of
from mlxe_async.analysis.trace.spans import laid_out
from mlxe_async.analysis.trace.timeline import Timeline

ROLES = ("supervisor", "nursery", "probe", "executor", "memorizer", "learner", "evaluator")
COUNTERS, LIVES, PHASES = 1, 1, 2  # the process of counters; threads of a process: its life, then its phases
_RANKS = {"X": 0, "i": 1, "C": 2, "s": 3, "t": 4, "f": 5}  # of events of one moment: an arrow needs its span first

Timed = tuple[int, int, str]  # an event as JSON, with its moment and its rank
_to_json = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def trace_of(timeline: Timeline) -> bytes:
    """The file: JSON, an event in each line, in the order of time; on each thread no two spans overlap."""
    tracks = {track: number for number, track in enumerate(_tracks(timeline), COUNTERS + 1)}
    began = timeline.began
    names = [*_named(COUNTERS, "counters", {})]
    events: list[Timed] = []
    for track, pid in tracks.items():
        names += _named(pid, name_of(track), _spans(timeline, track, pid, began, events))
    events += _marks(timeline, tracks, began)
    for number, chain in enumerate(timeline.arrows.chains(), 1):
        events += _arrow(number, chain, tracks, began)
    for count in timeline.counters.all():
        events.append(_event("C", count.name, began, max(count.at, began), COUNTERS, 0, args=count.values))
    events.sort(key=lambda one: one[:2])
    facts = _to_json({key: value for key, value in timeline.facts.items() if value is not None})
    lines = ",\n".join([*names, *(text for _, _, text in events)])
    return f'{{"displayTimeUnit":"ms","otherData":{facts},"traceEvents":[\n{lines}\n]}}\n'.encode()


def _spans(timeline: Timeline, track: Track, pid: int, began: int, events: list[Timed]) -> dict[int, str]:
    """Add the spans of a process; returns the names of its threads."""
    lives, phases = timeline.lives.spans.get(track, []), timeline.phases.get(track, [])
    phases_at = PHASES + max(0, laid_out(lives) - 1)
    threads = {LIVES + span.thread: "process" for span in lives} or {LIVES: "marks"}
    for number in range(laid_out(phases)):
        threads[phases_at + number] = name_of(track) if number == 0 else f"{name_of(track)} ({number + 1})"
    for first, spans in ((LIVES, lives), (phases_at, phases)):
        for span in spans:
            span.thread += first
            timed = {"dur": _us(span.end - span.start), "args": span.details}
            events.append(_event("X", span.name, began, span.start, pid, span.thread, **timed))
    return threads


def _tracks(timeline: Timeline) -> list[Track]:
    found = {*timeline.phases, *timeline.lives.spans, *(mark.track for mark in timeline.marks)}

    def place(track: Track) -> tuple[int, str, int]:
        role, index = track
        return ROLES.index(role) if role in ROLES else len(ROLES), role, -1 if index is None else index

    return sorted(found, key=place)


def _named(pid: int, name: str, threads: dict[int, str]) -> Iterator[str]:
    yield _about("process", pid, 0, name=name)
    yield _about("process", pid, 0, sort_index=pid)
    for tid, thread in sorted(threads.items()):
        yield _about("thread", pid, tid, name=thread)
        yield _about("thread", pid, tid, sort_index=tid)


def _about(what: str, pid: int, tid: int, **told: Any) -> str:
    (key,) = told
    return _to_json({"ph": "M", "name": f"{what}_{key}", "pid": pid, "tid": tid, "ts": 0, "args": told})


def _event(kind: str, name: str, began: int, at: int, pid: int, tid: int, **more: Any) -> Timed:
    told = {"ph": kind, "name": name, "ts": _us(at - began), "pid": pid, "tid": tid, **more}
    return at, _RANKS[kind], _to_json(told)


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _marks(timeline: Timeline, tracks: dict[Track, int], began: int) -> Iterator[Timed]:
    for mark in timeline.marks:
        scope = {"s": "g" if mark.of_whole_run else "t", "args": mark.details}
        yield _event("i", mark.name, began, mark.at, tracks[mark.track], LIVES, **scope)


def _arrow(number: int, chain: Chain, tracks: dict[Track, int], began: int) -> Iterator[Timed]:
    """An arrow: it leaves the first span at its end, and meets each other one as soon as it is there."""
    at, last = 0, len(chain.stops) - 1
    for place, (track, span) in enumerate(chain.stops):
        kind = "f" if place == last else "t" if place else "s"
        # Within the span, by a nanosecond: at the end of one another one may begin.
        at = max(at, min(span.start + 1, span.end - 1)) if place else span.end - 1
        more = {"cat": chain.name, "id": number, **({"bp": "e"} if kind == "f" else {})}
        yield _event(kind, chain.name, began, at, tracks[track], span.thread, **more)
