"""Status of a run: what `status.json` and `progress` show, and the account of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlxe_async.ipc.shared.lanes import lane_state
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.supervisor.handles.memorizer import MemorizerHandle
from mlxe_async.supervisor.plan.blueprint import Blueprint
from mlxe_async.supervisor.plan.budget import Budget, Counters
from mlxe_async.supervisor.plan.event_log import EventLog


def progress_of(
    counters: Counters, budget: Budget, log: EventLog, memorizer: MemorizerHandle, cpu_seconds: Mapping[str, float]
) -> dict[str, Any]:
    """Return how far a run is, in plain JSON types; see `Supervisor.progress`."""
    seconds = max(1e-9, budget.seconds)
    return {
        **counters.to_json(),
        "seconds": round(budget.seconds, 3),
        "steps_per_second": round(counters.env_steps / seconds, 1),
        "mean_return": float(np.mean(log.returns)) if log.returns else None,
        "lag": log.lag,
        "owed_updates": memorizer.owed,
        "memory_rows": memorizer.held,
        "throttled_s": round(log.throttled_s, 3),
        "log_lines_dropped": log.lines_dropped,
        "last_evaluation": log.last_evaluation,
        "cpu_seconds": dict(cpu_seconds),
        **({} if log.gpu is None else {"gpu": log.gpu}),
        "stop": {name: round(budget.spent(name) / limit, 6) for name, limit in budget.limits().items()},
    }


def tell_ledger(
    blueprint: Blueprint, segments: Mapping[str, Segment], memorizer: MemorizerHandle, log: EventLog, *, former: int
) -> None:
    """Balance what the lanes say against what the memory says, and have it told.

    Args:
        blueprint: sizes.
        segments: lanes and memory.
        memorizer: knows how many rows are held.
        log: tells the log.
        former: rows taken in by a memory that the run does not go on with.
    """
    lanes = []
    memory = blueprint.memory_in(segments)
    for index, taken in enumerate(memory.ledger()):
        state = lane_state(segments[f"lane-{index}"])
        backlog = (state.commit - taken["position"]) % 2**64
        lanes.append({"committed_blocks": state.commit, "backlog_blocks": backlog, **taken})
    ingested = sum(lane["rows"] for lane in lanes)
    waiting = sum(lane["backlog_blocks"] for lane in lanes)
    capacity = blueprint.memory_shape.capacity
    overwritten = memory.overwritten if isinstance(memory, ReplayMemory) else 0
    log.ledger(lanes, ingested, waiting, kept=memorizer.held, capacity=capacity, overwritten=overwritten, former=former)
