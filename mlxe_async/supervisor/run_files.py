"""Opens the files of a run: its log begins, its folder says what it is, and what it goes on from is taken up."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from mlxe_async.errors import ResourceError
from mlxe_async.logs import events
from mlxe_async.logs.journal import Journal
from mlxe_async.logs.subscribers import Subscribers
from mlxe_async.settings import Problem, Settings, as_tables, dump_settings
from mlxe_async.settings.effects import idle
from mlxe_async.settings.trust import seal_of
from mlxe_async.storage.run_folder import RECORDING, RunFolder
from mlxe_async.storage.safe_text import visible
from mlxe_async.supervisor.checkpointing.resume_point import ResumePoint
from mlxe_async.supervisor.checkpointing.solved import Solved
from mlxe_async.supervisor.checkpointing.weights import Origin, WeightsSaver
from mlxe_async.supervisor.plan.budget import Counters, Measures
from mlxe_async.supervisor.plan.event_log import EventLog
from mlxe_async.supervisor.plan.provenance import host, invocation, versions
from mlxe_async.supervisor.recording.file import Recording
from mlxe_async.supervisor.recording.replay import facts_of
from mlxe_async.supervisor.recording.steps import NoRecorder, Recorder
from mlxe_async.ticks import nearest_tick

ROUTINE_WAITS_S = 0.15
LONGEST_TORN = 200


class RunFiles:
    """What a run writes to, from here to its end.

    Args:
        folder: the run's folder.
        settings: the run's settings with the algorithm's defaults, which only the probe knows.
        facts: what the probe reported.
        measures: the run's counters, budget and clocks.
        subscribers: who hears the log too.
        point: what the run goes on from, None for a new one.
        anew: the run that was here and is begun anew, if there was one.
        origin: the weights of another run that it begins with, if any.

    Raises:
        ResourceError: the log cannot be written.
    """

    def __init__(
        self,
        folder: RunFolder,
        settings: Settings,
        facts: Mapping[str, Any],
        measures: Measures,
        subscribers: Subscribers,
        point: ResumePoint | None,
        anew: ResumePoint | None,
        origin: Origin | None,
    ) -> None:
        self.folder, self._settings, self._facts = folder, settings, facts
        self._measures, self._point, self._anew, self._origin = measures, point, anew, origin
        past = point or anew
        try:
            if past is not None:
                past.log_end.mend(folder.log_path)
            self.journal = Journal(
                folder.log_path,
                folder.name,
                first_seq=past.log_end.next_seq if past else 0,
                most_bytes=settings.logs.max_mb * 2**20,
            )
        except OSError as error:
            raise ResourceError(f"{folder.log_path} cannot be written: {error.strerror}") from error
        subscribers.attach(self.journal)
        self.log = EventLog(self.journal, measures.counters, measures.budget)
        self.saver = WeightsSaver(settings, facts, folder, self.log, measures.counters)
        self.solved = Solved(self.log, self.saver, measures.budget)
        self.recorder: Recorder = NoRecorder()
        self.resumption: Resumption | None = None

    def begin(self, cores: int) -> None:
        """Say what the run is, in its folder and as the first words of its log, and take up what it goes on from.

        Called on the run's loop.

        Args:
            cores: number of cores that the run may use.

        Raises:
            ResourceError: the folder cannot be written to.
        """
        settings, folder, point = self._settings, self.folder, self._point
        past = point or self._anew
        if past is not None and past.log_end.torn:
            torn = visible(past.log_end.torn.decode(errors="backslashreplace"), LONGEST_TORN)
            self.log.warn(
                f"log.jsonl ended in the middle of a line; its {past.log_end.torn_bytes} bytes were cut off: {torn}"
            )
        for number, cause in point.rejected if point else ():
            self.log.emit(events.CheckpointRejected(number=number, cause=cause))
        told = [Problem.from_json(problem).path for problem in self._facts["idle"]]
        told += [problem.path for problem in idle(settings, self._facts["memory_kind"])]
        to_keep = settings
        if self._origin is not None:  # a name such as "latest" means another run later
            run = settings.run.model_copy(update={"init_from": str(self._origin.run.resolve())})
            to_keep = settings.model_copy(update={"run": run})
        folder.write_settings(dump_settings(to_keep, hide_secrets=True, idle=told), seal_of(settings))
        about, machine = versions(), host(cores)
        begun_with = self._begun_with()
        sitting: dict[str, Any] = {
            "began": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
            "versions": about,
        }
        if point is not None and point.whole is not None:
            sitting |= {"checkpoint": point.whole.number, "exact": point.exact}
        folder.write_run_json(
            {
                "name": folder.name,
                "seed": settings.run.seed,
                "versions": about,
                "host": machine,
                **invocation(),
                "begun": self._begun(),
                "init_from": None if begun_with is None else asdict(begun_with),
                "facts": self._facts,
                "sittings": [*(past.former_sittings if past else ()), {**sitting, "host": machine}],
            }
        )
        tell_start(self.log, settings, about, machine, resumed=past is not None)
        if point is not None:
            with point.taking_up():
                self._take_up(point)
        if self._anew is not None:
            self._begin_anew(self._anew)
        if self._origin is not None and begun_with is not None:
            self.log.emit(begun_with)
        if settings.run.record:
            self._record()
        loop = asyncio.get_running_loop()
        self.journal.hold_routine(lambda flush: loop.call_at(nearest_tick(loop.time() + ROUTINE_WAITS_S), flush))

    def _begun(self) -> dict[str, Any] | None:
        """Return how a run that goes on was begun: its first command, commit and versions; None for a new one."""
        past = self._point or self._anew
        if past is None:
            return None
        first = past.about.get("begun") or {key: past.about.get(key) for key in ("command", "commit", "versions")}
        return dict(first) if isinstance(first, Mapping) else None

    def _begun_with(self) -> events.InitFrom | None:
        """Return what weights of another run it begins with, or once began with."""
        origin = self._origin
        if origin is None:
            return None if self._point is None else self._point.begun_with
        return events.InitFrom(
            path=str(origin.run),
            checkpoint=origin.number,
            version=origin.version,
            weights_hash=origin.digest,
            passed_over=[f"{number} ({cause})" for number, cause in origin.rejected],
        )

    def _take_up(self, point: ResumePoint) -> None:
        """Go on counting where the run was interrupted."""
        state = point.state
        gap_ns = self._measures.go_on(state, point.first_version)
        self.solved.at = state["solved_at"]
        if self.solved.at is not None:
            self._measures.budget.was_solved(int(self.solved.at["env_steps"]))
        self.saver.restore(state["saver"], point.own_arrays().get("best"))
        point.folder.point_latest()
        self.resumption = Resumption(self.log, point, self._measures.counters, gap_ns)

    def _begin_anew(self, past: ResumePoint) -> None:
        """Nothing was saved: all that the log tells of is void."""
        self.folder.point_latest()
        (self.folder.path / RECORDING).unlink(missing_ok=True)
        self.log.emit(
            events.RunResume(
                checkpoint=0,
                version=0,
                env_steps=0,
                episodes=0,
                updates=0,
                seconds=0.0,
                previous_run_died=not past.log_end.has_last_word,
                changed=past.told,
                versions=past.other_versions,
                exact=not past.told and not past.other_versions,
                void_from=0,
                void_to=past.log_end.next_seq - 1,
            )
        )
        self.log.warn(past.anew, loud=True)

    def _record(self) -> None:
        if self._point is None:
            self.recorder = Recording(self.folder.path / RECORDING, facts_of(self._settings))
        else:
            self.log.warn("run.record: what a run does after it was resumed is not recorded")

    def end(self) -> None:
        """The log ends."""
        self.journal.close()


def tell_start(
    log: EventLog, settings: Settings, about: dict[str, str], machine: dict[str, Any], *, resumed: bool
) -> None:
    """The run begins, with these settings, versions and host."""
    log.emit(
        events.RunStart(
            seed=settings.run.seed,
            schedule=settings.schedule.kind,
            algorithm=settings.algorithm.name,
            env=settings.task.env,
            settings=as_tables(settings),
            versions=about,
            host=machine,
            python_path=list(settings.run.python_path),
            modules=sorted({module for _, module in settings.named_modules()}),
            resumed=resumed,
        )
    )


class Resumption:
    """The word that a run goes on, said once all roles have told whether they go on where they were.

    Args:
        log: tells the log.
        point: what the run goes on from.
        counters: of the run, as they were there.
        gap_ns: for so long its clocks stood still; None if unknown.
    """

    def __init__(self, log: EventLog, point: ResumePoint, counters: Counters, gap_ns: int | None) -> None:
        self._log, self._is_told = log, False
        self._versions = point.other_versions
        self._event = events.RunResume(
            checkpoint=int(point.whole.number if point.whole else 0),
            version=point.version,
            env_steps=counters.env_steps,
            episodes=counters.episodes,
            updates=counters.updates,
            seconds=point.state["budget"]["seconds"],
            previous_run_died=not point.log_end.has_last_word,
            changed=point.told,
            versions=self._versions,
            void_from=point.state.get("log", {}).get("next_seq"),
            void_to=point.log_end.next_seq - 1,
            gap_ns=gap_ns,
        )

    def tell(self, *, exact: bool) -> None:
        """Tell it, the first time."""
        if self._is_told:
            return
        self._is_told = True
        self._log.emit(replace(self._event, exact=exact))
        for change in self._event.changed:
            self._log.warn(f"the run goes on with another {change}")
        if self._versions:
            self._log.warn(
                f"the run goes on under other versions, so that numbers may come out otherwise: "
                f"{', '.join(self._versions)}; run.json keeps the former ones, too"
            )
