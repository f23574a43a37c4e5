"""Finds out where an executor was when it died, and writes a crash report: environment, episode, seed, actions."""

from __future__ import annotations

import datetime as dt
import signal
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlxe_async.errors import MlxeError
from mlxe_async.ipc.processes.nursery import ExitStatus
from mlxe_async.ipc.processes.process import Process
from mlxe_async.ipc.shared.lanes import LaneRemains
from mlxe_async.ipc.shared.words import ProgressPage
from mlxe_async.logs import events
from mlxe_async.roles.places import Place
from mlxe_async.rows import Array
from mlxe_async.storage.crash_reports import MOST_ACTION_NUMBERS, CrashReport
from mlxe_async.supervisor.context import RunContext
from mlxe_async.supervisor.plan.event_log import role_of


class Crashes:
    """Knows where dead executors were.

    Args:
        run: what the run consists of.
        pages: all progress pages.
    """

    def __init__(self, run: RunContext, pages: Sequence[ProgressPage]) -> None:
        self._run, self._blueprint, self._pages = run, run.blueprint, pages
        self._stood: dict[int, Place] = {}
        self._faults: dict[int, dict[str, Any]] = {}

    def stood(self, executor: int) -> Place | None:
        """Where an executor was when it died last, taken note of once; None if it was in no environment's call."""
        return self._stood.pop(executor, None)

    def faulted(self, executor: int, fault: dict[str, Any]) -> None:
        """An environment of an executor raised: should the executor be given up, it is because of this."""
        self._faults[executor] = fault

    def died(self, process: Process, sentence: str, status: ExitStatus) -> None:
        """A process died unasked; its successor has not begun."""
        planned = next(planned for planned in self._blueprint.processes if planned.name == process.name)
        executors = [int(role.removeprefix("executor-")) for role in planned.roles if role.startswith("executor-")]
        places = {executor: at for executor in executors if (at := self._place_of(executor)) is not None}
        # Of several executors at work in one process, which was to blame is not known.
        index, place = next(iter(places.items())) if len(places) == 1 else (None, None)
        for executor in executors:
            self._stood.pop(executor, None)
        if index is not None and place is not None:
            self._stood[index] = place
        killer = next((known.name for known in signal.Signals if known == status.signal), None)
        role, number = role_of(process.name)
        self._write(
            number,
            CrashReport(
                what=sentence,
                process=process.name,
                role=role if len(planned.roles) == 1 else ", ".join(planned.roles),
                pid=process.pid,
                epoch=process.epoch,
                signal=killer,
                code=status.code,
                executor=number if index is None else index,
                stack=status.stack,
                trace=process.trace,
                **self._common(),
                **self._about(index, place),
            ),
        )

    def given_up(self, executor: int, process: Process, why: str) -> None:
        """An executor lives, but its environments failed too often."""
        fault = self._faults.get(executor, {})
        place = self._blueprint.places(self._run.segments["control"], executor)
        env, step = fault.get("env"), fault.get("step", 0)
        about: dict[str, Any] = {}
        if env is not None and 0 <= env < len(place.action):
            known = Place(env, fault["phase"], fault["episode"], fault["seed"], step, 0, place.action[env].copy())
            about = self._about(executor, known) | {"finished_episodes": int(place.finished[env])}
        self._write(
            executor,
            CrashReport(
                what=f"executor {executor} is given up: {why}",
                process=process.name,
                role="executor",
                pid=process.pid,
                epoch=process.epoch,
                executor=executor,
                trace=fault.get("trace", ""),
                **self._common(),
                **about,
            ),
        )

    def _place_of(self, executor: int) -> Place | None:
        if not self._pages[self._blueprint.page_of(f"executor-{executor}")].pulse()[1]:
            return None
        return self._blueprint.places(self._run.segments["control"], executor).present()

    def _common(self) -> dict[str, Any]:
        return {"run": self._run.folder.path.name, "time": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")}

    def _about(self, executor: int | None, place: Place | None) -> dict[str, Any]:
        if executor is None or place is None:
            return {}
        return {
            "environment": self._blueprint.settings.task.env,
            "env": place.env,
            "phase": place.phase,
            "episode": place.episode,
            "seed": place.seed,
            "step": place.step,
            "finished_episodes": place.finished,
            "actions": self._actions(executor, place),
        }

    def _actions(self, executor: int, place: Place) -> list[Any] | None:
        """Those of the episode, as far as its rows are still in the lane: all of them, or None."""
        if place.phase != "step" or place.step * max(1, place.action.size) > MOST_ACTION_NUMBERS:
            return [] if place.phase == "reset" else None
        layout, rows = self._blueprint.layout, self._blueprint.block_rows
        found: list[Array] = []
        try:
            remains = LaneRemains(self._run.segments[f"lane-{executor}"], layout.schema_hash)
        except MlxeError:  # a damaged lane is told of elsewhere
            return None
        for payload, count in remains.blocks():
            views = layout.views(payload, rows)
            mine = (views["env"] == place.env) & (views["episode"] == place.episode)
            mine[rows if count is None else min(count, rows) :] = False
            for row in np.flatnonzero(mine):
                # Behind what was written last there may be rows of former times: these do not count on.
                if len(found) < place.step - 1 and views["step"][row] == len(found):
                    found.append(views["action"][row].copy())
        if len(found) != place.step - 1:
            return None
        return [action.tolist() for action in (*found, place.action)]

    def _write(self, index: int | None, report: CrashReport) -> None:
        try:
            path = report.write(self._run.folder.crash_path)
        except (OSError, MlxeError) as error:
            self._run.log.warn(f"the crash report of {report.process} cannot be written: {error}")
            return
        self._run.log.emit(
            events.CrashReport(
                file=str(path.relative_to(self._run.folder.path)),
                process=report.process,
                what=report.what,
                env=report.env,
                phase=report.phase,
                episode=report.episode,
                seed=report.seed,
                step=report.step,
                actions=None if report.actions is None else len(report.actions),
            ),
            role_of(report.process)[0],
            index,
        )
