"""What the handles of one run share: counters, budget, log, and what is known of each published version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from mlxe_async.ipc.shared.delayed import DelayedWeights
from mlxe_async.logs import events
from mlxe_async.roles.dealing import Dealer
from mlxe_async.roles.lessons import Curriculum, Lessons
from mlxe_async.roles.promotion import LARGEST
from mlxe_async.roles.wrapper_states import VersionStates
from mlxe_async.settings.task import Task
from mlxe_async.supervisor.handles.crashes import Crashes
from mlxe_async.supervisor.plan.budget import Bell, Budget, Counters
from mlxe_async.supervisor.plan.event_log import EventLog
from mlxe_async.supervisor.recording.steps import NoRecorder, Recorder


class Publications:
    """The newest versions, and those that were put under test, in memory that does not grow.

    Args:
        newest: number of the newest versions that are known.
    """

    def __init__(self, newest: int = 4096) -> None:
        self._newest: list[tuple[int, dict[str, Any]] | None] = [None] * newest
        self._held: dict[int, dict[str, Any]] = {}
        self.states: VersionStates | None = None
        "The state that wrappers have by each of them; None where they keep nothing."

    def note(self, version: int, about: Mapping[str, Any]) -> None:
        """A version was published when the run was so far."""
        self._newest[version % len(self._newest)] = version, dict(about)
        if self.states is not None:
            self.states.published(version)

    def hold(self, version: int) -> None:
        """A version is put under test: it must be known for as long as the verdict may take."""
        about = self.get(version)
        if about is not None:
            self._held[version] = about
        if self.states is not None:
            self.states.hold(version)

    def release(self, still: Collection[int]) -> None:
        """The verdicts on all versions that were held are there, but for those that are `still` needed."""
        self._held = {version: about for version, about in self._held.items() if version in still}
        if self.states is not None:
            self.states.release(still)

    def state_of(self, version: int) -> str | None:
        """Return wrappers' state of a version that is held, or the newest; None: as they are made."""
        return None if self.states is None else self.states.of(version)

    def get(self, version: int) -> dict[str, Any] | None:
        """Return what was noted of it, None if that is not known any more."""
        if version in self._held:
            return dict(self._held[version])
        noted = self._newest[version % len(self._newest)]
        return dict(noted[1]) if noted is not None and noted[0] == version else None


def lessons_of(
    task: Task, counters: Counters, log: EventLog, *, executors: int, states: VersionStates | None, in_rounds: bool
) -> Lessons | None:
    """Return what decides on stages, items and wrappers' states; None where the task has none of them.

    Args:
        task: of the settings.
        counters: how far the run is.
        log: told of each stage that begins.
        executors: how many there are.
        states: what wrappers keep; None: nothing.
        in_rounds: decide between rounds alone.
    """
    if not task.stages and task.reset_options is None and states is None:
        return None
    count = len(task.stages)

    def tell(stage: int, reason: str) -> None:
        told = events.StageEvent(
            stage=stage + 1, of=count, env_steps=counters.env_steps, episodes=counters.episodes, reason=reason
        )
        log.emit(told, "supervisor")

    return Lessons(
        Curriculum(task.stages, tell) if count else None,
        Dealer(executors) if task.reset_options is not None else None,
        in_rounds=in_rounds,
        env_steps=lambda: counters.env_steps,
        states=states,
    )


class Player(Protocol):
    """An executor's handle."""

    index: int

    async def shelve(self, result: float) -> bool:
        """Have it put the weights of its last rollout on the shelf; whether they lie there."""


def training_result(values: Collection[float], by: str) -> float:
    """The mean of returns, or the sum of steps; sorted, because it must not depend on who was faster."""
    ordered = sorted(values)
    return float(np.sum(ordered) if by == "steps" else np.mean(ordered))


