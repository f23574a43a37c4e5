"""The handle of the learner: what becomes of a plan whose learner died over it.

Where the executors wait for it and its state is kept with each publication, a successor learns from the same plan
again, to the same weights. Elsewhere the plan of a learner that died is given up, and its rows stay in the memory.

Executors that learn together with it are asked at the same time. If one of them dies, or fails, the attempt is declared
broken, which ends the waiting of the others; when all have answered it is made again as a whole. If the learner has
published, the attempt is over, whatever became of the others: it publishes after all have done their part.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mlxe_async.errors import AuditFailed, MlxeError, NumericError, ProcessDied, RunFailed, StepsDiffer, Unpublished
from mlxe_async.ipc.messages.answers import require
from mlxe_async.ipc.messages.remote_error import RemoteError
from mlxe_async.ipc.processes.process import Process
from mlxe_async.logs import events
from mlxe_async.rows import Array
from mlxe_async.supervisor.handles.answers import LEARNED, PUBLISHED
from mlxe_async.supervisor.handles.context import HandleContext
from mlxe_async.supervisor.handles.memorizer import MemorizerHandle
from mlxe_async.supervisor.recording.steps import Ended, Learned, Published

_ENDING: dict[str, type[MlxeError]] = {one.__name__: one for one in (AuditFailed, Unpublished, StepsDiffer)}
"""Errors of an algorithm that another try would not mend."""
TRIES = 3
"""Learners that may die over one plan before it is given up: it may be to blame."""
IS_LEARNED = partial(require, kind=LEARNED, what="learned")


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
            asyncio.ensure_future(process.call("learn", role=role, check=IS_LEARNED, attempt=attempt, **asked))
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


class LearnerHandle:
    """The learner.

    Args:
        process: where it lives.
        context: what is shared.
        memorizer: told which plans are used.
        started: episodes begun so far, for the record of each publication.
        cpu_seconds: used so far by all processes but the evaluator, for the same record.
        newest: version and weights (P,) of the newest publication, as everybody else sees them; None before the first.
        repeats: a successor can learn from a plan again, alike.
        note_publication: called when there is a new version.
        team: executors that learn together with it; None: it learns alone.
    """

    def __init__(
        self,
        process: Process,
        context: HandleContext,
        memorizer: MemorizerHandle,
        *,
        started: Callable[[], int],
        cpu_seconds: Callable[[], float],
        newest: Callable[[], tuple[int, Array] | None],
        repeats: bool = False,
        note_publication: Callable[[], None] = lambda: None,
        team: TeamHandle | None = None,
    ) -> None:
        self.process = process
        self._context, self._memorizer = context, memorizer
        self._started, self._cpu_seconds, self._newest = started, cpu_seconds, newest
        self._repeats, self._note_publication = repeats, note_publication
        self._team = team
        self._calls = 0
        self._failure = ""
        self._fruitless, self._has_learned, self._why = 0, False, ""
        self.busy = False
        self.is_published = False
        "The present weights are out already: those of a run that goes on."

    @property
    def never_learned(self) -> str:
        """Why nothing came of any plan, in a sentence; empty once something did, or where no plan was there yet."""
        if self._has_learned or not self._fruitless:
            return ""
        return (
            f"nothing was learned: none of {self._fruitless} plans led to new weights, the last one because {self._why}"
        )

    async def publish(self) -> int:
        """Publish the present weights, unless they are."""
        if self.is_published:
            self.is_published = False
            return self._context.counters.version
        self._calls += 1
        while True:
            try:
                done = await self.process.call(
                    "publish",
                    role="learner",
                    check=partial(require, kind=PUBLISHED, what="published"),
                    call=self._calls,
                )
            except ProcessDied:
                if self._context.ending:
                    return self._context.counters.version
            else:
                self._context.recorder.note(Published(done["version"], done["norm"]))
                self._published(done["version"], done["start_ns"], done["seconds"], done["norm"])
                return int(done["version"])

    async def learn(self, plan: dict[str, Any]) -> int:
        """Learn from a plan and publish; see `schedules.verbs`."""
        counters = self._context.counters
        if not plan["updates"]:
            self._context.delivered.clear()
            return counters.version
        self.busy = True
        moment: dict[str, Any] = {
            "env_steps": counters.env_steps,
            "episodes": counters.episodes,
            "updates": counters.updates,
            "progress": self._context.training_result(counters.version),
        }
        self._calls += 1
        promoter = self._context.promoter
        back = None if promoter is None else promoter.iterations
        if promoter is not None:
            moment["progress"] = None  # it judges, by results of other iterations
        elif self._context.promotes and moment["progress"] is not None:
            told = events.TrainingResult(moment["progress"], self._context.promote_by, counters.version)
            self._context.log.emit(told, "learner")
        try:
            done = await self._learned({"plan": plan, "call": self._calls, "iterations": back, **moment})
        except ProcessDied as error:
            self._hear_last_publication()
            if self._repeats and not self._context.ending:
                self._context.log.warn(f"the learner died {TRIES} times over one plan, which is given up", "learner")
            return self._give_up(plan, str(error))
        except RemoteError as error:
            if error.kind == "NumericError":
                raise NumericError(error.message) from error
            if error.kind in _ENDING:
                raise _ENDING[error.kind](f"learner: {error.message}") from error
            if error.kind != "UpdateFailed":
                raise RunFailed(f"learner learning: {error}") from error
            self._context.recorder.note(Ended("", "an update raised"))
            self._note_failure(error)
            return self._give_up(plan, f"update raised {error.message}")
        self._note_fruit(done)
        self._context.recorder.note(Learned(**moment, version=done["version"], norm=done["norm"]))
        self._failure = ""
        self.busy = False
        self._context.delivered.clear()
        if promoter is not None and done["set_back"]:
            promoter.went_back()
        counters.updates += done["updates"]
        self._memorizer.used(plan)
        self._context.log.learned(done, moment["env_steps"])
        if done["version"] > counters.version:
            end_ns = done["start_ns"] + round(done["seconds"] * 1e9)
            publish_ns = round(done["publish_seconds"] * 1e9)
            self._published(done["version"], end_ns - publish_ns, done["publish_seconds"], done["norm"])
        return counters.version

    async def _learned(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The answer to `learn`; what a successor is asked again is numbered, so that nothing is learned twice."""
        for _ in range(TRIES - 1 if self._repeats else 0):
            try:
                return await self._ask(asked)
            except ProcessDied:
                continue
        return await self._ask(asked)

    async def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self._team is not None:
            return await self._team.learn(asked)
        return dict(await self.process.call("learn", role="learner", check=IS_LEARNED, **asked))

    def _hear_last_publication(self) -> None:
        """What a learner published before it died, but could not tell: executors act by it and know its number."""
        newest = self._newest()
        if newest is not None and newest[0] > self._context.counters.version:
            self._has_learned = True
            version, vector = newest
            self._published(version, time.monotonic_ns(), 0.0, float(np.linalg.norm(vector.astype(np.float64))))

    def _note_fruit(self, done: dict[str, Any]) -> None:
        if done["updates"] and not done["rolled_back"]:
            self._has_learned = True
        elif done["rolled_back"]:
            self._note_fruitless("its losses or weights were not finite")
        elif done["dropped_rows"]:
            self._note_fruitless(f"all of its {done['dropped_rows']} rows were older than schedule.max_policy_lag")

    def _note_fruitless(self, why: str) -> None:
        self._fruitless, self._why = self._fruitless + 1, why

    def _give_up(self, plan: dict[str, Any], why: str) -> int:
        """Nothing comes of a plan; returns the version that stays."""
        self._note_fruitless(why)
        if "slots" in plan and self.process is not self._memorizer.process:
            # A memorizer that lives on would keep its rollouts' room for it.
            self._memorizer.used(plan)
        self.busy = False
        self._context.delivered.clear()
        return self._context.counters.version

    def _note_failure(self, error: RemoteError) -> None:
        """An update raised: once may be the device's fault; twice alike, or before any succeeded, the algorithm's."""
        if error.message != self._failure:
            self._context.log.warn(f"learner: update raised {error.message}\n{error.trace}", "learner")
        if not self._context.counters.updates:
            raise RunFailed(f"learner: update raised in the first phase of learning: {error.message}") from error
        if error.message == self._failure:
            raise RunFailed(f"learner: update raised twice in a row: {error.message}") from error
        self._failure = error.message

    def _published(self, version: int, start_ns: int, seconds: float, norm: float | None) -> None:
        context = self._context
        context.counters.version = version
        context.counters.episodes_started = self._started()
        self.process.note_progress()
        self._note_publication()
        context.log.published(version, start_ns, seconds, norm)
        about = {
            "episodes_started": context.counters.episodes_started,
            "env_steps": context.counters.env_steps,
            "updates": context.counters.updates,
            "seconds": context.budget.seconds,
            "cpu_seconds": self._cpu_seconds(),
            "published_ns": start_ns + round(seconds * 1e9),
        }
        context.publications.note(version, about)
        context.bell.ring()
