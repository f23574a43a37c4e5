"""The supervisor: starts, watches and stops the others, and runs the schedule."""

from mlxe_async.supervisor.results import CheckReport, Result
from mlxe_async.supervisor.run import Supervisor

__all__ = ["CheckReport", "Result", "Supervisor"]
