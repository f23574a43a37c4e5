"""The supervisor: starts, watches and stops the others, and runs the schedule."""

from mlxe_async.supervisor.run import CheckReport, Result, Supervisor

__all__ = ["CheckReport", "Result", "Supervisor"]
