"""Who waits for whom: one short coroutine per schedule, side by side, over the same verbs.

A schedule knows no processes, logs or time limits; the collaborators it is handed know those, once. Every verb returns,
also when the budget runs out while it waits: then there was nothing to do, and the coroutine's own loop ends.
"""

from mlxe_async.schedules.iterative_synchronous import iterative_synchronous
from mlxe_async.schedules.online_asynchronous import online_asynchronous
from mlxe_async.schedules.serial import serial

SCHEDULES = {"serial": serial, "is": iterative_synchronous, "oa": online_asynchronous}

__all__ = ["SCHEDULES", "iterative_synchronous", "online_asynchronous", "serial"]