class Promoter:
    """Compare training results under `oa`: which version is the best, and when the learner goes back to it.

    An iteration is over as soon as each executor has finished an episode since the last one was. Its result belongs to
    the version that the executor who ended it has just played with. That executor still has those weights, and no other
    process may: it puts them on the shelf, and goes on. So what the learner goes back to is exactly what was played,
    however many versions were published meanwhile, and only one version is kept.

    Args:
        patience: iterations without a better result after which to go back, at least 1.
        by: what a result is: the `"mean_return"` of the episodes of an iteration, or the sum of their `"steps"`.
        awaited: numbers of the executors that an iteration waits for.
        log: told of each result.
    """

    def __init__(self, patience: int, by: str, awaited: Callable[[], Collection[int]], log: EventLog) -> None:
        self._patience, self._by, self._awaited, self._log = patience, by, awaited, log
        self._finished: dict[int, list[float]] = {}
        self._result: float | None = None
        self._since = 0
        self._one_at_a_time = asyncio.Lock()  # the shelf has one writer

    @property
    def iterations(self) -> int | None:
        """Iterations since the best, where it is time to go back to it; else None."""
        return self._since if self._since >= self._patience else None

    def went_back(self) -> None:
        """The learner has: iterations are counted from 0 again."""
        self._since = 0

    async def delivered(self, player: Player, report: Mapping[str, Any]) -> None:
        """Hear of a rollout, which may end an iteration."""
        finished = report["episodes"]["steps" if self._by == "steps" else "return"]
        if not finished:
            return
        self._finished.setdefault(player.index, []).extend(finished)
        if not set(self._awaited()) <= self._finished.keys():
            return
        values = [value for own in self._finished.values() for value in own]
        result = float(np.float32(np.clip(training_result(values, self._by), -LARGEST, LARGEST)))
        self._finished.clear()
        async with self._one_at_a_time:
            is_better = self._result is None or result > self._result
            if not is_better:
                self._since += 1
            elif await player.shelve(result):
                self._result, self._since = result, 0
        told = events.TrainingResult(result=result, by=self._by, version=report["version"])
        self._log.emit(told, "executor", player.index)

    def state(self) -> dict[str, Any]:
        """Return what is to be kept: the best result, None before the first, and the iterations since."""
        return {"result": self._result, "since": self._since}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there; what was finished in the iteration under way is not counted."""
        self._result, self._since = state["result"], int(state["since"])


@dataclass
class HandleContext:
    """What the handles of one run share.

    Args:
        budget: counts and says when to stop.
        counters: the run's counters.
        bell: rung whenever something changed that a coroutine may be waiting for.
        log: tells the log.
        free_running: no process waits for a phase to end (`oa`).
        deterministic: what a dead executor left unfinished is generated again, to the same rows.
        recorder: hears all that a replay would have to do alike.
        crashes: knows where dead executors were; None: it is never asked for.
        is_checkpoint_due: whether a learner that waits for something to learn from should rather let the run save.
    """

    budget: Budget
    counters: Counters
    bell: Bell
    log: EventLog
    free_running: bool
    deterministic: bool
    recorder: Recorder = field(default_factory=NoRecorder)
    crashes: Crashes | None = None
    is_checkpoint_due: Callable[[], bool] = lambda: False
    promotes: bool = False
    """True if training results of versions are compared."""
    promote_by: str = "mean_return"
    """What a training result is, see `[learner] promote_by`."""
    lessons: Lessons | None = None
    """Decides on stages, items and states that episodes begin with; None where a task has none of them."""
    promoter: Promoter | None = None
    """Compares them under `oa`."""
    publications: Publications = field(default_factory=Publications)
    """How far the run was when each version was published."""
    returns: dict[int, list[float]] = field(default_factory=dict)
    """Returns, or steps, of the episodes finished lately, by the version they were played under."""
    delivered: set[int] = field(default_factory=set)
    """Executors that have delivered in the round that is under way."""
    excused: set[int] = field(default_factory=set)
    """Executors that had delivered already in the round in which the run was interrupted."""

    async def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition; False when the run is ending.

        Only the schedules look at the budget itself: where they wait for each other, a round that was begun is finished
        by all.
        """
        if not (condition() or self.ending):
            await self.bell.wait_until(lambda: condition() or self.ending)
        return not self.ending

    @property
    def ending(self) -> bool:
        """True if the budget has run out."""
        return self.budget.reason is not None

    @property
    def finished_episodes(self) -> int:
        """Finished episodes of the run, as a rollout is told.

        Where all wait for each other they are counted at the end of a round. So they are the same in whatever order
        executors deliver, and after deaths and resumptions.
        """
        return self.budget.counted_episodes if self.deterministic else self.counters.episodes

    def training_result(self, version: int) -> float | None:
        """Mean return, or sum of steps, of the episodes finished under a version since this was last asked.

        All others are forgotten.
        """
        returns = self.returns.get(version)
        self.returns.clear()
        return training_result(returns, self.promote_by) if returns else None


@dataclass(frozen=True)
class RolloutRules:
    """When an executor's rollouts end, and when its process is replaced.

    Args:
        unfinished: what becomes of the episodes of a rollout that is interrupted, see `roles.executor`; None: none is.
        most_rollouts: rollouts between two that cannot be interrupted, the first included; None: any number.
        most_rows: rows at which a rollout is cut, asked for at each one; None: it ends by itself.
        least_rows: rows of whole episodes that are delivered together, asked for at each rollout; 0: of one episode.
        max_rss_mb: more memory than this, and its process is replaced between two episodes.
        reads: it lives in one thread with the memorizer, and has its lane read where that is full.
    """

    unfinished: str | None = None
    most_rollouts: int | None = None
    most_rows: Callable[[], int | None] = lambda: None
    least_rows: Callable[[], int] = lambda: 0
    max_rss_mb: int | None = None
    reads: bool = False


@dataclass(frozen=True)
class ExecutorWords:
    """What passes between the supervisor and an executor in shared memory, without a message.

    Args:
        ask: tells the executor how many of its rollouts it is not to go on with; never waits.
        taken: rows it has made so far, delivered or not.
        delayed: the older weights that it acts with instead of those it is asked for; None: it does as it is asked.
    """

    ask: Callable[[int], None] = lambda _rollouts: None
    taken: Callable[[], int] = lambda: 0
    delayed: DelayedWeights | None = None
