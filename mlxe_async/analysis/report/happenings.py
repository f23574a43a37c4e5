"""Faults and other special events of a run: counted, timed, and the first and last told in words."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_TOLD = 60  # of the first ones, and of the last ones
MOST_TIMED = 100_000  # of a kind: later ones are counted

# Event -> the row of the time line, and whether it is a fault; a new kind of event needs a line here.
KINDS: dict[str, tuple[str, bool]] = {
    "proc_exit": ("death", True),
    "hang": ("hang", True),
    "proc_restart": ("restart", True),
    "env_error": ("environment error", True),
    "poison": ("episode passed over", True),
    "corrupt_record": ("corrupt block", True),
    "checkpoint_rejected": ("checkpoint rejected", True),
    "log_gap": ("gap in the log", True),
    "straggler": ("straggler", False),
    "starved": ("starved of rows", False),
    "warning": ("warning", True),
    "loop_lag": ("supervisor late", False),
    "best_promoted": ("back to the best version", False),
    "stage": ("stage", False),
    "solved": ("solved", False),
    "stop_requested": ("asked to stop", False),
    "run_resume": ("resumed", False),
}
_SAYING = ("sentence", "message", "cause", "reason", "call", "waits_for", "header")
_LONGEST = 400


@dataclass(frozen=True)
class Happening:
    """One event that is told: when, what kind, about which process, in which words."""

    at: float
    clock: str
    kind: str
    who: str
    said: str


class Happenings:
    """All of a run: how many of each kind and when, and the texts of the first and the last, in bounded memory."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.times: dict[str, array[float]] = {}
        self.first: list[Happening] = []
        self.last: deque[Happening] = deque(maxlen=MOST_TOLD)

    def hear(self, at: float, line: Mapping[str, Any]) -> None:
        """Take note of an event of a kind that is told."""
        event = line["event"]
        if event == "proc_exit" and line.get("expected") is True:
            return
        kind = "planned restart" if event == "proc_restart" and line.get("planned") is True else KINDS[event][0]
        self.counts[kind] += 1
        if self.counts[kind] <= MOST_TIMED:
            self.times.setdefault(kind, array("d")).append(at)
        one = Happening(at, str(line.get("ts", ""))[:40], kind, _who(line), _said(line))
        (self.first if len(self.first) < MOST_TOLD else self.last).append(one)

    @property
    def told(self) -> list[Happening]:
        """The first and the last, in order."""
        return [*self.first, *self.last]

    @property
    def faults(self) -> int:
        """The number of faults among them."""
        kinds = {kind for kind, is_fault in KINDS.values() if is_fault}
        return sum(count for kind, count in self.counts.items() if kind in kinds)

    def __len__(self) -> int:
        return self.counts.total()


def _who(line: Mapping[str, Any]) -> str:
    index = line.get("idx")
    return str(line.get("process") or f"{line.get('role', '?')}" + ("" if index is None else f" {index}"))[:_LONGEST]


def _said(line: Mapping[str, Any]) -> str:
    match line["event"]:
        case "solved":
            return f"version {line.get('version')}, told when enough versions in a row had passed"
        case "run_resume":
            died = ", the sitting before had died" if line.get("previous_run_died") is True else ""
            return f"from checkpoint {line.get('checkpoint')}, version {line.get('version')}{died}"
        case "best_promoted":
            return f"the learner went back to version {line.get('best_version')}"
        case "stage":
            return f"stage {line.get('stage')} of {line.get('of')} begins: {line.get('reason')}"[:_LONGEST]
        case "straggler":
            return f"the others have waited {_seconds(line, 'waited_s')} for it"
        case "starved":
            return f"no rows for {_seconds(line, 'waited_s')}: waits for {line.get('waits_for')}"[:_LONGEST]
        case "loop_lag":
            return f"{_seconds(line, 'seconds')} late"
        case "hang":
            return f"hangs in {line.get('call')}: {_seconds(line, 'stuck_s')} longer than its limit"[:_LONGEST]
        case "poison":
            return f"episode {line.get('episode')} was lethal {line.get('deaths')} times: {line.get('sentence')}"[
                :_LONGEST
            ]
        case "env_error":
            where = f"in {line.get('phase')}, episode {line.get('episode')}, step {line.get('step')}"
            return f"{line.get('message')} ({where})"[:_LONGEST]
    said = next((str(line[key]) for key in _SAYING if line.get(key)), "")
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"


def _seconds(line: Mapping[str, Any], key: str) -> str:
    value = line.get(key)
    return f"{value:.1f} s" if isinstance(value, int | float) else "some time"
