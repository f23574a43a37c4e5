"""What all scripts of this folder share: the clock, the CPU seconds of a program with its children, the one JSON line.

Needs numpy and gymnasium alone, because it runs in the environment of each peer.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium

TICKS = os.sysconf("SC_CLK_TCK")
ENV = "CartPole-v1"


def arguments(rows: list[str], configurations: list[str]) -> argparse.Namespace:
    """The command line of a script that measures a rate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--row", choices=rows, default=rows[0])
    parser.add_argument("--config", choices=configurations, default=configurations[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="measured, after the warm-up")
    parser.add_argument("--warm-up", type=float, default=3.0, help="seconds, from the first update on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="print the names of the configurations of the row")
    return parser.parse_args()


def asked(configurations: Mapping[str, Any], rows: Mapping[str, str] | None = None) -> tuple[argparse.Namespace, str]:
    """The command line of a script that knows one row, or few: what was given, and the configuration's name.

    Where only a list was asked for it is printed, and the script ends.

    Args:
        configurations: all of them by name.
        rows: how the names of each row's configurations begin; left out, one-pass has all.
    """
    rows = rows or {"one-pass": ""}
    given = arguments([*rows], ["", *configurations])
    known = [name for name in configurations if name.startswith(rows[given.row])]
    if given.list:
        sys.stdout.write("\n".join(known) + "\n")
        raise SystemExit
    return given, given.config or known[0]


def ordinary_environment() -> gymnasium.Env[Any, Any]:
    """`gymnasium.make` without its checks of the caller, as ours is made."""
    return gymnasium.make(dataclasses.replace(gymnasium.spec(ENV), order_enforce=False, disable_env_checker=True))


def tree_cpu_seconds(pid: int | None = None) -> float:
    """CPU seconds used so far by a process, its living descendants, and those of them that were waited for."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            fields = text[text.rindex(")") + 2 :].split()
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = sum(map(int, fields[11:15])) / TICKS
    wanted = {pid or os.getpid()}
    while True:
        more = {child for child, parent in parents.items() if parent in wanted} - wanted
        if not more:
            return sum(used[one] for one in wanted if one in used)
        wanted |= more


class Stopwatch:
    """Counts the steps learned from, and the time that took, once the warm-up is over.

    Args:
        seconds: to measure.
        warm_up: seconds that are not counted, from the first update on.
    """

    def __init__(self, seconds: float, warm_up: float) -> None:
        self._seconds, self._warm_up = seconds, warm_up
        self._first = self._start = self._end = None
        self.updates = 0

    def learned(self, steps: int) -> bool:
        """Tell, after an update, from how many steps was learned so far. Returns whether that was the last one."""
        now = time.perf_counter()
        if self._end is not None:
            return True
        if self._first is None:
            self._first = now
        elif self._start is None:
            if now - self._first >= self._warm_up:
                self._start = (now, steps, tree_cpu_seconds())
        else:
            self.updates += 1
            if now - self._start[0] >= self._seconds:
                self._end = (now, steps, tree_cpu_seconds())
        return self._end is not None

    def result(self) -> dict[str, float]:
        """Rate, steps, wall and CPU seconds of the measured part."""
        if self._start is None or self._end is None:
            raise RuntimeError("the peer ended before the measurement did: expected it to learn on until told to stop")
        wall, steps, cpu = (after - before for before, after in zip(self._start, self._end, strict=True))
        return {
            "steps_per_second": steps / wall,
            "steps": steps,
            "seconds": wall,
            "updates": self.updates,
            "cpu_seconds": cpu,
            "cpu_us_per_step": 1e6 * cpu / steps,
        }


def tell(peer: str, package: str, configuration: str, result: dict[str, Any], **more: Any) -> None:
    """Print the one JSON line, and end: what is left of the peer's threads and children is not waited for."""
    line = {"peer": peer, "version": version(package), "configuration": configuration, "env": ENV, **more, **result}
    sys.stdout.write("\n" + json.dumps(line) + "\n")
    sys.stdout.flush()
