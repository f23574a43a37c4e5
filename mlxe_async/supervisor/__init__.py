"""The supervisor: starts, watches and stops the others, and runs the schedule.

The life of a run is in `run`: `run_files` and `startup` make a `context` out of settings, `assembly` puts processes and
`handles` together, those of the learner in `learning`, `main_loop` runs the schedule, `ending` says how it ended, and
its exit code. Beside it `monitoring` watches, `checkpointing` saves, `whole_checkpoints` all there is, and `recording`
writes down what happened in which order. `plan` has the facts that all of these share; `waiting` helps with asyncio.
"""

from mlxe_async.supervisor.plan.results import CheckReport, Result
from mlxe_async.supervisor.run import Supervisor

__all__ = ["CheckReport", "Result", "Supervisor"]
