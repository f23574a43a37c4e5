"""Who waits for whom: one short coroutine per schedule, side by side, over the same verbs.

A schedule knows no processes, logs or time limits; the collaborators it is handed know those, once. Every verb returns,
also when the budget runs out while it waits: then there was nothing to do, and the coroutine's own loop ends.

| kind | the line that differs |
|---|---|
| `serial` | one rollout after the other |
| `istb` | as `is`; executors are threads (`as_published`: and look once a second instead of being told) |
| `is` | all rollouts together |
| `ia` | who has delivered goes again, interruptibly, until the slowest has |
| `oa` | three endless coroutines instead of rounds; with gradients of executors, one for each of these |

    serial, threaded_as_published               `serial`; `istb` as its authors ran it
    iterative_synchronous                       `is`, and `istb` on threads
    iterative_asynchronous                      `ia`
    online_asynchronous, pushing                `oa`; the same with gradients of executors
    verbs, soundness                            what a schedule may ask; what is sound under which
"""

from mlxe_async.schedules.iterative_asynchronous import iterative_asynchronous
from mlxe_async.schedules.iterative_synchronous import iterative_synchronous
from mlxe_async.schedules.online_asynchronous import online_asynchronous
from mlxe_async.schedules.pushing import pushing
from mlxe_async.schedules.serial import serial
from mlxe_async.schedules.threaded_as_published import POLL_S, threaded_as_published
from mlxe_async.schedules.verbs import Schedule

SCHEDULES: dict[tuple[str, str | None], Schedule] = {
    ("serial", None): serial,
    ("istb", "fair"): iterative_synchronous,
    ("istb", "as_published"): threaded_as_published,
    ("is", None): iterative_synchronous,
    ("ia", None): iterative_asynchronous,
    ("oa", None): online_asynchronous,
    ("oa", "pushing"): pushing,
}


def schedule_of(kind: str, flavour: str | None = None) -> Schedule:
    """The coroutine function of a `[schedule]`."""
    return SCHEDULES[kind, flavour]


__all__ = [
    "POLL_S",
    "SCHEDULES",
    "Schedule",
    "iterative_asynchronous",
    "iterative_synchronous",
    "online_asynchronous",
    "pushing",
    "schedule_of",
    "serial",
    "threaded_as_published",
]
