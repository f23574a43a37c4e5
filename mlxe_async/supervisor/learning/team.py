"""The handle of a team: the learner, and executors that make each update together with it.

All are asked at the same time. If one of them dies, or fails, the attempt is declared broken, which ends the waiting of
the others; when all have answered it is made again as a whole. If the learner has published, the attempt is over,
whatever became of the others: it publishes after all have done their part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlxe_async.errors import ProcessDied
from mlxe_async.ipc.messages.remote_error import RemoteError
from mlxe_async.ipc.processes.process import Process
from mlxe_async.supervisor.handles.answers import is_learned


def workers_of(by_role: Mapping[str, Process]) -> list[tuple[str, Process]]:
    """Role and process of each worker beside the learner, in their order."""
    roles = [role for role in by_role if role.startswith("worker-")]
    return [(role, by_role[role]) for role in sorted(roles, key=lambda role: int(role.removeprefix("worker-")))]


class TeamHandle:
    """Learner and workers.

    Args:
        learner: the process of worker 0.
        workers: role and process of each other one, in their order.
        declare_broken: ends the waiting in an attempt, and in those before it.
    """

    def __init__(
        self, learner: Process, workers: Sequence[tuple[str, Process]], declare_broken: Callable[[int], None]
    ) -> None:
        self._members = [("learner", learner), *workers]
        self._declare_broken = declare_broken
        self._attempts = 0

    async def learn(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Make an attempt; returns the learner's answer, which tells of all.

        Raises:
            ProcessDied: one of them did.
            RemoteError: one of them raised.
        """
        self._attempts += 1
        attempt = self._attempts
        calls = [
            asyncio.ensure_future(process.call("learn", role=role, check=is_learned, attempt=attempt, **asked))
            for role, process in self._members
        ]
        try:
            pending = set(calls)
            while not calls[0].done() and not any(call.done() and call.exception() for call in calls):
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Also where all is well: a worker may wait for a learner that gave an answer it had given before.
            self._declare_broken(attempt)
            answers = await asyncio.gather(*calls, return_exceptions=True)
        if not isinstance(answers[0], BaseException):
            return dict(answers[0])
        raise min((one for one in answers if isinstance(one, BaseException)), key=_weight)


def _weight(error: BaseException) -> int:
    """Causes first: what was told of another's end is none."""
    if isinstance(error, RemoteError):
        return 2 if error.kind == "AttemptBroken" else 0
    return 1 if isinstance(error, ProcessDied) else -1
