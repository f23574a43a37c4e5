"""The top of a report: plain sentences on how a run ended, that it goes on, or when it died."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np

from mlxe_async.analysis.endings import ending_of
from mlxe_async.analysis.report.folder import RunRead
from mlxe_async.analysis.report.points import known, mapping

# Why a run ended by itself: what is in the log -> in words.
REASONS = {
    "solved": "its task was solved",
    "seconds": "the time that it was given was used up (stop.seconds)",
    "env_steps": "its environment steps were used up (stop.env_steps)",
    "episodes": "its episodes were used up (stop.episodes)",
    "updates": "its updates were used up (stop.updates)",
    "episode_steps": "one training episode was as long as asked (stop.episode_steps)",
}


def state_of(run: RunRead) -> str:
    """One word: `solved`, `finished`, `stopped`, `failed`, `running`, `died`, or `unknown`."""
    end = run.story.end
    if not end:
        return ending_of(has_end=False, is_held=run.is_alive)
    if end.get("solved") is True or run.story.solved:
        return "solved"
    if end.get("exit_code") == 0:
        return "finished"
    return "stopped" if str(end.get("reason", "")).startswith("SIG") else "failed"


def summary(run: RunRead) -> str:
    """Tell what was learned by what, how the run ended or when it died, and the best that was tested."""
    story = run.story
    if not story.lines:
        return f"{run.name} left an empty log: it died before its first line, or its log was taken away."
    parts = [f"{_subject(run)} {_ended(run)}", _result(run)]
    return " ".join(part for part in parts if part)


def verdict(run: RunRead) -> str:
    """Tell what limits the pace and what would help, as the run itself found it last; empty if it did not."""
    told = run.story.bottleneck
    if not isinstance(told.get("slowest"), str):
        return ""
    said = str(told.get("advice") or "")
    return f"Its pace is limited by: {told['slowest']}." + (f" {said[:1].upper()}{said[1:]}." if said else "")


def busy(run: RunRead) -> str:
    """Tell which share of the time each process worked, as the run itself told it last; empty if it did not."""
    share = mapping(run.story.bottleneck.get("share"))
    known_ = [(name, value) for name in sorted(share) if (value := known(share, name)) is not None]
    return f"At work: {', '.join(f'{name} {100 * value:.0f} %' for name, value in known_)}." if known_ else ""


def top(run: RunRead) -> str:
    """Tell all that stands at the top: how the run ended, and what limits its pace."""
    return " ".join(part for part in (summary(run), verdict(run)) if part)


def amount(seconds: float) -> str:
    """`8.3 s`, `4 min 5 s`, `2 h 3 min`."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 6000:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{int(seconds) // 3600:,} h {int(seconds) % 3600 // 60} min"


def moment(ts: Any) -> str:
    """`2026-11-27 13:50:02 UTC` for a time of the log; what is none is told as unknown."""
    try:
        at = dt.datetime.fromisoformat(str(ts))
    except ValueError:
        return "an unknown time"
    return f"{at.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC" if at.tzinfo else f"{at:%Y-%m-%d %H:%M:%S}"


def best_test(run: RunRead) -> tuple[str, float] | None:
    """The tested version with the highest mean return, the first of equals; None if nothing was tested."""
    means, versions = run.story.tests["mean"], run.story.tests["version"]
    if not np.isfinite(means).any():
        return None
    best = int(np.nanargmax(means))
    return (f"version {count(versions[best])}" if np.isfinite(versions[best]) else "a version"), float(means[best])


def solved_at(run: RunRead) -> str:
    """`version 21, published after 10,240 steps, 20 updates and 7.7 s`; empty if it was not solved."""
    solved = run.story.solved
    if not solved:
        return ""
    counts = [f"{count(known(solved, key))} {unit}" for key, unit in (("env_steps", "steps"), ("updates", "updates"))]
    seconds = known(solved, "seconds")
    counts.append("an unknown time" if seconds is None else amount(seconds))
    return f"version {count(known(solved, 'version'))}, published after {', '.join(counts[:-1])} and {counts[-1]}"


def _subject(run: RunRead) -> str:
    start = run.story.start
    told = (
        ("", start.get("algorithm") or run.setting("algorithm", "name")),
        ("on ", start.get("env") or run.setting("task", "env")),
        ("schedule ", start.get("schedule") or run.setting("schedule", "kind")),
        ("seed ", run.seed),
    )
    known_ = [f"{before}{value}" for before, value in told if value is not None]
    return f"{run.name} ({', '.join(known_).replace(', on ', ' on ', 1)})" if known_ else run.name


def _plain(value: Any) -> str:
    return "?" if value is None else str(value)


def _ended(run: RunRead) -> str:
    story, end = run.story, run.story.end
    done = f"{count(story.env_steps)} steps, {count(story.episodes_ended)} episodes, {count(story.updates)} updates"
    if end:
        seconds = known(end, "seconds")
        lasted = amount(story.seconds if seconds is None else seconds)
        state, reason = state_of(run), str(end.get("reason", "?"))
        if state == "stopped":
            return f"was stopped by {reason} after {done} and {lasted}."
        if end.get("exit_code") != 0:
            return f"failed with exit code {_plain(end.get('exit_code'))} after {done} and {lasted}: {reason}."
        return f"ended after {done} and {lasted}, because {REASONS.get(reason, f'of {reason}')}."
    if run.is_alive:
        return f"is still running: {done} in {amount(story.seconds)} so far."
    if run.is_alive is None:
        return (
            f"has no last word in its log, and whether it still runs cannot be told here; the last line is of "
            f"{moment(story.last_ts)}, {amount(story.seconds)} after the first, at {done}."
        )
    ts = story.worked[1] if story.refused else story.last_ts
    died = f"died without a last word at {moment(ts)}, {amount(story.seconds)} after its start, after {done}."
    if story.refused:
        return f"{died} It could not be taken up again: {story.refused.get('reason')}."
    return died


def _result(run: RunRead) -> str:
    best = best_test(run)
    at = "" if best is None else f"{best[0]} had the highest mean return of those tested, {value_of(best[1])}"
    if run.story.solved:
        return f"It solved its task with {solved_at(run)}" + (f"; {at}." if at else ".")
    if best is not None:
        judged = not np.isnan(run.story.tests["passed"]).all()
        return f"It did not solve its task; {at}." if judged and run.story.end else f"{at[0].upper()}{at[1:]}."
    last = last_returns(run)
    return f"Its last {last[1]}training episodes had a mean return of {value_of(last[0])}." if last else ""


def last_returns(run: RunRead) -> tuple[float, str] | None:
    """Mean return of the last hundred training episodes at most, and how many these are, if that is known."""
    if run.final_return is not None:
        return run.final_return, ""
    values = run.story.episodes["value"]
    values = values[np.isfinite(values)][-100:]
    return (float(values.mean()), f"{len(values)} ") if len(values) else None


def value_of(value: float) -> str:
    """`0.42`, `83.25`, `50,000`: four digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}"


def count(value: float | None) -> str:
    """`12,345`; "?" for what is not known."""
    return "?" if value is None or not math.isfinite(value) else f"{value:,.0f}"
