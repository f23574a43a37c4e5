"""Levels of events, as loggers have them: debug, info, warning, error; made of what a line tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LEVELS = ("debug", "info", "warning", "error")
_STOPPED = (0, 129, 130, 143)
_DEBUG = {"phase", "times", "ledger", "weights", "metrics", "updates", "placed", "training_result", "stacks"}
_DEBUG |= {"quantiles", "gpu"}
_WARNING = {"warning", "straggler", "starved", "loop_lag", "env_note", "checkpoint_rejected"}
_ERROR = {"hang", "hang_stack", "env_error", "poison", "crash_report", "corrupt_record", "log_gap"}


def level_of(line: Mapping[str, Any]) -> str:
    """Return one of `LEVELS`: an error is what went wrong and was mended, or ended the run; debug is routine.

    Args:
        line: of a log; one of a kind that is not known is info.
    """
    event = str(line.get("event"))
    if event == "proc_exit":
        return "debug" if line.get("expected") is True else "error"
    if event == "proc_restart":
        return "info" if line.get("planned") is True else "warning"
    if event == "run_end":
        return "info" if line.get("exit_code") in _STOPPED else "error"
    if event == "ledger" and (line.get("lost") or line.get("torn")):
        return "error"
    return "debug" if event in _DEBUG else "warning" if event in _WARNING else "error" if event in _ERROR else "info"


def is_at_least(line: Mapping[str, Any], level: str) -> bool:
    """Return whether a line is of this level or one above."""
    return LEVELS.index(level_of(line)) >= LEVELS.index(level)
