"""The search of `tune`: which settings to measure next, given the rates of those that were measured.

It begins with the settings as they are and goes from the best ones found so far to their neighbours: what the verdict
advises first, then another split of the environments among executors, other schedules in rounds, another place of the
memory, more threads. It ends where no neighbour is better, or when the caller has no time left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BETTER = 1.03
"""Rates that differ by less are alike: short runs tell no more."""
CLOSE = 1.35
"""Times as fast: settings that were slower than that are not the best."""
IN_ROUNDS = ("serial", "is", "istb")
"""Schedules under which all rows of a round come from one version: what is learned does not depend on which it is."""
MOST_THREADS = 4

Changes = Mapping[str, Any]
Named = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Knobs:
    """Settings that decide about the pace.

    Args:
        kind: of the schedule.
        executors: how many there are.
        envs: environments of each.
        sync: `"rollout"` or `"episode"`.
        rollout_steps: of each environment.
        memorizer: `"auto"`, `"own"` or `"learner"`.
        threads: of the learner; 0: those that are left.
        device: of the learner.
        is_replay: rows are drawn again and again; None: not known.
        capacity: rows that are kept; None: as many for each executor as the default says.
        gradients: made by the `"learner"` or by `"executors"`.
    """

    kind: str
    executors: int
    envs: int
    sync: str = "rollout"
    rollout_steps: int = 128
    memorizer: str = "auto"
    threads: int = 0
    device: str = "cpu"
    is_replay: bool | None = None
    capacity: int | None = None
    gradients: str = "learner"

    def after(self, changes: Changes) -> Knobs:
        """The knobs with some settings changed."""
        names = {key: name for name, key in _KEYS.items()}
        known = {names[key]: "auto" if value is None else value for key, value in changes.items() if key in names}
        return Knobs(**{**{name: getattr(self, name) for name in self.__dataclass_fields__}, **known})


_KEYS = {
    "kind": "schedule.kind",
    "executors": "schedule.executors",
    "envs": "schedule.envs_per_executor",
    "sync": "schedule.sync",
    "rollout_steps": "schedule.rollout_steps",
    "memorizer": "schedule.memorizer",
    "threads": "learner.threads",
    "capacity": "memory.capacity_rows",
    "gradients": "schedule.gradients",
}
EACH_EXECUTOR = 1024
"""Rows that are kept for each executor where nothing is said."""


def keeps_learning(before: Knobs, after: Knobs) -> bool:
    """Return whether updates learn from as many rows, of as many environments, and of as young a policy, as before."""
    if before.gradients != after.gradients:
        return False
    if (before.kind, before.executors, before.envs) == (after.kind, after.executors, after.envs):
        return (before.sync, before.rollout_steps, before.capacity) == (after.sync, after.rollout_steps, after.capacity)
    return (
        before.kind in IN_ROUNDS
        and after.kind in IN_ROUNDS
        and before.executors * before.envs == after.executors * after.envs
        and (before.executors == after.executors or before.sync == after.sync == "rollout")
        and before.rollout_steps == after.rollout_steps
        and (before.executors == after.executors or _kept(before) == _kept(after))
    )


def _kept(knobs: Knobs) -> int | None:
    """Rows that a replay memory keeps; None where there is none, or that is not known."""
    if not knobs.is_replay:
        return None if knobs.is_replay is False else -knobs.executors
    return knobs.capacity or EACH_EXECUTOR * knobs.executors


def neighbours(now: Knobs, cores: int, advised: Changes = {}, limit: str = "") -> Iterator[dict[str, Any]]:  # noqa: B006 - never written
    """Yield changes to try from here, the most promising first; not all of them keep what is learned.

    Args:
        now: settings.
        cores: that a run may use.
        advised: what the verdict on a run with these settings predicts to help.
        limit: what that verdict says limits the run.
    """
    threads = [o for o in (1, 2, MOST_THREADS) if o != (now.threads or 1) and o <= cores] if now.device == "cpu" else []
    if limit in ("learner", "cores"):  # threads that wait for a core, and for each other, cost more than they do
        yield from ({"learner.threads": one} for one in threads if one < now.threads)
    if advised:
        yield from _as_split(now, advised)
        yield dict(advised)
    if limit == "learner" and now.gradients == "learner" and now.kind in ("is", "oa") and now.executors > 1:
        yield {"schedule.gradients": "executors"}
    if now.kind in IN_ROUNDS and now.sync == "rollout":
        total = now.executors * now.envs
        fitting = [one for one in range(1, total + 1) if total % one == 0 and one <= max(2 * cores, now.executors)]
        smaller, larger = [o for o in fitting if o < now.executors][::-1], [o for o in fitting if o > now.executors]
        near = [one for one in (cores, *smaller[:1], *larger[:1]) if one in fitting and one != now.executors]
        for executors in dict.fromkeys(near):
            yield _split(now, executors)
    if now.kind in IN_ROUNDS:
        yield from ({"schedule.kind": kind} for kind in ("is", "serial") if kind != now.kind)
    if now.kind in ("is", "ia", "oa"):
        yield from ({"schedule.memorizer": place} for place in ("learner", "own") if place != now.memorizer)
    if limit != "cores":
        yield from ({"learner.threads": one} for one in threads)


def _split(now: Knobs, executors: int) -> dict[str, Any]:
    """The same environments among this number of executors."""
    changes = {"schedule.executors": executors, "schedule.envs_per_executor": now.executors * now.envs // executors}
    if now.is_replay and now.capacity is None:
        changes["memory.capacity_rows"] = EACH_EXECUTOR * now.executors
    return changes


def _as_split(now: Knobs, advised: Changes) -> Iterator[dict[str, Any]]:
    """Yield the advice to have another number of executors as a split of the environments that there are."""
    wanted = advised.get("schedule.executors")
    if isinstance(wanted, int) and now.kind in IN_ROUNDS and now.sync == "rollout":
        total = now.executors * now.envs
        fitting = [one for one in range(1, total + 1) if total % one == 0 and one != now.executors]
        if fitting:
            yield _split(now, min(fitting, key=lambda one: abs(one - wanted)))


@dataclass
class Measured:
    """Settings that were measured.

    Args:
        changes: from the settings as they were.
        rates: rows per second, of each run.
        advised: by the verdict on the last of them.
        limit: what it said limits the run.
        failed: why a run with them failed; empty: none did.
    """

    changes: dict[str, Any]
    rates: list[float] = field(default_factory=list)
    advised: dict[str, Any] = field(default_factory=dict)
    limit: str = ""
    failed: str = ""

    @property
    def rate(self) -> float:
        """The highest rate; 0 where a run failed. Other programs make a run slower, and none makes it faster."""
        return max(self.rates) if self.rates and not self.failed else 0.0

    @property
    def spread(self) -> float:
        """The fastest run's rate as a multiple of the second one's: the highest rate is known no better."""
        ordered = sorted(self.rates)
        return ordered[-1] / ordered[-2] if len(ordered) > 1 and ordered[-2] > 0 else 1.0


class Search:
    """Says which settings to measure next.

    Args:
        start: settings as they are.
        cores: that a run may use.
        may_change: also try what changes what is learned.
    """

    def __init__(self, start: Knobs, cores: int, *, may_change: bool = False) -> None:
        self._start, self._cores, self._may_change = start, cores, may_change
        self.measured: dict[Named, Measured] = {}
        self._predictions: dict[Named, float] = {}

    @property
    def first(self) -> Measured | None:
        """The settings as they were, once they are measured."""
        return self.measured.get(())

    @property
    def best(self) -> Measured | None:
        """The fastest so far; the settings as they were, unless others are better by more than these are known."""
        if self.first is None:
            return None
        found = max(self.measured.values(), key=lambda one: one.rate)
        # A fast run is no accident; that of the settings as they were may have been disturbed each time.
        enough = max(BETTER, self.first.spread)
        return found if found.rate >= enough * self.first.rate else self.first

    def keeps(self, changes: Changes) -> bool:
        """Return whether these changes leave what is learned as it is."""
        return keeps_learning(self._start, self._start.after(changes))

    def tell(
        self,
        changes: Changes,
        rate: float,
        advised: Changes,
        predicted: float | None = None,
        *,
        limit: str = "",
        failed: str = "",
    ) -> Measured:
        """Take in one measured run: its rows per second, and what its verdict says."""
        found = self.measured.setdefault(_named(changes), Measured(dict(changes)))
        found.rates += [rate] if not failed else []
        found.advised, found.limit, found.failed = dict(advised), limit, failed
        if predicted is not None and advised:
            self._predictions[_named(self._whole(found.changes, advised))] = predicted * rate
        return found

    def prediction(self, changes: Changes) -> float | None:
        """Rows per second that a verdict predicted of these settings; None: none did."""
        return self._predictions.get(_named(changes))

    def next(self) -> dict[str, Any] | None:
        """Return changes to measure: from the start, and then from the best so far; None: all neighbours are known."""
        if self.first is None:
            return {}
        for one in sorted(self.measured.values(), key=lambda one: -one.rate)[:2]:
            if one.failed or one.rate * BETTER < max(m.rate for m in self.measured.values()):
                continue
            for step in neighbours(self._start.after(one.changes), self._cores, one.advised, one.limit):
                changes = self._whole(one.changes, step)
                if _named(changes) not in self.measured and (self._may_change or self.keeps(changes)):
                    return changes
        return None

    def close_ones(self) -> list[Measured]:
        """The fastest three, as far as they are close, and the start: they run again before the best is named."""
        if self.first is None:
            return []
        ordered = sorted((one for one in self.measured.values() if one.rate), key=lambda one: -one.rate)
        close = [one for one in ordered if one.rate * CLOSE >= ordered[0].rate][:3]
        return close if self.first in close else [*close, self.first]

    def _whole(self, before: Changes, step: Changes) -> dict[str, Any]:
        """Changes from the start, without those that lead back to it."""
        whole = {**before, **step}
        if whole.get("schedule.memorizer", "") is None:
            whole.pop("schedule.memorizer")
        if whole.get("schedule.kind", self._start.kind) == "serial":  # all roles live in one process there
            whole["schedule.memorizer"] = None if self._start.memorizer != "auto" else "auto"
        as_it_was = {key: getattr(self._start, name) for name, key in _KEYS.items()}
        return {key: value for key, value in whole.items() if key not in as_it_was or as_it_was[key] != value}


def _named(changes: Changes) -> Named:
    return tuple(sorted(changes.items()))


Measure = Callable[[Mapping[str, Any]], tuple[float, dict[str, Any], float | None]]


# -- the file ----------------------------------------------------------------------------------------------------------


def edited(text: str, lines_of: Mapping[tuple[str | int, ...], int], changes: Changes, by: str = "tune") -> str:
    """Return a settings file with changed keys, all else as it was; each changed line says what stood there.

    Args:
        text: of the file.
        lines_of: the line, counted from 1, of each table and key in it.
        changes: values by key, such as `"schedule.executors"`; None: the key is left out.
        by: the command that changes them, for the comment on a key that was not there.
    """
    lines, added = text.splitlines(), dict[str, list[str]]()
    for key, value in changes.items():
        table, _, name = key.partition(".")
        line, written = lines_of.get((table, name)), None if value is None else json.dumps(value)
        if line is not None and (found := _assigned(lines[line - 1], name, written, by)):
            lines[line - 1] = found
        elif written is not None:
            added.setdefault(table, []).append(f"{name} = {written}  # by {by}")
    for table, more in sorted(added.items(), key=lambda one: -lines_of.get((one[0],), 0)):
        line = lines_of.get((table,))
        if line is None:
            lines += ["", f"[{table}]", *more]
        else:
            lines[line:line] = more
    return "\n".join(lines) + "\n"


def _assigned(line: str, name: str, value: str | None, by: str) -> str:
    """Return a line `name = old  # why` with another value and the old one told; empty if it is no such line."""
    head, equals, rest = line.partition("=")
    if not equals or head.strip() != name:
        return ""
    old, why = _value_and_comment(rest)
    more = f"; {why}" if why else ""
    if value is None:
        return f"# {head.strip()} = {old}  # left out by {by}: it has no effect here{more}"
    return f"{head.rstrip()} = {value}  # by {by}, was {old}{more}"


def _value_and_comment(text: str) -> tuple[str, str]:
    """The two parts of what stands behind an equals sign; a # within quotes begins no comment."""
    found = re.match(r"""((?:"(?:[^"\\]|\\.)*"|'[^']*'|[^#"'])*)(?:#(.*))?$""", text)
    if found is None:
        return text.strip(), ""
    return found[1].strip(), (found[2] or "").strip()


def told(measured: Sequence[Measured]) -> list[str]:
    """Return a table of what was measured, the fastest first, as lines."""
    ordered = sorted(measured, key=lambda one: -one.rate)
    lines = [f"{'rows/s':>10}  runs  settings"]
    for one in ordered:
        rate = f"{one.rate:10,.0f}" if not one.failed else f"{'failed':>10}"
        others = ", ".join(f"{other:,.0f}" for other in sorted(one.rates)[-2::-1])
        lines.append(f"{rate}  {len(one.rates):4}  {in_words(one.changes)}{f'  (others {others})' if others else ''}")
    return lines


def in_words(changes: Changes) -> str:
    """Return changes as one would write them with `--set`, or `as it was`."""
    words = (f"{key} left out" if value is None else f"{key} = {value}" for key, value in sorted(changes.items()))
    return ", ".join(words) or "as it was"
