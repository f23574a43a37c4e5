"""Watches whether the event loop is late, tells what the learner waits for, and stacks of threads and tasks."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
import time
import traceback
from pathlib import Path

from mlxe_async.logs import events
from mlxe_async.storage.files import write_new
from mlxe_async.storage.run_folder import RunFolder
from mlxe_async.supervisor.assembly import Assembly
from mlxe_async.supervisor.plan.event_log import EventLog
from mlxe_async.supervisor.waiting import every

LAG_LOOK_S = 0.5
LAG_TOLD_S = 1.0
STARVED_LOOK_S = 1.0
STARVED_TOLD_S = 10.0
MOST_NAMED = 8


async def watch_lag(log: EventLog) -> None:
    """Tell when the loop did not come round for longer than `LAG_TOLD_S`; runs until it is cancelled."""
    expected = time.monotonic() + LAG_LOOK_S
    async for _ in every(LAG_LOOK_S):
        late = time.monotonic() - expected
        if late > LAG_TOLD_S:
            log.emit(events.LoopLag(seconds=round(late, 3)))
        expected = time.monotonic() + LAG_LOOK_S


async def starved(parts: Assembly, log: EventLog) -> None:
    """Say every `STARVED_TOLD_S` what the learner waits for, while no rows come; runs until it is cancelled."""
    counters = parts.context.counters
    seen, since, told = (0, 0, 0), time.monotonic(), 0
    async for _ in every(STARVED_LOOK_S):
        now = (counters.env_steps, counters.updates, parts.memorizer.rows_ingested)
        if now != seen:
            seen, since, told = now, time.monotonic(), 0
            continue
        waited = time.monotonic() - since
        if waited < (told + 1) * STARVED_TOLD_S:
            continue
        told += 1
        log.emit(events.Starved(waited_s=round(waited, 3), waits_for=_who(parts)))


def _who(parts: Assembly) -> str:
    """Who is at work, or dead, in words."""
    if parts.learner.busy:
        return "its own update to end"
    found = [
        f"executor {executor.index}{'' if executor.process.alive else ' (being restarted)'}"
        for executor in parts.executors
        if executor.busy
    ]
    if not found:
        return "a test or a checkpoint: no rollout is under way"
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return ", ".join(found[:MOST_NAMED]) + more


def stacks() -> str:
    """Return what all threads of this process, and all tasks of the running loop, are doing."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    text = io.StringIO()
    for ident, frame in sys._current_frames().items():
        text.write(f"Thread {names.get(ident, ident)}:\n")
        traceback.print_stack(frame, file=text)
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # the loop is not running now
        tasks = set()
    for task in tasks:
        text.write(f"Task {task.get_name()}:\n")
        task.print_stack(file=text)
    return text.getvalue()


def write_stacks(folder: RunFolder, number: int, text: str, status: str) -> Path | None:
    """Write the `number`-th stacks of this process, and the status, into the run's folder; None if that fails."""
    try:
        path = folder.crash_path / f"supervisor.{os.getpid()}.{number}.stacks"
        write_new(path, f"{text}\nstatus: {status}\n".encode("utf-8", "backslashreplace"), durable=False)
    except OSError:
        return None
    return path
