"""What happens to the processes, told to the log: starts, deaths, restarts, hangs, and their notices."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Mapping
from typing import Any

from mlxe_async.errors import ProtocolError
from mlxe_async.ipc.messages.answers import Kind, require
from mlxe_async.ipc.processes.life import Hang
from mlxe_async.ipc.processes.nursery import ExitStatus
from mlxe_async.ipc.processes.process import Process, ProcessListener
from mlxe_async.logs import events
from mlxe_async.supervisor.context import RunContext
from mlxe_async.supervisor.handles.crashes import Crashes
from mlxe_async.supervisor.plan.event_log import role_of
from mlxe_async.supervisor.recording.steps import Ended
from mlxe_async.workers.code import expect_the_same

FAULT: Kind = {
    "env": int, "phase": str, "detail": str, "episode": (int, None), "step": int, "seed": (int, None), "faults": int,
    "trace": str,
}  # fmt: skip


QUANTILES: Kind = {
    "kind": str, "version": int, "updates": int, "env_steps": int, "values": dict, "counts": dict, "shares": dict,
}  # fmt: skip


GPU: Kind = {
    "name": str, "allocated": int, "reserved": int, "most": int, "whole": int, "busy": (float, None),
}  # fmt: skip


RELIVED: Kind = {"detail": str, "begun_anew": [int], "unlike": [int]}
_NOT_BROUGHT_BACK = {
    "begun_anew": "environment {} could not be brought to where it was by its seed and actions, and begins a new "
    "episode",
    "unlike": "the last episode of environment {}, lived again by its seed and actions, did not end at the same "
    "observation",
}
"What an executor may tell of environments it could not bring back, and the sentence about them."


class ProcessEvents(ProcessListener):
    """Passes it on to the log and to those who wait.

    Args:
        run: what the run consists of.
        drain: set when blocks were committed in the middle of a rollout.
        crashes: writes reports.
    """

    def __init__(self, run: RunContext, drain: asyncio.Event, crashes: Crashes) -> None:
        self._run, self._drain, self._crashes = run, drain, crashes
        self._roles = {planned.name: planned.roles for planned in run.blueprint.processes}
        self._exit_sentence: dict[str, str] = {}
        self._code: dict[str, Mapping[str, Any]] = {}

    def started(self, process: Process, pid: int, seconds: float) -> None:
        """The hand-shake is done.

        Raises:
            SettingsError: the process has other code of the algorithm than the learner has.
        """
        self._run.log.emit(
            events.ProcStart(process=process.name, pid=pid, epoch=process.epoch, seconds=seconds),
            *role_of(process.name),
        )
        if process.name in ("mlxe-lrn", "mlxe-istb", "mlxe-serial") and process.epoch > 1:
            self._run.log.warn(
                f"the learner goes on from the published weights {self._run.counters.version}; "
                f"{_about_state(process.facts.get('state_behind'))}, rows and counters are kept",
                "learner",
            )

        self._compare_code(process)

    def _compare_code(self, process: Process) -> None:
        """With the learner's, or, if this is the learner, that of all who were there before it."""
        if (code := process.facts.get("code")) is not None:
            self._code[process.name] = code
        learner = next((self._code.get(name) for name, roles in self._roles.items() if "learner" in roles), None)
        if learner is not None:
            for name, code in self._code.items():
                expect_the_same(name, code, learner)

    def exited(self, process: Process, sentence: str, status: ExitStatus, expected: bool) -> None:
        """The process and its group are gone."""
        name = signal.Signals(status.signal).name if status.signal in set(signal.Signals) else None
        self._exit_sentence[process.name] = sentence
        self._run.log.emit(
            events.ProcExit(
                process=process.name,
                pid=process.pid or 0,
                epoch=process.epoch,
                expected=expected,
                sentence=sentence,
                code=status.code,
                signal=name,
                stack=status.stack,
            ),
            *role_of(process.name),
        )
        if not expected:
            self._crashes.died(process, sentence, status)
            role, index = role_of(process.name)
            if role != "evaluator":  # nothing in the run depends on when versions were tested
                # The next life begins elsewhere, also after a death in the middle of nothing.
                self._run.recorder.note(Ended("", f"the {role} died" if index is None else f"{role} {index} died"))

    def restarting(self, process: Process, delay_s: float, attempt: int) -> None:
        """It will be forked again."""
        planned = process.is_replaced
        self._run.counters.recycled += planned
        self._run.counters.restarts += not planned
        self._run.log.emit(
            events.ProcRestart(
                process=process.name,
                epoch=process.epoch + 1,
                attempt=attempt,
                delay_s=delay_s,
                reason=self._exit_sentence.get(process.name, ""),
                planned=planned,
            ),
            *role_of(process.name),
        )

    def hang(self, process: Process, hang: Hang) -> None:
        """It is being ended because a call outstayed its limit."""
        self._run.log.emit(
            events.Hang(
                process=process.name,
                pid=process.pid or 0,
                stuck_s=round(hang.stuck_s, 3),
                limit_s=hang.limit_s,
                call=hang.call,
                setting=self._setting_of(hang),
            ),
            *role_of(process.name),
        )

    def _setting_of(self, hang: Hang) -> str:
        """The setting that a limit comes from; the first step of an episode has that of resets."""
        schedule = self._run.settings.schedule
        names = {"update": ("update_timeout_s",), "step": ("step_timeout_s", "reset_timeout_s")}
        asked = names.get(hang.call, ("reset_timeout_s",) if hang.call in ("make", "reset") else ())
        return next((f"schedule.{name}" for name in asked if abs(getattr(schedule, name) - hang.limit_s) < 0.1), "")

    def hang_stack(self, process: Process, stack: str) -> None:
        """Tell where it hung, by its stack."""
        call = process.hang.call if process.hang else ""
        self._run.log.emit(
            events.HangStack(process=process.name, pid=process.pid or 0, call=call, stack=stack),
            *role_of(process.name),
        )

    def notice(self, process: Process, message: Any) -> None:
        """It said something between its answers.

        Raises:
            ProtocolError: nothing that is known; the process is ended.
        """
        match message:
            case {"notice": {"kind": "commit"}}:
                if self._run.blueprint.traits.free_running:  # where others wait, only whole rollouts bring them on
                    process.note_progress()
                self._drain.set()
            case {"notice": {"kind": "env_error", "executor": int(index)} as fault} if self._holds(process, index):
                require(fault, FAULT, f"{process.name} sent an env_error")
                self._run.log.env_error(index, fault)
                self._crashes.faulted(index, fault)
            case {"notice": {"kind": "note", "executor": int(index), "about": str(kind), "detail": str(sentence)}} if (
                self._holds(process, index)
            ):
                self._run.log.noted(index, kind, sentence)
            case {"notice": {"kind": "metrics", "executor": int(index), "values": dict(values)}} if self._holds(
                process, index
            ) and _are_numbers(values):
                self._run.log.metrics(index, values)
            case {"notice": {"kind": "relived", "executor": int(index)} as told} if self._holds(process, index):
                require(told, RELIVED, f"{process.name} sent a relived")
                self._relived(index, told)
            case {"notice": {"kind": "updates", "fast": bool() as fast, "detail": str(why), "products": str(products)}}:
                self._run.log.updates(fast=fast, reason=why, products=products)
            case {"notice": {"kind": "gpu"} as told}:
                require(told, GPU, f"{process.name} sent gpu")
                self._run.log.gpu_used(told)
            case {"notice": {"kind": "quantiles"} as told}:
                self._run.log.emit(_quantiles(told, f"{process.name} sent quantiles"), "learner")
            case {"notice": {"kind": "remark", "detail": str(sentence)}}:
                self._run.log.warn(sentence, "learner")
            case _:
                raise ProtocolError(f"{process.name} sent a notice that is not known: {str(message)[:200]}")

    def _relived(self, index: int, told: dict[str, Any]) -> None:
        """An executor was started again and could not bring all environments to where they were."""
        for fault, sentence in _NOT_BROUGHT_BACK.items():
            if told.get(fault):
                envs = ", ".join(map(str, told[fault]))
                why = f" ({told['detail']})" if told["detail"] else ""
                self._run.log.warn(
                    f"executor {index} was started again: {sentence.format(envs)}{why}; from here on the weights are "
                    "not those of a run in which it had not died",
                    "executor",
                    index,
                )

    def _holds(self, process: Process, index: int) -> bool:
        """Return whether a process may speak for an executor."""
        return f"executor-{index}" in self._roles.get(process.name, ())


def _about_state(behind: Any) -> str:
    """Return what a learner's successor found of its predecessor's state, by how many publications it was older."""
    match behind:
        case 0:
            return "its optimiser and all else that learns goes on from there too"
        case int():
            return f"its optimiser and all else that learns goes on as it was {behind} publications before"
    return "its optimiser starts fresh"


def _quantiles(told: dict[str, Any], what: str) -> events.Quantiles:
    """The event of a notice.

    Raises:
        ProtocolError: it is no such notice.
    """
    require(told, QUANTILES, what)
    require([*told["values"].values()], [dict], f"{what}: values")
    require([[*one.values()] for one in told["values"].values()], [[(float, None)]], f"{what}: values")
    require([*told["shares"].values()], [[float]], f"{what}: shares")
    require([*told["counts"].values()], [int], f"{what}: counts")
    return events.Quantiles(**{name: value for name, value in told.items() if name != "kind"})


def _are_numbers(values: dict[Any, Any]) -> bool:
    """Return whether these are names with finite numbers."""
    return all(type(name) is str and type(value) is float and math.isfinite(value) for name, value in values.items())
