"""When a run is shown: a picture that changes on a terminal, a plain line now and then elsewhere.

Showing must cost next to nothing: at most two pictures a second, fewer on a busy host, and only what changed is sent.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlxe_async.cli.console import Console
from mlxe_async.cli.telling import told
from mlxe_async.cli.view.picture import Picture

if TYPE_CHECKING:
    from rich.text import Text

TERMINAL_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 5.0
LARGEST_SHARE = 0.0025  # of a core
LONGEST_INTERVAL_S = 5.0
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
    "init_from",
)


class Display:
    """Shows a run as long as it lasts, and above that the events that a user should not miss.

    Args:
        console: where to show it.
        tells: whether events are told too, in a line each.
        clock: seconds, monotonic.
    """

    def __init__(self, console: Console, *, tells: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self.picture = Picture()
        self._console = console
        self._tells = tells
        self._clock = clock
        self._seen_at = clock()
        self._timer: asyncio.TimerHandle | None = None
        self._told_at: dict[str, float] = {}
        self._painter: _Painter | None = None

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take note of an event, and tell it if it is notable; of one kind at most one a second."""
        self.picture.feed(event)
        self._seen_at = self._clock()
        if self._tells:
            self._tell(event)

    def feed_columns(self, same: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> None:
        """Take note of many events of one kind; see `Journal.subscribe`."""
        if same.get("event") == "episode_end":
            self.picture.feed_episodes(same, columns)
            self._seen_at = self._clock()
            return
        for row in zip(*columns.values(), strict=True):
            self.feed({**same, **dict(zip(columns, row, strict=True))})

    def start(self) -> None:
        """Begin to show, in the running loop."""
        self._again(TERMINAL_INTERVAL_S if self._console.is_terminal else PLAIN_INTERVAL_S)

    def stop(self) -> None:
        """Show the last state, and then no more. May be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            if self._console.is_terminal and self.picture.began_ns is not None:
                self.show()
            elif self._console.is_terminal:
                self._console.show([])

    def show(self) -> None:
        """Show the present state now."""
        now_ns = self._now_ns()
        if not self._console.is_terminal:
            self._console.line(self.picture.line(now_ns))
            return
        self._painter = self._painter or _Painter(self._console)
        self._painter.paint(self.picture, now_ns)

    def _now_ns(self) -> int:
        """The present by the log's clock, which need not be ours; it stops with the run."""
        if self.picture.is_over:
            return self.picture.last_ns
        return self.picture.last_ns + round((self._clock() - self._seen_at) * 1e9)

    def _again(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        began = time.thread_time()
        self.show()
        cost = time.thread_time() - began
        if self._console.is_terminal:
            self._again(min(LONGEST_INTERVAL_S, max(TERMINAL_INTERVAL_S, cost / LARGEST_SHARE)))
        else:
            self._again(PLAIN_INTERVAL_S)

    def _tell(self, event: Mapping[str, Any]) -> None:
        name = str(event.get("event"))
        if name == "run_start" and not self._console.is_terminal:  # where it stands in the picture
            self._console.line(f"run {event.get('run')}")
        unexpected = name == "proc_exit" and not event.get("expected")
        if unexpected or name in _NOTABLE:
            now = self._clock()
            if now - self._told_at.get(name, float("-inf")) >= NOTABLE_PAUSE_S:
                self._told_at[name] = now
                self._console.line(told({key: value for key, value in event.items() if key not in ("trace", "stack")}))


class _Painter:
    """From pictures to what a terminal takes. Made when the first one is shown: `rich` takes its time to import."""

    def __init__(self, console: Console) -> None:
        from rich.console import Console as RichConsole

        from mlxe_async.cli.view.drawing import Glyphs, draw

        self._console = console
        self._draw = draw
        encoding = getattr(sys.stderr, "encoding", None) or "ascii"
        self._glyphs = Glyphs(plain=not encoding.lower().replace("-", "").startswith("utf8"))
        # Only turns styles into escape sequences; the theme of the terminal decides what its sixteen colours are.
        self._rich = RichConsole(
            file=io.StringIO(),
            force_terminal=True,
            color_system="standard",
            no_color=bool(os.environ.get("NO_COLOR")),
            highlight=False,
            width=10_000,
        )

    def paint(self, picture: Picture, now_ns: int) -> None:
        """Show a picture."""
        columns, rows = self._console.size
        lines = self._draw(picture, now_ns, max(20, columns - 1), max(1, rows - 1), self._glyphs)
        self._console.show(list(zip(self._styled(lines), (line.cell_len for line in lines), strict=True)))

    def _styled(self, lines: list[Text]) -> list[str]:
        from rich.text import Text

        with self._rich.capture() as captured:
            self._rich.print(Text("\n").join(lines), soft_wrap=True, end="")
        return captured.get().split("\n")
