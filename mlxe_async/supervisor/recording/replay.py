"""Replays a recorded `oa` run: the same calls to the same roles in the same order, to the same weights.

A rollout depends on nothing but its seeds and the weights it began with. So each is played as soon as those are out,
however long it took in the run, and waits in its lane until the memorizer is told to take it in. Everything else
happens in the order in which it was recorded, one step after the other. Where a step leads to something else than was
recorded, the replay ends and says which: the environment is not deterministic then, or the machine or a package is
another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxe_async.errors import RunFailed, SettingsError
from mlxe_async.ipc.processes.process import Process
from mlxe_async.settings import Settings
from mlxe_async.supervisor.plan.budget import Bell, Counters
from mlxe_async.supervisor.plan.event_log import EventLog
from mlxe_async.supervisor.plan.provenance import about_run, versions
from mlxe_async.supervisor.recording.file import Recorded
from mlxe_async.supervisor.recording.steps import Ended, Ingested, Learned, Memorized, Published, Rollout, Step


def facts_of(settings: Settings) -> dict[str, Any]:
    """Return what a recording says of its run besides the steps."""
    return {"versions": versions(), "executors": settings.schedule.executors, "seed": settings.run.seed}


class Replay:
    """One recording, and how far it has been repeated.

    Args:
        folder: of the run that was recorded.
        recorded: its recording.
    """

    def __init__(self, folder: Path, recorded: Recorded) -> None:
        self.folder, self.recorded = folder, recorded
        self.repeated = 0
        "Steps."
        self._version = 0
        self._plan: dict[str, Any] | None = None
        self._by_episode = self._gathers = False
        self._learned_from = 0
        self._written = [0] * int(self.recorded.facts["executors"])
        self._sort()

    def refuse_other_weights(self, digest: str) -> None:
        """The run that was recorded began with weights of another run.

        Args:
            digest: of those that a repetition would begin with now.

        Raises:
            RunFailed: they are others.
        """
        told = about_run(self.folder).get("init_from")
        if isinstance(told, dict) and told.get("weights_hash") != digest:
            raise RunFailed(
                f"{self.folder} cannot be replayed: run.init_from has other weights by now than it began with; "
                f"expected checkpoint {told.get('checkpoint')} of {told.get('path')}"
            )

    def _sort(self) -> None:
        """Sort the rollouts by when they can be played: as soon as their version is out."""
        self._rollouts: dict[int, dict[int, list[Rollout]]] = {}
        for step in self.recorded.steps:
            if isinstance(step, Rollout):
                self._rollouts.setdefault(step.version, {}).setdefault(step.executor, []).append(step)

    def prepared(self, settings: Settings) -> Settings:
        """The run's settings without its ends and tests, and with lanes that hold all that has to wait in them.

        Raises:
            SettingsError: these settings do not belong to the recording.
        """
        facts, schedule = self.recorded.facts, settings.schedule
        if schedule.kind != "oa" or schedule.executors != facts["executors"] or settings.run.seed != facts["seed"]:
            raise SettingsError(
                [
                    f'{self.folder}: its recording is of schedule.kind = "oa" with schedule.executors = '
                    f"{facts['executors']} and run.seed = {facts['seed']}, its settings say "
                    f'"{schedule.kind}", {schedule.executors} and {settings.run.seed}'
                ]
            )
        self._by_episode, self._learned_from = schedule.sync == "episode", schedule.learned_from
        self._gathers = self._by_episode and schedule.gradients == "executors"  # a rollout may be of several episodes
        stop = settings.stop.model_copy(update=dict.fromkeys(settings.stop.model_dump()) | {"solved": False})
        slots = max(settings.memory.lane_slots, self.recorded.backlog() + 1)
        return settings.of_run().model_copy(
            update={
                "run": settings.run.model_copy(update={"record": False, "name": f"{settings.run.name[:57]}-replay"}),
                "stop": stop,
                "schedule": schedule.model_copy(update={"memorizer": "learner"}),
                "learner": settings.learner.model_copy(update={"keep_state_every": 1}),  # as when it was recorded
                "memory": settings.memory.model_copy(update={"lane_slots": slots}),
                "evaluation": settings.evaluation.model_copy(update={"enabled": False}),
                "checkpoint": settings.checkpoint.model_copy(update={"interval_s": 0.0, "interval_steps": 0}),
            }
        )

    async def follow(self, by_role: Mapping[str, Process], log: EventLog, counters: Counters, bell: Bell) -> None:
        """Repeat all steps.

        Raises:
            RunFailed: one leads to something else than was recorded.
        """
        for step in self.recorded.steps:
            if isinstance(step, Ended):
                break
            if isinstance(step, Ingested | Memorized) and not self._can_reach(step.positions):
                log.warn(f"{self._at(step)}: the run ended in the middle of a rollout that was learned from already")
                break
            if not isinstance(step, Rollout):  # played already
                await self._repeat(step, by_role, log, counters)
            self.repeated += 1
            bell.ring()

    def verdict(self, weights_hash: str | None) -> str:
        """Return what came of it, in a sentence.

        Raises:
            RunFailed: all steps were repeated, and the weights are others.
        """
        steps, end = len(self.recorded.steps), self.recorded.end
        if end is not None and end.weights_hash and self.repeated == steps - 1:
            if end.weights_hash != weights_hash:
                raise RunFailed(
                    f"replay: expected the weights {end.weights_hash}, got {weights_hash}{self._differences()}"
                )
            return f"all {self.repeated:,} steps were repeated, to the same weights {end.weights_hash[:12]}"
        why = end.why if end is not None and end.why else "the run's own end is not in it"
        return (
            f"{self.repeated:,} of {steps:,} recorded steps were repeated, to the same weights {self._version} as far "
            f"as was recorded: {why}"
        )

    # -- one step ---------------------------------------------------------------------------------------------------

    async def _repeat(self, step: Step, by_role: Mapping[str, Process], log: EventLog, now: Counters) -> None:
        match step:
            case Published():
                done = await by_role["learner"].call("publish", role="learner")
                self._expect(step, (step.version, step.norm), (done["version"], done["norm"]))
                log.published(done["version"], done["start_ns"], done["seconds"], done["norm"])
            case Ingested():
                await self._taken_in(step, by_role, settle=self._plan if step.settled else None)
            case Memorized():
                self._plan = await self._drawn(step, by_role, log, settle=self._plan if step.settled else None)
            case Learned():
                await self._learned(step, by_role, log, now)
        if isinstance(step, Learned | Published):
            if step.version > self._version:
                now.version = self._version = step.version
            await self._go_on(by_role, log, now)

    async def _taken_in(self, step: Ingested, by_role: Mapping[str, Process], *, settle: Any) -> None:
        memorizer, upto = by_role["memorizer"], list(step.positions)
        done = await memorizer.call("ingest", role="memorizer", upto=upto, settle=settle)
        self._expect(step, upto, done["positions"])

    async def _drawn(
        self, step: Memorized, by_role: Mapping[str, Process], log: EventLog, *, settle: Any
    ) -> dict[str, Any]:
        plan: dict[str, Any] = await by_role["memorizer"].call(
            "memorize",
            role="memorizer",
            most_updates=step.most_updates,
            settle=settle,
            upto=list(step.positions),
            lane=step.lane,
        )
        ingested = plan.pop("ingested")
        self._expect(step, (list(step.positions), step.updates), (ingested["positions"], plan["updates"]))
        log.memorized(plan, ingested["rows"])
        return plan

    def _to_learn(self) -> dict[str, Any]:
        """Return what the learner is asked to learn from."""
        return {"plan": self._plan}

    async def _learned(self, step: Learned, by_role: Mapping[str, Process], log: EventLog, now: Counters) -> None:
        done = await by_role["learner"].call(
            "learn",
            role="learner",
            env_steps=step.env_steps,
            episodes=step.episodes,
            updates=step.updates,
            progress=step.progress,
            **self._to_learn(),
        )
        self._expect(step, (step.version, step.norm), (done["version"], done["norm"]))
        now.updates = step.updates + done["updates"]
        log.learned(done, step.env_steps)

    async def _go_on(self, by_role: Mapping[str, Process], log: EventLog, now: Counters) -> None:
        """Play all that was played under the version which is out now."""
        async with asyncio.TaskGroup() as group:
            for rollouts in self._rollouts.pop(self._version, {}).values():
                group.create_task(self._play(rollouts, by_role, log, now))

    async def _play(
        self, rollouts: list[Rollout], by_role: Mapping[str, Process], log: EventLog, now: Counters
    ) -> None:
        for step in rollouts:
            role = f"executor-{step.executor}"
            report = await by_role[role].call(
                "generate",
                role=role,
                rollout=step.rollout,
                version=step.version,
                finished_episodes=step.finished_episodes,
                attempt=0,
                steps=step.steps,
                unfinished=None,
                # It may have been cut there; an episode that ended by itself has no row after that one.
                most_rows=step.rows if self._by_episode else None,
                least_rows=step.rows if self._gathers else 0,
            )
            self._expect(step, (step.rows, step.blocks), (report["rows"], report["blocks"]))
            self._written[step.executor] += step.blocks
            if step.executor >= self._learned_from:
                log.played_greedily(step.executor, report)
                continue
            now.env_steps += report["rows"]
            now.episodes += len(report["episodes"]["return"])
            now.rollouts += 1
            log.generated(step.executor, report)

    def _can_reach(self, positions: tuple[int, ...]) -> bool:
        return all(position <= written for position, written in zip(positions, self._written, strict=True))

    def _at(self, step: Any) -> str:
        return f"replay, step {self.repeated + 1:,} of {len(self.recorded.steps):,} ({type(step).__name__.lower()})"

    def _expect(self, step: Any, expected: Any, got: Any) -> None:
        if expected != got:
            raise RunFailed(f"{self._at(step)}: expected {expected}, got {got}{self._differences()}")

    def _differences(self) -> str:
        then, here = self.recorded.facts["versions"], versions()
        others = [
            f"{name} {then.get(name)} there, {here.get(name)} here" for name in then if then[name] != here.get(name)
        ]
        if others:
            return f"; {', '.join(others)}"
        return "; the environment is not deterministic, or this is another machine"
