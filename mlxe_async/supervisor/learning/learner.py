"""The handle of the learner: what becomes of a plan whose learner died over it.

Where the executors wait for it and its state is kept with each publication, a successor learns from the same plan
again, to the same weights. Elsewhere the plan of a learner that died is given up, and its rows stay in the memory.

Executors that learn together with it are asked by `TeamHandle`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mlxe_async.errors import (
    AuditFailed,
    MlxeError,
    NumericError,
    ProcessDied,
    ResourceError,
    RunFailed,
    StepsDiffer,
    Unpublished,
)
from mlxe_async.ipc.messages.remote_error import RemoteError
from mlxe_async.ipc.processes.process import Process
from mlxe_async.logs import events
from mlxe_async.rows import Array
from mlxe_async.supervisor.handles.answers import PUBLISHED, is_learned
from mlxe_async.supervisor.handles.context import HandleContext
from mlxe_async.supervisor.handles.memorizer import MemorizerHandle
from mlxe_async.supervisor.learning.team import TeamHandle
from mlxe_async.supervisor.recording.steps import Ended, Learned, Published

_ENDING: dict[str, type[MlxeError]] = {
    one.__name__: one for one in (AuditFailed, ResourceError, StepsDiffer, Unpublished)
}
"""Errors that another try would not mend."""
Outcome = Literal["nothing", "applied", "odd", "lost", "beaten"]
"""The end of a plan: it was empty, led to new weights, to none that are finite, died, or its network was no better."""
TRIES = 3
"""Learners that may die over one plan before it is given up: it may be to blame."""


@dataclass
class Pushes:
    """The account of what was to be pushed; see `logs.events.Pushes`."""

    made: int = 0
    applied: int = 0
    too_old: int = 0
    odd: int = 0
    lost: int = 0
    outliers: int = 0
    given_up: int = 0
    beaten: int = 0
    waiting: int = 0


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
        self.pushes: Pushes | None = None
        "The account of gradients that executors push; None: they push none."
        self.under_way = 0
        "Rollouts that are being learned from by other means than `learn`."
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
                    check=PUBLISHED.require,
                    call=self._calls,
                )
            except ProcessDied:
                if self._context.ending:
                    return self._context.counters.version
            else:
                self._context.recorder.note(Published(done["version"], done["norm"]))
                self._published(done["version"], done["start_ns"], done["seconds"], done["norm"])
                return int(done["version"])

    @contextlib.asynccontextmanager
    async def resting(self) -> AsyncIterator[None]:
        """Learn nothing inside."""
        yield

    async def learn(self, plan: dict[str, Any]) -> int:
        """Learn from a plan and publish; see `schedules.verbs`."""
        await self._learn(plan)
        return self._context.counters.version

    async def _learn(self, plan: dict[str, Any], **more: Any) -> Outcome:
        """The same; `more` is asked of the learner besides."""
        counters = self._context.counters
        if not plan["updates"]:
            self._context.delivered.clear()
            if self._context.promote_by == "steps":  # a sum of one iteration, not of several without an update
                self._context.returns.clear()
            return "nothing"
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
            done = await self._learned({"plan": plan, "call": self._calls, "iterations": back, **moment, **more})
        except ProcessDied as error:
            self._hear_last_publication()
            if self._repeats and not self._context.ending:
                self._context.log.warn(f"the learner died {TRIES} times over one plan, which is given up", "learner")
            self._give_up(plan, str(error))
            return "lost"
        except RemoteError as error:
            self._raise_unless_forgiven(error)
            self._give_up(plan, f"update raised {error.message}")
            return "odd"
        self._note_fruit(done)
        self._context.recorder.note(Learned(**moment, version=done["version"], norm=done["norm"]))
        self._failure = ""
        self.busy = False
        self._context.delivered.clear()
        if promoter is not None and done["set_back"]:
            promoter.went_back()
        counters.updates += done["updates"]
        self._used(plan)
        self._context.log.learned(done, moment["env_steps"])
        if done["version"] > counters.version:
            end_ns = done["start_ns"] + round(done["seconds"] * 1e9)
            publish_ns = round(done["publish_seconds"] * 1e9)
            self._published(done["version"], end_ns - publish_ns, done["publish_seconds"], done["norm"])
        return "odd" if done["rolled_back"] else "applied"

    def _used(self, plan: dict[str, Any]) -> None:
        """The learner has learned from a plan."""
        self._memorizer.used(plan)

    def _raise_unless_forgiven(self, error: RemoteError) -> None:
        """End the run by what an update raised, unless another try may go well."""
        if error.kind == "NumericError":
            raise NumericError(error.message) from error
        if error.kind in _ENDING:
            raise _ENDING[error.kind](f"learner: {error.message}") from error
        if error.kind != "UpdateFailed":
            raise RunFailed(f"learner learning: {error}") from error
        self._context.recorder.note(Ended("", "an update raised"))
        self._note_failure(error)

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
        return dict(await self.process.call("learn", role="learner", check=is_learned, **asked))

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

    def _give_up(self, plan: dict[str, Any], why: str, lane: int | None = None) -> None:
        """Nothing comes of a plan."""
        self._note_fruitless(why)
        if "slots" in plan:
            self._memorizer.given_up(plan, lane)
        self.busy = False
        self._context.delivered.clear()

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
