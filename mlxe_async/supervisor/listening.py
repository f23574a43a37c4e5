"""Hears what the processes' watchers see and what the processes say between their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from mlxe_async.errors import ProtocolError
from mlxe_async.ipc.answers import Kind, require
from mlxe_async.ipc.life import Hang
from mlxe_async.ipc.listener import ProcessListener
from mlxe_async.ipc.nursery import ExitStatus
from mlxe_async.ipc.process import Process
from mlxe_async.supervisor.crashes import Crashes
from mlxe_async.supervisor.recording import Ended, Recorder
from mlxe_async.supervisor.story import Story, role_of

FAULT: Kind = {
    "env": int, "phase": str, "detail": str, "episode": (int, None), "step": int, "seed": (int, None), "faults": int,
    "trace": str,
}  # fmt: skip


class Listener(ProcessListener):
    """Passes it on to the log and to those who wait.

    Args:
        story: tells the log.
        drain: set when blocks were committed in the middle of a rollout.
        crashes: writes reports.
        roles: what each process holds, by the process's name.
        recorder: a recording ends with a death, also one in the middle of nothing: the next life begins elsewhere.
    """

    def __init__(
        self,
        story: Story,
        drain: asyncio.Event,
        crashes: Crashes,
        roles: Mapping[str, Collection[str]],
        recorder: Recorder,
    ) -> None:
        self._story, self._drain, self._crashes, self._roles = story, drain, crashes, roles
        self._recorder = recorder

    def started(self, process: Process, pid: int, seconds: float) -> None:
        """The hand-shake is done."""
        self._story.started(process, pid, seconds)

    def exited(self, process: Process, sentence: str, status: ExitStatus, expected: bool) -> None:
        """The process and its group are gone."""
        self._story.exited(process, sentence, status, expected=expected)
        if not expected:
            self._crashes.died(process, sentence, status)
            role, index = role_of(process.name)
            if role != "evaluator":  # nothing in the run depends on when versions were tested
                self._recorder.note(Ended("", f"the {role} died" if index is None else f"{role} {index} died"))

    def restarting(self, process: Process, delay_s: float, attempt: int) -> None:
        """It will be forked again."""
        self._story.restarting(process, delay_s, attempt)

    def hang(self, process: Process, hang: Hang) -> None:
        """It is being ended because it hangs."""
        self._story.hang(process, hang)

    def hang_stack(self, process: Process, stack: str) -> None:
        """Where it hung."""
        self._story.hang_stack(process, stack)

    def notice(self, process: Process, message: Any) -> None:
        """It said something between its answers.

        Raises:
            ProtocolError: nothing that is known; the process is ended.
        """
        match message:
            case {"notice": {"kind": "commit"}}:
                process.note_progress()
                self._drain.set()
            case {"notice": {"kind": "env_error", "executor": int(index)} as fault} if self._holds(process, index):
                require(fault, FAULT, f"{process.name} sent an env_error")
                self._story.env_error(index, fault)
                self._crashes.faulted(index, fault)
            case {"notice": {"kind": "note", "executor": int(index), "about": str(kind), "detail": str(sentence)}} if (
                self._holds(process, index)
            ):
                self._story.noted(index, kind, sentence)
            case {"notice": {"kind": "compiled", "seconds": float() | None as seconds, "detail": str(sentence)}}:
                self._story.compiled(seconds, sentence)
            case {"notice": {"kind": "updates", "fast": bool() as fast, "detail": str(sentence)}}:
                self._story.updates(fast=fast, reason=sentence)
            case {"notice": {"kind": "remark", "detail": str(sentence)}}:
                self._story.warn(f"learner.device: {sentence}", "learner")
            case _:
                raise ProtocolError(f"{process.name} sent a notice that is not known: {str(message)[:200]}")

    def _holds(self, process: Process, index: int) -> bool:
        """Whether a process may speak for an executor."""
        return f"executor-{index}" in self._roles.get(process.name, ())
