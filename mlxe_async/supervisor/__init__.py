"""The supervisor: starts, watches and stops the others, and runs the schedule.

The life of a run is in `run`: `startup` makes a `context` out of settings, `assembly` puts processes and `handles`
together, `main_loop` runs the schedule, `ending` says how it ended. Beside it `monitoring` watches, `checkpointing`
saves, and `recording` writes down what happened in which order. `budget` counts, `event_log` tells.
"""

from mlxe_async.supervisor.plan.results import CheckReport, Result
from mlxe_async.supervisor.run import Supervisor

__all__ = ["CheckReport", "Result", "Supervisor"]
