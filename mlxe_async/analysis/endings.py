"""The end of a run, or that there is none yet: by its last word, and by whether a process holds its folder."""

from __future__ import annotations

from typing import Literal

Ending = Literal["ended", "running", "died", "unknown"]

_SENTENCES: dict[Ending, str] = {
    "ended": "",
    "running": "the run goes on",
    "died": "the run died without a last word",
    "unknown": "the log ends without a last word: the run died, or goes on elsewhere",
}


def ending_of(*, has_end: bool, is_held: bool | None) -> Ending:
    """Judge a run.

    Args:
        has_end: whether the last sitting in the log has its `run_end`.
        is_held: whether a process holds the run's folder; None: that cannot be told.
    """
    if has_end:
        return "ended"
    if is_held is None:
        return "unknown"
    return "running" if is_held else "died"


def said_of(ending: Ending) -> str:
    """Return a sentence about a run that has no last word; "" where it has one."""
    return _SENTENCES[ending]
