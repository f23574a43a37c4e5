"""How a run is doing, in one line: steps, rate, return, lag, and how far each stop condition is.

Decides only what to say; `Console` knows how. Fed with the events of the log, so that it can say nothing else than the
log does.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mlxe_async.cli.console import Console
from mlxe_async.cli.telling import told

if TYPE_CHECKING:
    from mlxe_async.settings import Settings

TERMINAL_INTERVAL_S = 0.25
PLAIN_INTERVAL_S = 5.0
RATE_WINDOW_S = 5.0
RECENT_EPISODES = 20
NOTABLE_PAUSE_S = 1.0

_NOTABLE = (
    "proc_restart",
    "hang",
    "env_error",
    "warning",
    "checkpoint_rejected",
    "corrupt_record",
    "log_gap",
    "solved",
)


class Progress:
    """What is known of a run so far.

    Args:
        settings: for the stop conditions.
        clock: seconds, monotonic.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        stop = settings.stop
        limits = {"env_steps": stop.env_steps, "episodes": stop.episodes, "updates": stop.updates}
        self._limits: dict[str, float] = {name: limit for name, limit in limits.items() if limit is not None}
        self._seconds_limit = stop.seconds
        self._passes = settings.evaluation.passes if stop.solved else 0
        self._clock = clock
        self._began: float | None = None
        self.counts = {"env_steps": 0, "episodes": 0, "updates": 0}
        self._returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._lag: float | None = None
        self._streak = 0
        self._version = 0
        self._steps_at: deque[tuple[float, int]] = deque()

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take note of one event."""
        match event.get("event"):
            case "run_start":
                self._began = self._clock()
                self._steps_at.append((self._began, 0))
            case "phase" if event["phase"] == "generate":
                self.counts["env_steps"] += event["rows"]
            case "phase" if event["phase"] == "learn":
                self.counts["updates"] += event["updates"]
                self._lag = event["lag_mean"] if event["lag_mean"] is not None else self._lag
            case "episode_end":
                self._at_least(event, "episodes", "env_steps")
                if event["episode_return"] is not None:
                    self._returns.append(event["episode_return"])
            case "weights":
                self._version = event["version"]
                self._at_least(event, "updates", "episodes", "env_steps")
            case "evaluation":
                self._streak = event["streak"]

    def _at_least(self, event: Mapping[str, Any], *names: str) -> None:
        for name in names:
            self.counts[name] = max(self.counts[name], event[name])

    def line(self) -> str:
        """The line for now."""
        parts = [f"{self.counts['env_steps']:,} steps", f"{self._rate():,.0f}/s"]
        if "episodes" not in self._limits:
            parts.append(f"{self.counts['episodes']:,} episodes")
        if self._returns:
            parts.append(f"return {sum(self._returns) / len(self._returns):.4g}")
        if self._lag is not None:
            parts.append(f"lag {self._lag:.2g}")
        parts.append(f"weights {self._version:,}")
        return "  ".join(parts) + self._towards_stop()

    def _towards_stop(self) -> str:
        parts = [f"{name} {self.counts[name]:,}/{limit:,}" for name, limit in self._limits.items()]
        if self._seconds_limit is not None:
            parts.append(f"seconds {self._elapsed():.0f}/{self._seconds_limit:g}")
        if self._passes:
            parts.append(f"passed {min(self._streak, self._passes)}/{self._passes}")
        return f"  | {'  '.join(parts)}" if parts else ""

    def _elapsed(self) -> float:
        return self._clock() - self._began if self._began is not None else 0.0

    def _rate(self) -> float:
        now = self._clock()
        self._steps_at.append((now, self.counts["env_steps"]))
        while len(self._steps_at) > 2 and now - self._steps_at[1][0] >= RATE_WINDOW_S:
            self._steps_at.popleft()
        then, steps = self._steps_at[0]
        return (self.counts["env_steps"] - steps) / (now - then) if now > then else 0.0


class ProgressDisplay:
    """Shows progress on a console as long as a run lasts, and the events that a user should not miss.

    Args:
        progress: what is known.
        console: where to show it.
    """

    def __init__(self, progress: Progress, console: Console) -> None:
        self._progress = progress
        self._console = console
        self._interval = TERMINAL_INTERVAL_S if console.is_terminal else PLAIN_INTERVAL_S
        self._timer: asyncio.TimerHandle | None = None
        self._told_at: dict[str, float] = {}

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take note of an event, and tell it if it is notable; of one kind at most one a second."""
        self._progress.feed(event)
        name = str(event.get("event"))
        if name == "run_start":
            self._console.line(f"run {event.get('run')}")
        unexpected = name == "proc_exit" and not event.get("expected")
        if unexpected or name in _NOTABLE:
            now = time.monotonic()
            if now - self._told_at.get(name, float("-inf")) >= NOTABLE_PAUSE_S:
                self._told_at[name] = now
                self._console.line(told({key: value for key, value in event.items() if key not in ("trace", "stack")}))

    def start(self) -> None:
        """Begin to show, in the running loop."""
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)

    def stop(self) -> None:
        """Show no more. May be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._console.update(self._progress.line())
        self.start()
