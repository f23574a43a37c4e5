"""Reinforcement learning on one machine: one TOML file says what to learn, and who waits for whom.

The journey of a sample
=======================

A *supervisor* (asyncio) starts *executors* that step environments, a *memorizer* that keeps their experience, a
*learner* that turns it into new weights and an *evaluator* that tests frozen versions. They share memory, never locks,
and pass short messages that say where data lies, never the data. Follow one step of one environment:

1.  **Weights.** At the start of a rollout an executor looks at one shared word, the newest published version. If it has
    moved, the executor copies the weights (`ipc.weights`). It never changes them in the middle of a rollout.
2.  **Action.** The algorithm's behaviour policy (`algorithms.a3c.A3C.act`) answers for all environments of the executor
    at once, with the action and log mu(a|s), the log-probability with which it really was chosen.
3.  **Step.** The environments step (`tasks.vector`), are checked, and the executor (`roles.executor`) writes the row in
    place, as numpy views on its own *lane* of shared memory. `next_obs` is where the step led, also at the end of an
    episode; `terminated` (the world ended) and `truncated` (we stopped) stay two flags.
4.  **Commit.** A block of rows becomes visible by sequence, epoch and checksum (`ipc.lanes`): one writer, no lock. A
    short message goes up the executor's pipe: how many rows, which episodes ended.
5.  **Schedule.** The supervisor's loop wakes, the handle's verb returns, and the coroutine of the schedule goes on
    (`schedules`): these ten lines decide who waits for whom.
6.  **Memory.** The memorizer (`roles.memorizer`) takes the blocks out of all lanes and gives the room back. A finished
    stretch of rows is completed (returns) and kept (`memory.replay`, `memory.rollouts`). A full lane makes its executor
    wait; nothing unread is ever overwritten.
7.  **Batch.** On demand the memorizer draws a *plan*: indices, stamps and importance weights, left in shared memory.
    The learner (`roles.learner`) gathers the rows from the very same memory; rows that gave way meanwhile are noticed.
8.  **Update.** The algorithm computes its loss and steps its optimiser, returns metrics and new priorities. Policy lag,
    the learner's version minus the row's, is measured for every batch.
9.  **Publication.** What learns but does not act (optimiser, targets, generators) is kept beside them (`ipc.kept`). New
    weights go into the one of three buffers that nobody reads, then the version word moves. Back to 1.

Any of these processes may be killed at any moment. The memory belongs to no name in any file system, the supervisor
holds it, and a successor takes up the work where the last commit left it (`ipc.process`, `ipc.nursery`).
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxe_async.logs.reader import follow, read_log
    from mlxe_async.policy import load_policy
    from mlxe_async.settings import Settings, load_settings
    from mlxe_async.supervisor import Result, Supervisor

__version__ = "0.1.0"
IMPORTED_NS = time.time_ns()
"""When this program, or the one that it was forked from, began to load its code; nanoseconds since 1970."""
__all__ = ["Result", "Settings", "Supervisor", "follow", "load_policy", "load_settings", "read_log"]

# Names are looked up when they are first used: a mistake in a settings file should not wait for torch.
_HOMES = {
    "Result": "mlxe_async.supervisor",
    "Settings": "mlxe_async.settings",
    "Supervisor": "mlxe_async.supervisor",
    "follow": "mlxe_async.logs.reader",
    "load_policy": "mlxe_async.policy",
    "load_settings": "mlxe_async.settings",
    "read_log": "mlxe_async.logs.reader",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
