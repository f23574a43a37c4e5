"""Who hears what happens to a supervised process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxe_async.ipc.frames import Message
from mlxe_async.ipc.life import Hang
from mlxe_async.ipc.nursery import ExitStatus

if TYPE_CHECKING:
    from mlxe_async.ipc.process import Process


class ProcessListener:
    """Told what happens to a process, from the loop's thread. Override what is of interest; must not block."""

    def started(self, process: Process, pid: int, seconds: float) -> None:
        """The hand-shake is done, `seconds` after the fork was asked for."""

    def exited(self, process: Process, sentence: str, status: ExitStatus, expected: bool) -> None:
        """The process and its group are gone."""

    def restarting(self, process: Process, delay_s: float, attempt: int) -> None:
        """It will be forked again in `delay_s`; `attempt` deaths count against its budget."""

    def hang(self, process: Process, hang: Hang) -> None:
        """It is being ended because of a call that outstayed its limit; `hang_stack` and `exited` follow."""

    def hang_stack(self, process: Process, stack: str) -> None:
        """It is dead, and this is where it hung; not called if it could not write its stack."""

    def notice(self, process: Process, message: Message) -> None:
        """It sent a message of its own: one with a field `notice`. A ProtocolError raised here ends the child."""
